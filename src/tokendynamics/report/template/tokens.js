// Tokens on a canvas: the one drawing of the explorer and of "Watch the tokens". A pen is a canvas's context or an SVG.

/**
 * @typedef {[number, number, number]} Place
 * @typedef {Pick<CanvasRenderingContext2D, "beginPath" | "moveTo" | "lineTo" | "arc" | "stroke" | "fill" | "fillText" |
 *   "strokeText" | "setLineDash" | "strokeStyle" | "fillStyle" | "lineWidth" | "font" | "textAlign">} Pen
 * @typedef {{ink: string, muted: string, rule: string, accent: string, paper: string, light: number, rem: number}} Look
 * @typedef {{n: number, flat: boolean, sphere: boolean, extent: number, centre: Place, trail: number, frame: number,
 *   place: (frame: number, i: number) => Place | null, label: (i: number) => string, ringed: number | null,
 *   names: string[]}} Scene
 * @typedef {{i: number, x: number, y: number, depth: number}} Dot
 * @typedef {{turn: number, lift: number}} View
 */

/** @param {string} id @returns {any} */
const element = (id) => document.getElementById(id);

/** A number in three digits, as Python's `words.number` writes it. @param {number} value */
function short(value) {
  if (Number.isNaN(value)) return "undefined";
  const sign = value < 0 ? "−" : "", size = Math.abs(value);
  if (size === Infinity || size === 0) return size ? `${sign}∞` : "0";
  const [digits, power] = size.toExponential(2).split("e"), exponent = Number(power);
  if (exponent >= 3 && exponent < 7) return sign + `${Number(`${digits}e${power}`)}`.replace(/\B(?=(\d{3})+$)/g, ",");
  if (exponent >= -4 && exponent < 3) return `${sign}${Number(`${digits}e${power}`)}`;
  return `${sign}${Number(digits)} × 10${[...String(exponent)].map((one) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(one)]).join("")}`;
}

/** Neighbours differ: steps of the golden angle round the circle of hues. @param {number} i */
const hue = (i) => (205 + i * 137.508) % 360;

const night = matchMedia("(prefers-color-scheme: dark)");
/** @type {Look | null} */
let scheme = null;
night.addEventListener("change", () => { scheme = null; });
addEventListener("resize", () => { scheme = null; });

/** The page's colours and the size of its text, read once until they may change. @returns {Look} */
function colours() {
  if (scheme) return scheme;
  const style = getComputedStyle(document.documentElement), of = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  scheme = { ink: of("--ink"), muted: of("--muted"), rule: of("--rule"), accent: of("--accent"), paper: of("--paper"), light: night.matches ? 66 : 42, rem: parseFloat(style.fontSize) };
  return scheme;
}

/** Sizes in which canvases are shown: a page draws more often than it is laid out. @type {Map<Element, [number, number]>} */
const sizes = new Map();
const watched = new ResizeObserver((entries) => {
  let changed = false;
  for (const { target } of entries) {
    const [width, height] = sizes.get(target) || [], same = width === target.clientWidth && height === target.clientHeight;
    if (!same) sizes.set(target, [target.clientWidth, target.clientHeight]);
    changed ||= !same;
  }
  if (changed) dispatchEvent(new Event("resize")); // upon which a page draws
});

/** A canvas in the size in which it is shown. @param {HTMLCanvasElement} canvas */
function sized(canvas) {
  if (!sizes.has(canvas)) {
    sizes.set(canvas, [canvas.clientWidth, canvas.clientHeight]);
    watched.observe(canvas);
  }
  const ratio = Math.min(devicePixelRatio || 1, 2), [width, height] = sizes.get(canvas) || [0, 0];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  if (context) {
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
  }
  return { context, width, height };
}

/** @param {Pen} pen @param {string} colour @param {number[]} dash @param {ArrayLike<number>[]} points @param {number} width */
function line(pen, colour, dash, points, width = 1) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.beginPath();
  for (let at = 0; at < points.length; at++) {
    if (at) pen.lineTo(points[at][0], points[at][1]);
    else pen.moveTo(points[at][0], points[at][1]);
  }
  pen.stroke();
  pen.setLineDash([]);
}

/** From places to pixels, the third entry being how near a place is. @param {Scene} scene @param {View} view @param {number} width @param {number} height */
function projection(scene, view, width, height) {
  const cosT = Math.cos(view.turn), sinT = Math.sin(view.turn), cosL = Math.cos(view.lift), sinL = Math.sin(view.lift);
  const scale = (0.45 * Math.min(width, height)) / (scene.extent || 1), [a, b, c] = scene.centre;
  return (/** @type {Place} */ place) => {
    const x = place[0] - a, y = place[1] - b, z = place[2] - c;
    if (scene.flat) return [width / 2 + scale * x, height / 2 - scale * y, 0];
    const right = -sinT * x + cosT * y, towards = cosT * x + sinT * y;
    return [width / 2 + scale * right, height / 2 - scale * (cosL * z - sinL * towards), (cosL * towards + sinL * z) / (scene.extent || 1)];
  };
}

