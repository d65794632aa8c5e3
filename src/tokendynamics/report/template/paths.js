// ---- the moving figure -----------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

// Drawn as wide as it is shown, so that its letters can be read on a phone.
const PHONE = matchMedia("(max-width: 40rem)").matches;
const WIDTH = PHONE ? 340 : 720, HEIGHT = PHONE ? 320 : 430, MARGIN = PHONE ? 16 : 28, STEP_MS = 650;

function startPlayer({ tokens, layers, frames }) {
  const slider = document.getElementById("depth");
  const name = document.getElementById("depth-name");
  const play = document.getElementById("play");
  const told = document.getElementById("told");
  const chips = [...document.querySelectorAll("#sentence .token")];
  const place = fit(frames);
  const stage = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-labelledby": "stage-title stage-desc" });
  const description = make("desc", { id: "stage-desc" });
  const path = make("path", { class: "path" });
  const corner = make("g", { class: "quiet" });
  const ring = make("circle", { class: "ring", r: 9, "pointer-events": "none" });
  const label = make("text", { class: "halo", "pointer-events": "none" });
  stage.append(make("title", { id: "stage-title" }, "How do the tokens of a prompt move?"), description);
  stage.append(axes(place), corner, path);
  const dots = tokens.map((_, index) => dot(index, tokens.length));
  stage.append(...dots, ring, label);
  document.getElementById("stage").append(stage);
  let layer = 0, chosen = null, timer = null;

  function positions(at) {
    let pinned = 0;
    return frames[at].map(([x, y, , sink]) => {
      if (sink) return [WIDTH - 18, 42 + 20 * pinned++];
      return x === null ? null : [place.x(x), place.y(y)];
    });
  }

  function draw() {
    const here = positions(layer);
    dots.forEach((element, index) => {
      element.style.display = here[index] === null ? "none" : "";
      if (here[index]) element.style.transform = `translate(${here[index][0].toFixed(1)}px, ${here[index][1].toFixed(1)}px)`;
    });
    const sinks = tokens.map((_, index) => index).filter((index) => frames[layer][index][3]);
    const lines = sinks.map((index) => `${short(tokens[index])}: norm ${written(frames[layer][index][2])}`);
    corner.replaceChildren(...[sinks.length ? "Massive tokens" : "No massive token", ...lines].map((line, row) =>
      make("text", { x: WIDTH - (row ? 32 : 12), y: 26 + 20 * row, "text-anchor": "end" }, line)));
    name.textContent = layers[layer];
    slider.value = String(layer);
    slider.setAttribute("aria-valuetext", layers[layer]);
    description.textContent = `${layers[layer]}: ${tokens.length} tokens, ${sinks.length} of them massive.`;
    mark(here);
  }

  function mark(here) {
    chips.forEach((chip, index) => chip.classList.toggle("on", index === chosen));
    path.setAttribute("d", chosen === null ? "" : trail(chosen));
    ring.style.display = chosen === null || !here[chosen] ? "none" : "";
    label.textContent = "";
    told.textContent = "";
    if (chosen === null) return;
    const size = frames[layer][chosen][2];
    told.textContent = `${tokens[chosen]} (position ${chosen}), ${layers[layer].toLowerCase()}: norm ${written(size)}` + (frames[layer][chosen][3] ? ", massive" : "");
    if (!here[chosen]) return;
    ring.style.transform = dots[chosen].style.transform;
    if (frames[layer][chosen][3]) return; // its name and norm stand in the corner already
    const left = here[chosen][0] > WIDTH * 0.7;
    label.textContent = `${short(tokens[chosen])} · norm ${written(size)}`;
    label.setAttribute("text-anchor", left ? "end" : "start");
    label.setAttribute("x", here[chosen][0] + (left ? -13 : 13));
    label.setAttribute("y", here[chosen][1] + 4);
  }

  function trail(index) {
    let pen = "M";
    return frames.slice(0, layer + 1).map((frame) => {
      const [x, y, , sink] = frame[index];
      if (sink || x === null) { pen = "M"; return ""; }
      const piece = `${pen}${place.x(x).toFixed(1)},${place.y(y).toFixed(1)}`;
      pen = "L";
      return piece;
    }).join("");
  }

  function choose(index) {
    chosen = index;
    mark(positions(layer));
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function start() {
    if (layer === layers.length - 1) layer = 0;
    draw();
    play.textContent = "Pause";
    // With reduced motion the style sheet drops the glide between layers; the steps come slower.
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    timer = setInterval(() => {
      if (layer < layers.length - 1) { layer += 1; draw(); }
      if (layer === layers.length - 1) stop();
    }, calm ? 2 * STEP_MS : STEP_MS);
  }

  play.addEventListener("click", () => (timer ? stop() : start()));
  slider.addEventListener("input", () => { stop(); layer = Number(slider.value); draw(); });
  dots.forEach((element, index) => {
    element.addEventListener("pointerenter", () => choose(index));
    element.addEventListener("click", () => choose(index));
  });
  wireChips(chips, choose);
  draw();
  document.getElementById("player").hidden = false;
}

// One stop of the Tab key for the whole prompt; arrows move from token to token.
function wireChips(chips, choose) {
  const list = document.getElementById("sentence");
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Tokens of the prompt: arrows choose one");
  chips.forEach((chip, index) => {
    chip.setAttribute("role", "option");
    chip.tabIndex = index === 0 ? 0 : -1;
    chip.addEventListener("pointerenter", () => choose(index));
    chip.addEventListener("click", () => chip.focus());
    chip.addEventListener("focus", () => {
      chips.forEach((other) => { other.tabIndex = other === chip ? 0 : -1; other.setAttribute("aria-selected", String(other === chip)); });
      choose(index);
    });
    chip.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const target = event.key === "Home" ? 0 : event.key === "End" ? chips.length - 1 : step ? index + step : null;
      if (target === null || !chips[target]) return;
      event.preventDefault();
      chips[target].focus();
    });
  });
}

function dot(index, many) {
  const element = make("g", { class: "dot", "data-token": index });
  element.append(make("circle", { r: many > 60 ? 4.5 : 6.5, class: `p${Math.min(Math.floor((5 * index) / many), 4)}` }));
  return element;
}

// Equal lengths along both axes: distances on the page are distances in the plane.
function fit(frames) {
  const drawn = frames.flat().filter(([x, , , sink]) => x !== null && !sink);
  const xs = drawn.map((point) => point[0]), ys = drawn.map((point) => point[1]);
  const bounds = (values) => values.length ? [Math.min(...values), Math.max(...values)] : [-1, 1];
  const [left, right] = bounds(xs), [low, high] = bounds(ys);
  const scale = Math.min((WIDTH - 2 * MARGIN) / Math.max(right - left, 1e-6), (HEIGHT - 2 * MARGIN - 20) / Math.max(high - low, 1e-6));
  return {
    x: (value) => WIDTH / 2 + scale * (value - (left + right) / 2),
    y: (value) => HEIGHT / 2 + 10 - scale * (value - (low + high) / 2),
  };
}

function axes(place) {
  const group = make("g", { class: "frame" });
  group.append(make("path", { d: `M0,${place.y(0)}H${WIDTH}M${place.x(0)},0V${HEIGHT}` }));
  return group;
}

function short(text) {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

function written(value) {
  if (value === null) return "undefined";
  return Number(value.toPrecision(3)).toLocaleString("en");
}

startPlayer(JSON.parse(document.getElementById("paths-data").textContent));
