"use strict";

// A page is whole without scripts. They add: text on hover, sortable tables, and what the other files say.

// ---- hover text: replaces the browser's slow native tooltips of the marks --------------------------------------

const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 6))}px`;
  tip.style.top = `${y + 16 + height > innerHeight ? y - height - 10 : y + 16}px`;
}

function hideTip() {
  tip.hidden = true;
}

for (const mark of document.querySelectorAll(".drawing .tip")) {
  const title = mark.querySelector("title");
  mark.dataset.tip = title.textContent;
  title.remove();
}
for (const drawing of document.querySelectorAll(".drawing")) {
  drawing.addEventListener("pointermove", (event) => {
    const mark = event.target.closest(".tip");
    if (mark) showTip(mark.dataset.tip, event.clientX, event.clientY);
    else hideTip();
  });
  drawing.addEventListener("pointerleave", hideTip);
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});

// A drawing wider than its place scrolls: only then does it need a stop of the Tab key.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll(".drawing").forEach((drawing) => widths.observe(drawing));

// ---- a drawing as a file: the one for wide screens, whole, with the text of its marks ----------------------------

function drawingAsFile(svg) {
  const copy = svg.cloneNode(true);
  copy.removeAttribute("class");
  for (const mark of copy.querySelectorAll(".tip")) {
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = mark.dataset.tip;
    mark.append(title);
    mark.removeAttribute("data-tip");
    mark.removeAttribute("class");
  }
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

for (const button of document.querySelectorAll("button.save")) {
  const name = button.dataset.figure;
  button.hidden = false;
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(drawingAsFile(document.querySelector(`#${name} .drawing svg`)));
    link.download = `${name}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

// ---- tables that sort by a column ------------------------------------------------------------------------------

function sortKey(cell) {
  if (cell.classList.contains("undefined")) return null;
  const text = cell.dataset.sort ?? cell.textContent;
  const plain = text.trim().replaceAll(",", "").replace("−", "-").replace("inf", "Infinity");
  return plain !== "" && !Number.isNaN(Number(plain)) ? Number(plain) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a < b ? -1 : 1;
  return String(a).localeCompare(String(b));
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return direction * compare(a.key, b.key);
  });
  body.append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortTable(table, column, ascending ? 1 : -1);
    });
    head.replaceChildren(button);
  });
}