/** What tokens move on: a sphere whose far half is dashed, or the axes. @param {Pen} pen @param {Look} look @param {Scene} scene @param {(place: Place) => number[]} put @param {number} radius */
function drawGround(pen, look, scene, put, radius) {
  const middle = put(scene.centre);
  if (!scene.sphere) {
    for (const axis of [[1, 0, 0], [0, 1, 0], [0, 0, 1]].slice(0, scene.flat ? 2 : 3)) {
      // They cross at zero.
      const ends = [-1, 1].map((sign) => put(/** @type {Place} */ (axis.map((entry, c) => entry * (scene.centre[c] + sign * (scene.flat ? 4 : 1) * scene.extent)))));
      line(pen, look.rule, [], ends);
    }
    return;
  }
  pen.fillStyle = look.paper;
  pen.strokeStyle = look.rule;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.arc(middle[0], middle[1], radius, 0, 2 * Math.PI);
  if (!scene.flat) pen.fill();
  pen.stroke();
  /** @type {((a: number, b: number) => Place)[]} */
  const rings = scene.flat ? [] : [(a, b) => [a, b, 0], (a, b) => [a, 0, b], (a, b) => [0, a, b]];
  for (const ring of rings) {
    const points = Array.from({ length: 65 }, (_, at) => put(ring(Math.cos((at / 32) * Math.PI), Math.sin((at / 32) * Math.PI))));
    for (const near of [false, true]) {
      let piece = /** @type {number[][]} */ ([]);
      points.forEach((point, at) => {
        const here = point[2] >= 0 === near;
        if (here) piece.push(point);
        if (here && at < 64) return;
        if (piece.length > 1) line(pen, look.rule, near ? [] : [2, 4], piece);
        piece = [];
      });
    }
  }
}

/** Draw tokens with the trails behind them; return where they stand. @param {Pen} pen @param {Look} look @param {number} width @param {number} height @param {Scene} scene @param {View} view @returns {Dot[]} */
function drawScene(pen, look, width, height, scene, view) {
  const put = projection(scene, view, width, height), last = scene.frame, first = Math.max(0, Math.ceil(last - scene.trail));
  drawGround(pen, look, scene, put, 0.45 * Math.min(width, height));
  /** @type {Dot[]} */
  const dots = [];
  const many = scene.n > 60, size = many ? 3.2 : 5, pieces = many ? 2 : 3, every = many && scene.trail > 8 ? 3 : 1;
  for (let i = 0; i < scene.n; i++) {
    const here = scene.place(last, i);
    if (here === null) continue;
    const [x, y, depth] = put(here), alpha = scene.flat ? 1 : 0.6 + 0.4 * Math.max(-1, Math.min(1, depth));
    dots.push({ i, x, y, depth });
    const points = [];
    for (let frame = Math.ceil(first / every) * every; frame < last; frame += every) {
      const place = scene.place(frame, i);
      if (place === null) points.length = 0;
      else points.push(put(place));
    }
    points.push([x, y]);
    // A trail fades backwards.
    for (let piece = 0; piece < pieces; piece++) {
      const from = Math.floor((piece * (points.length - 1)) / pieces), to = Math.floor(((piece + 1) * (points.length - 1)) / pieces);
      if (to > from) line(pen, `hsl(${hue(i)} 65% ${look.light}% / ${(alpha * 0.7 * (piece + 1)) / pieces})`, [], points.slice(from, to + 1), many ? 1 : 1 + 0.4 * piece);
    }
  }
  for (const dot of [...dots].sort((one, other) => one.depth - other.depth)) {
    const alpha = scene.flat ? 1 : 0.65 + 0.35 * Math.max(-1, Math.min(1, dot.depth)), radius = scene.flat ? size : size * (1 + 0.22 * dot.depth);
    pen.fillStyle = `hsl(${hue(dot.i)} 65% ${look.light}% / ${alpha})`;
    pen.strokeStyle = look.paper;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.arc(dot.x, dot.y, radius, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    if (dot.i === scene.ringed) {
      pen.strokeStyle = look.ink;
      pen.lineWidth = 1.8;
      pen.beginPath();
      pen.arc(dot.x, dot.y, radius + 3.5, 0, 2 * Math.PI);
      pen.stroke();
    }
  }
  pen.font = `${0.75 * look.rem}px system-ui, sans-serif`;
  pen.textAlign = "left";
  pen.fillStyle = look.muted;
  if (!scene.sphere && scene.extent > 0) {
    const unit = 10 ** Math.floor(Math.log10(scene.extent / 2)), length = unit * [5, 2, 1].filter((many) => many * unit <= scene.extent / 2)[0];
    line(pen, look.muted, [], [[12, height - 12], [12 + (0.45 * Math.min(width, height) * length) / scene.extent, height - 12]], 3);
    pen.fillText(short(length), 12, height - 19);
  }
  scene.names.forEach((name, row) => pen.fillText(name, 10, look.rem * (1.1 + row)));
  return dots;
}

/** The name of a token beside it, readable over everything. @param {Pen} pen @param {Look} look @param {number} width @param {Dot} dot @param {string} label */
function drawLabel(pen, look, width, dot, label) {
  const left = dot.x > width * 0.65;
  pen.font = `600 ${0.8 * look.rem}px system-ui, sans-serif`;
  pen.textAlign = left ? "right" : "left";
  pen.strokeStyle = look.paper;
  pen.lineWidth = 4;
  pen.fillStyle = look.ink;
  pen.strokeText(label, dot.x + (left ? -12 : 12), dot.y + 4);
  pen.fillText(label, dot.x + (left ? -12 : 12), dot.y + 4);
}

/** The dot under a pointer. @param {Dot[]} dots @param {number} x @param {number} y @returns {Dot | null} */
function nearest(dots, x, y) {
  let best = null, far = 16;
  for (const dot of dots) {
    const distance = Math.hypot(dot.x - x, dot.y - y);
    if (distance < far) [best, far] = [dot, distance];
  }
  return best;
}
