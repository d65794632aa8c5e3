// ---- the moving figure: the tokens of a prompt from layer to layer, on the explorer's canvas ---------------------

/**
 * A token in a layer: its place in the plane, its norm, and 1 where it is massive.
 * @typedef {[number | null, number | null, number | null, number]} Point
 * @typedef {{tokens: string[], layers: string[], frames: Point[][]}} Paths
 */

const STEP_MS = 650, GLIDE_MS = 350, LAYERS_OF_TRAIL = 3;

/** @param {Paths} paths */
function startPlayer({ tokens, layers, frames }) {
  const slider = element("depth"), play = element("play"), canvas = element("stage-canvas"), massive = element("massive"), label = element("stage-label");
  const chips = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("#sentence .token")]);
  const calm = matchMedia("(prefers-reduced-motion: reduce)"), still = { turn: 0, lift: 0 };
  /** @type {Dot[]} */
  let dots = [];
  /** @type {number | null} */
  let chosen = null;
  let layer = 0, shown = 0, former = 0, playing = false, gliding = false;

  /** @param {number} frame @param {number} i @returns {Place | null} */
  function place(frame, i) {
    const before = Math.floor(frame), share = frame - before, [x, y, , sink] = frames[before][i];
    if (x === null || y === null || sink) return null;
    if (share === 0) return [x, y, 0];
    const [nextX, nextY, , next] = frames[before + 1][i];
    return nextX === null || nextY === null || next ? null : [x + share * (nextX - x), y + share * (nextY - y), 0];
  }

  /** The middle and half the height of what is drawn, so that tokens fill the stage in every layer, or (one scale) in all. @param {number} frame */
  function frameOf(frame) {
    const before = Math.floor(frame), share = frame - before, { clientWidth: width, clientHeight: height } = canvas;
    const bounds = (/** @type {number} */ at) => {
      let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
      for (const [x, y, , sink] of element("one-scale").checked ? frames.flat() : frames[at]) {
        if (x === null || y === null || sink) continue;
        [left, right, low, high] = [Math.min(left, x), Math.max(right, x), Math.min(low, y), Math.max(high, y)];
      }
      if (left > right) return [0, 0, 1];
      const wide = Math.max(width - 80, 1) / Math.max(Math.min(width, height), 1), tall = Math.max(height - 90, 1) / Math.max(Math.min(width, height), 1);
      return [(left + right) / 2, (low + high) / 2, Math.max(0.45 * (right - left) / wide, 0.45 * (high - low) / tall, 1e-6)];
    };
    const one = bounds(before), other = share > 0 ? bounds(before + 1) : one;
    return one.map((value, c) => value + share * (other[c] - value));
  }

  function draw() {
    const { context, width, height } = sized(canvas);
    if (!context) return;
    const [x, y, extent] = frameOf(shown);
    /** @type {Scene} */
    const scene = {
      n: tokens.length, flat: true, sphere: false, extent, centre: [x, y, 0], trail: chosen === null ? LAYERS_OF_TRAIL : 0, frame: shown, ringed: chosen,
      place, label: (i) => cut(tokens[i]), names: [],
    };
    dots = drawScene(context, colours(), width, height, scene, still);
    if (chosen !== null) drawPath(context, chosen, projection(scene, still, width, height));
    const here = dots.find((dot) => dot.i === chosen);
    label.hidden = !here;
    if (!here || chosen === null) return;
    label.textContent = `${cut(tokens[chosen])} · norm ${written(frames[layer][chosen][2])}`;
    label.style.left = `${Math.max(0, Math.min(here.x + 12, width - label.offsetWidth))}px`;
    label.style.top = `${Math.max(0, here.y - 12)}px`;
  }

  /** The whole way of one token up to here. @param {Pen} pen @param {number} index @param {(place: Place) => number[]} put */
  function drawPath(pen, index, put) {
    /** @type {number[][]} */
    let piece = [];
    const look = colours();
    for (let at = 0; at <= Math.floor(shown); at++) {
      const here = place(at, index);
      if (here) piece.push(put(here));
      if (here && at < Math.floor(shown)) continue;
      if (piece.length > 1) line(pen, look.ink, [2, 3], piece, 1.2);
      piece = [];
    }
  }

  /** Everything that is said of the layer. */
  function tell() {
    const sinks = tokens.map((_, index) => index).filter((index) => frames[layer][index][3]);
    massive.replaceChildren(...[sinks.length ? "Massive tokens, not drawn:" : "No massive token", ...sinks].map((one) => {
      const row = document.createElement("li");
      row.textContent = typeof one === "string" ? one : `${cut(tokens[one])}: norm ${written(frames[layer][one][2])}`;
      if (typeof one === "number") row.style.borderInlineStart = `0.5rem solid hsl(${hue(one)} 65% 50%)`;
      return row;
    }));
    element("depth-name").textContent = layers[layer];
    slider.value = String(layer);
    slider.setAttribute("aria-valuetext", layers[layer]);
    canvas.setAttribute("aria-label", `How do the tokens move? ${layers[layer]}: ${tokens.length} tokens, ${sinks.length} of them massive.`);
    chips.forEach((chip, index) => chip.classList.toggle("on", index === chosen));
    element("told").textContent = chosen === null ? "" : `${tokens[chosen]} (position ${chosen}), ${layers[layer].toLowerCase()}: norm ${written(frames[layer][chosen][2])}${frames[layer][chosen][3] ? ", massive" : ""}`;
  }

  /** @param {number} index */
  function choose(index) {
    chosen = index;
    tell();
    draw();
  }

  /** Go to a layer: at once where a reader wants no motion. @param {number} target */
  function goTo(target) {
    layer = target;
    tell();
    if (calm.matches) shown = layer;
    draw();
    if (gliding || (shown === layer && !playing)) return;
    gliding = true;
    former = performance.now();
    requestAnimationFrame(glide);
  }

  /** @param {number} now */
  function glide(now) {
    const passed = Math.max(0, now - former), far = layer - shown;
    former = now;
    const most = (passed / (playing ? STEP_MS : GLIDE_MS)) * (playing ? 1 : Math.max(1, Math.abs(far)));
    shown = Math.abs(far) <= most ? layer : shown + Math.sign(far) * most;
    if (shown === layer && playing) {
      if (layer === layers.length - 1) stop();
      else {
        layer += 1;
        tell();
      }
    }
    draw();
    gliding = shown !== layer || playing;
    if (gliding) requestAnimationFrame(glide);
  }

  function stop() {
    playing = false;
    play.textContent = "Play";
  }

  function start() {
    if (layer === layers.length - 1) [layer, shown] = [0, 0];
    playing = true;
    play.textContent = "Pause";
    if (calm.matches) return tick();
    return goTo(layer);
  }

  /** With reduced motion, steps without a glide, and slower. */
  function tick() {
    if (!playing) return;
    if (layer < layers.length - 1) goTo(layer + 1);
    if (layer === layers.length - 1) stop();
    else setTimeout(tick, 2 * STEP_MS);
  }

  play.addEventListener("click", () => (playing ? stop() : start()));
  slider.addEventListener("input", () => {
    stop();
    goTo(Number(slider.value));
  });
  for (const event of ["pointermove", "pointerdown"]) {
    canvas.addEventListener(event, (/** @type {PointerEvent} */ one) => {
      const near = nearest(dots, one.offsetX, one.offsetY);
      if (near && near.i !== chosen) choose(near.i);
    });
  }
  element("one-scale").addEventListener("change", draw);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  wireChips(chips, choose);
  element("player").hidden = false;
  tell();
  draw();
  // For tests and for consoles.
  /** @type {any} */ (window).tokendynamicsPaths = { state: () => ({ layer, shown, playing, places: tokens.map((_, i) => dots.find((dot) => dot.i === i) || null) }) };
}

