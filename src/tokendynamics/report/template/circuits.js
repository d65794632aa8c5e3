// ---- matrices: the entry under the pointer, read from the figure's own table ------------------------------------

for (const hit of document.querySelectorAll(".drawing .hit")) {
  const table = document.getElementById(hit.dataset.table);
  const columns = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
  const rows = table.tBodies[0].rows;
  // On the drawing, after the listener that hides the text of other marks.
  hit.closest(".drawing").addEventListener("pointermove", (event) => {
    if (event.target !== hit) return;
    const place = hit.getBoundingClientRect();
    const at = (share, many) => Math.max(0, Math.min(many - 1, Math.floor(share * many)));
    const row = rows[at((event.clientY - place.top) / place.height, rows.length)];
    const column = at((event.clientX - place.left) / place.width, columns.length);
    const names = [row.cells[0].textContent, columns[column]].filter(Boolean).join(", ");
    showTip(`${names}: ${row.cells[column + 1].textContent}`, event.clientX, event.clientY);
  });
}