// One stop of the Tab key for the whole prompt; arrows move from token to token.
/** @param {HTMLElement[]} chips @param {(index: number) => void} choose */
function wireChips(chips, choose) {
  const list = element("sentence");
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Tokens: arrows choose one");
  chips.forEach((chip, index) => {
    chip.setAttribute("role", "option");
    chip.tabIndex = index === 0 ? 0 : -1;
    chip.addEventListener("pointerenter", () => choose(index));
    chip.addEventListener("click", () => chip.focus());
    chip.style.borderBottom = `3px solid hsl(${hue(index)} 65% 50%)`;
    chip.addEventListener("focus", () => {
      chips.forEach((other) => { other.tabIndex = other === chip ? 0 : -1; other.setAttribute("aria-selected", String(other === chip)); });
      choose(index);
    });
    chip.addEventListener("keydown", (event) => {
      /** @type {Record<string, number>} */
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      const step = steps[event.key];
      const target = event.key === "Home" ? 0 : event.key === "End" ? chips.length - 1 : step ? index + step : null;
      if (target === null || !chips[target]) return;
      event.preventDefault();
      chips[target].focus();
    });
  });
}

/** @param {string} text */
function cut(text) {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

/** @param {number | null} value */
function written(value) {
  if (value === null) return "undefined";
  return Number(value.toPrecision(3)).toLocaleString("en");
}

startPlayer(JSON.parse(element("paths-data").textContent));
