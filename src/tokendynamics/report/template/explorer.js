// The page: what is set, what is computed of it, and what is drawn and said. States of live systems come from `Run`.

/**
 * @typedef {{preset: string, beta: number, tokens: number, mask: string, weights: string, positions: string, frame: number}} Settings
 * @typedef {{spread: number, similarity: number, rank: number, clusters: number, energy: number}} Measures
 */

const DATA = JSON.parse(document.getElementById("explorer-data").textContent);
const SECONDS = 12; // from the first frame to the last
const TRAIL = 45; // frames
const ROUNDING = 1e-12; // of a spread: below it nothing is data
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @param {string} id @returns {any} */
const element = (id) => document.getElementById(id);
const named = (name) => DATA.systems.find((system) => system.name === name);

// ---- settings, and the address that holds them -------------------------------------------------------------------

/** @returns {Settings} */
function usual(system) {
  const flow = system.flow;
  return {
    preset: system.name, beta: system.beta, tokens: flow ? flow.start.length : 0, mask: flow && flow.causal ? "causal" : "full",
    weights: flow ? flow.weights : "softmax", positions: flow && flow.positions ? "on" : "off", frame: 0,
  };
}

const RANGES = { beta: [0.25, 16], tokens: [2, 128], frame: [0, 1e6] };

/** Settings of an address, and what in it could not be taken. @returns {[Settings, string[]]} */
function fromAddress(fragment) {
  const asked = new URLSearchParams(fragment.replace(/^#/, "")), problems = [];
  const system = named(asked.get("preset") ?? DATA.systems[0].name);
  if (!system) problems.push(`the start “${asked.get("preset")}” is not known`);
  const settings = usual(system || DATA.systems[0]), most = { ...RANGES, tokens: [2, settings.tokens] };
  for (const [name, text] of asked) {
    if (name === "preset") continue;
    if (name in most) {
      const value = text.trim() === "" ? NaN : Number(text), [low, high] = most[name];
      if (value >= low && value <= high && (name === "beta" || Number.isInteger(value))) settings[name] = value;
      else problems.push(`${name} = ${text.slice(0, 20)} is no number from ${short(low)} to ${name === "tokens" ? high : short(high)}`);
    } else if (["mask", "weights", "positions"].includes(name)) {
      if ([...element(name).options].some((option) => option.value === text)) settings[name] = text;
      else problems.push(`${name} = ${text.slice(0, 20)} is not known`);
    } else problems.push(`${name.slice(0, 20)} is no setting`);
  }
  return [settings, problems];
}

function address() {
  return `#${new URLSearchParams(Object.entries(settings).map(([name, value]) => [name, String(value)]))}`;
}

// ---- a movie: the frames of one setting and what is measured of them ---------------------------------------------

class Movie {
  /** @param {Settings} settings */
  constructor(settings) {
    this.settings = { ...settings };
    this.system = named(settings.preset);
    this.times = this.system.times;
    this.live = Boolean(this.system.flow);
    const flow = this.live ? { ...this.system.flow, causal: settings.mask === "causal", weights: settings.weights,
      positions: settings.positions === "on" ? this.system.flow.positions : null,
      start: this.system.flow.start.slice(0, settings.tokens) } : null;
    this.flow = flow;
    this.run = flow ? new Run(flow, settings.beta, this.times) : null;
    this.states = this.run ? this.run.states : this.system.frames.map((frame) => Float64Array.from(frame.flat()));
    this.n = flow ? flow.start.length : this.system.frames[0].length;
    this.dim = flow ? flow.start[0].length : this.system.frames[0][0].length;
    /** @type {Measures[]} */
    this.measures = [];
    // Frames are drawn in three directions; what is measured is measured by Python in all.
    if (!this.run) this.measures = this.system.measures.map((one) => ({ spread: one.spread ?? NaN, similarity: 1 - (one.spread ?? NaN), rank: one.rank ?? NaN, clusters: one.clusters ?? NaN, energy: NaN }));
  }

  /** Compute for some milliseconds; true where something is left. @param {number} milliseconds */
  advance(milliseconds) {
    if (!this.run || this.run.finished) return false;
    const until = performance.now() + milliseconds;
    while (!this.run.finished && performance.now() < until) this.run.next();
    this.measure();
    return !this.run.finished;
  }

  measure() {
    while (this.measures.length < this.states.length) {
      const y = this.states[this.measures.length];
      const energy = this.flow && this.flow.qk.length === 1 ? logEnergy(this.flow, this.settings.beta, y, this.dim) : NaN;
      this.measures.push({ ...measured(y, this.n, this.dim), energy });
    }
  }

  get last() {
    return this.states.length - 1;
  }

  /** Three coordinates of a token in a frame. */
  place(frame, i) {
    const y = this.states[frame], at = i * this.dim, plane = this.flow ? this.system.plane : null;
    if (plane) return plane.vectors.map((vector) => vector.reduce((sum, entry, c) => sum + entry * y[at + c], 0));
    return [y[at], this.dim > 1 ? y[at + 1] : 0, this.dim > 2 ? y[at + 2] : 0];
  }

  get space() {
    return this.flow ? this.flow.space.kind : this.system.space;
  }

  words() {
    const { beta, mask, weights, positions } = this.settings, has = this.system.flow && this.system.flow.positions;
    return `β = ${short(beta)}, ${mask} mask, ${weights} weights${has ? (positions === "on" ? ", with positions" : ", without positions") : ""}, ${this.n} tokens`;
  }
}

// ---- drawing --------------------------------------------------------------------------------------------------------

const view = { turn: 0.7, lift: 0.35 };

function colours() {
  const style = getComputedStyle(document.documentElement), dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--ink"), muted: of("--muted"), rule: of("--rule"), accent: of("--accent"), paper: of("--paper"), light: dark ? 66 : 42 };
}

/** Neighbours differ: steps of the golden angle round the circle of hues. */
const hue = (i) => (205 + i * 137.508) % 360;

function sized(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2), width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  if (context) context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

/** Where three coordinates stand on a canvas, and how near they are. */
function projection(movie, frame, width, height) {
  const flat = movie.dim < 3, cosT = Math.cos(view.turn), sinT = Math.sin(view.turn), cosL = Math.cos(view.lift), sinL = Math.sin(view.lift);
  let extent = 0;
  const from = movie.space === "free" ? Math.max(0, frame - TRAIL) : 0, frames = movie.space === "free" ? [frame, from] : [0, frame];
  for (const each of frames) for (let i = 0; i < movie.n; i++) extent = Math.max(extent, ...movie.place(each, i).map(Math.abs));
  if (movie.space === "sphere") extent = 1;
  const scale = (0.44 * Math.min(width, height)) / (extent || 1);
  return {
    extent, scale,
    of([x, y, z]) {
      if (flat) return [width / 2 + scale * x, height / 2 - scale * y, 0];
      const right = -sinT * x + cosT * y, towards = cosT * x + sinT * y;
      return [width / 2 + scale * right, height / 2 - scale * (cosL * z - sinL * towards), (cosL * towards + sinL * z) / (extent || 1)];
    },
  };
}

function drawStage(canvas, movie, frame) {
  const { context, width, height } = sized(canvas);
  if (!context) return;
  const look = colours(), put = projection(movie, frame, width, height);
  context.clearRect(0, 0, width, height);
  context.lineWidth = 1;
  context.strokeStyle = look.rule;
  if (movie.space === "sphere") {
    context.beginPath();
    context.arc(width / 2, height / 2, put.scale, 0, 2 * Math.PI);
    const rings = movie.dim < 3 ? [] : [(a) => [Math.cos(a), Math.sin(a), 0], (a) => [Math.cos(a), 0, Math.sin(a)], (a) => [0, Math.cos(a), Math.sin(a)]];
    for (const ring of rings) for (let at = 0; at <= 48; at++) {
      const [x, y] = put.of(ring((at / 24) * Math.PI));
      if (at) context.lineTo(x, y);
      else context.moveTo(x, y);
    }
    context.stroke();
  } else {
    context.beginPath();
    for (const axis of [[1, 0, 0], [0, 1, 0], [0, 0, 1]].slice(0, Math.min(movie.dim, 3))) {
      const ends = [-1, 1].map((sign) => put.of(axis.map((entry) => sign * entry * put.extent)));
      context.moveTo(ends[0][0], ends[0][1]);
      context.lineTo(ends[1][0], ends[1][1]);
    }
    context.stroke();
  }
  const dots = [], radius = movie.n > 60 ? 3 : 4.5;
  for (let i = 0; i < movie.n; i++) {
    const here = put.of(movie.place(frame, i)), alpha = movie.dim > 2 ? 0.62 + 0.38 * Math.max(-1, here[2]) : 1;
    context.strokeStyle = `hsl(${hue(i)} 62% ${look.light}% / ${0.55 * alpha})`;
    context.lineWidth = 1.4;
    context.beginPath();
    for (let each = Math.max(0, frame - TRAIL); each <= frame; each++) {
      const [x, y] = put.of(movie.place(each, i));
      if (each === Math.max(0, frame - TRAIL)) context.moveTo(x, y);
      else context.lineTo(x, y);
    }
    context.stroke();
    dots.push({ i, x: here[0], y: here[1], depth: here[2], alpha });
  }
  for (const dot of [...dots].sort((a, b) => a.depth - b.depth)) {
    context.fillStyle = `hsl(${hue(dot.i)} 62% ${look.light}% / ${dot.alpha})`;
    context.beginPath();
    context.arc(dot.x, dot.y, radius, 0, 2 * Math.PI);
    context.fill();
    if (dot.i !== 0) continue;
    context.strokeStyle = look.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    context.arc(dot.x, dot.y, radius + 3, 0, 2 * Math.PI);
    context.stroke();
  }
  context.fillStyle = look.muted;
  context.font = "12px system-ui, sans-serif";
  if (movie.space !== "sphere") context.fillText(`axes end at ±${short(put.extent)}`, 10, height - 10);
  if (movie.system.plane) context.fillText(movie.system.plane.names.join(" · "), 10, 18);
  const near = pointer && pointer.canvas === canvas ? nearest(dots, pointer.x, pointer.y) : null;
  if (near) {
    const label = movie.system.tokens ? movie.system.tokens[near.i] : `token ${near.i + 1}`;
    context.fillStyle = look.ink;
    context.textAlign = near.x > width * 0.7 ? "right" : "left";
    context.fillText(label, near.x + (near.x > width * 0.7 ? -10 : 10), near.y - 8);
    context.textAlign = "left";
  }
}

/** @type {{canvas: HTMLCanvasElement, x: number, y: number} | null} */
let pointer = null;

function nearest(dots, x, y) {
  const order = dots.map((dot) => ({ ...dot, far: Math.hypot(dot.x - x, dot.y - y) })).sort((a, b) => a.far - b.far);
  return order.length && order[0].far < 16 ? order[0] : null;
}

const CHARTS = { spread: (one) => one.spread, rank: (one) => one.rank, clusters: (one) => one.clusters, energy: (one) => one.energy };

function drawChart(name, frame) {
  const canvas = element(name), { context, width, height } = sized(canvas);
  if (!context) return;
  const look = colours(), pick = CHARTS[name], log = name === "spread";
  const value = (one) => (log ? Math.log10(Math.max(pick(one), 1e-17)) : pick(one));
  const movies = [...(keptMovie ? [keptMovie] : []), movie];
  const all = movies.flatMap((each) => each.measures.map(value)).filter(Number.isFinite);
  context.clearRect(0, 0, width, height);
  if (!all.length) {
    context.fillStyle = look.muted;
    context.font = "12px system-ui, sans-serif";
    context.fillText(name === "energy" ? "known for live flows of one head" : "undefined: a token is at zero, or too many tokens", 4, height / 2);
    return;
  }
  let low = Math.min(...all), high = Math.max(...all);
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5, high + 0.5];
  const left = 44, x = (at) => left + (width - left - 4) * at / (movie.times.length - 1), y = (at) => 4 + (height - 8) * (high - at) / (high - low);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = look.muted;
  context.fillText(log ? short(10 ** high) : short(high), 0, 12);
  context.fillText(log ? short(10 ** low) : short(low), 0, height - 3);
  if (log && low < Math.log10(ROUNDING)) line(context, look.muted, [4, 3], [[left, y(Math.log10(ROUNDING))], [width, y(Math.log10(ROUNDING))]]);
  line(context, look.rule, [], [[x(frame), 0], [x(frame), height]]);
  for (const each of movies) {
    const points = each.measures.map((one, at) => [x(at * (movie.times.length - 1) / (each.times.length - 1)), y(value(one))]).filter((point) => Number.isFinite(point[1]));
    line(context, each === movie ? look.accent : look.muted, each === movie ? [] : [5, 3], points, 1.6);
  }
}

function line(context, colour, dash, points, width = 1) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  points.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
  context.setLineDash([]);
}

// ---- what is said ------------------------------------------------------------------------------------------------------

/** What the tokens do at a frame, in words. @param {Movie} movie @param {number} frame */
function said(movie, frame) {
  const now = movie.measures[frame], before = movie.measures[Math.max(0, frame - 8)], after = movie.measures[Math.min(movie.last, frame + 8)];
  const time = `At t = ${short(movie.times[frame])}`;
  if (!Number.isFinite(now.spread)) return `${time} a token is at zero, which has no direction.`;
  const groups = now.clusters === 1 ? "one cluster, " : Number.isFinite(now.clusters) ? `${now.clusters} clusters, ` : "";
  if (now.spread < 1e-9) return `${time} all ${movie.n} tokens point one way: they have met.`;
  const change = (after.spread - before.spread) / Math.max(now.spread, 1e-300), fast = 0.004;
  const does = change < -fast ? "draw together" : change > fast ? "move apart" : "hardly move against each other";
  let largest = 0;
  for (let i = 0; i < movie.n; i++) largest = Math.max(largest, Math.hypot(...movie.states[frame].subarray(i * movie.dim, (i + 1) * movie.dim)));
  const size = movie.space === "free" && movie.flow ? ` The largest norm is ${short(largest)}.` : "";
  const ended = movie.run && movie.run.ended && frame === movie.last ? ` The run ends here: ${movie.run.ended}.` : "";
  return `${time} the ${movie.n} tokens ${does}: ${groups}spread ${short(now.spread)}.${size}${ended}`;
}

function statementsAt(movie) {
  const table = movie.system.statements;
  if (!table) return null;
  const { beta, causal, weights, positions } = table.axes;
  if (!beta) return { rows: table.index[0].map((place) => table.rows[place]), beta: null };
  const settings = movie.settings, far = beta.map((value) => Math.abs(Math.log(value / settings.beta)));
  const at = [far.indexOf(Math.min(...far)), causal.indexOf(settings.mask === "causal"), weights.indexOf(settings.weights), Math.max(0, positions.indexOf(settings.positions === "on"))];
  const place = ((at[0] * causal.length + at[1]) * weights.length + at[2]) * positions.length + at[3];
  return { rows: table.index[place].map((row) => table.rows[row]), beta: beta[at[0]] };
}

const MARKS = { true: "✓", false: "✗", null: "?" };

function tellTheory() {
  const table = statementsAt(movie), list = element("statements");
  list.replaceChildren();
  if (!table) {
    element("theory-answer").textContent = "Not known: no constant flow stands behind these frames.";
    element("theory-where").textContent = "";
    return;
  }
  const applying = table.rows.filter((row) => row.applies), others = table.rows.filter((row) => !row.applies);
  element("theory-answer").textContent = applying.length === 0 ? "No theorem covers this."
    : `${applying.length === 1 ? "One statement applies" : `${applying.length} statements apply`}: all hypotheses that can be measured hold.`;
  const where = [];
  if (table.beta !== null && Math.abs(table.beta / movie.settings.beta - 1) > 1e-9) where.push(`Computed for β = ${short(table.beta)}, the nearest grid point.`);
  if (movie.flow && movie.n < movie.system.flow.start.length) where.push(`Computed for all ${movie.system.flow.start.length} tokens of the start.`);
  element("theory-where").textContent = where.join(" ");
  list.append(...applying.map((row) => statement(row, applying.length <= 2)));
  if (!others.length) return;
  const rest = document.createElement("details"), summary = document.createElement("summary");
  summary.textContent = `${others.length} statements do not apply`;
  rest.append(summary, ...others.map((row) => statement(row, false)));
  list.append(rest);
}

/** One statement, its prediction, and what was measured for each of its hypotheses. */
function statement(row, open) {
  const details = document.createElement("details"), summary = document.createElement("summary"), hypotheses = document.createElement("ul");
  const failing = row.hypotheses.filter((one) => one.holds === false).length;
  summary.textContent = `${row.applies ? "✓" : "✗"} ${row.title}${row.prediction ? `: ${row.prediction}.` : `: ${failing} of ${row.hypotheses.length} hypotheses fail`}`;
  details.open = open;
  for (const one of row.hypotheses) {
    const item = document.createElement("li");
    item.textContent = `${MARKS[String(one.holds)]} ${one.name}: ${one.measured}${one.margin === null ? "" : ` (margin ${one.margin})`}`;
    hypotheses.append(item);
  }
  details.append(summary, hypotheses);
  return details;
}

// ---- code that gives the same ------------------------------------------------------------------------------------------

const matrix = (rows) => JSON.stringify(rows);
const scaled = (matrices, factor) => matrices.map((rows) => rows.map((row) => row.map((entry) => factor * entry)));

/** The program, or the file, that makes what is seen. @param {Movie} movie @param {string} language */
function codeOf(movie, language) {
  const flow = movie.flow;
  if (!flow) return "";
  const rotary = flow.positions && flow.positions.kind === "rotary", beta = movie.settings.beta, qk = rotary ? flow.qk : scaled(flow.qk, beta);
  const scale = rotary ? beta * flow.positions.scale : 1, python = language === "python", times = JSON.stringify(movie.times);
  const lines = [];
  if (python) {
    const space = { sphere: "td.Sphere()", free: "td.Free()", ellipsoid: `td.Ellipsoid(${matrix(flow.space.metric)})` }[flow.space.kind];
    lines.push("import tokendynamics as td", "");
    if (rotary) lines.push(`positions = td.RotaryPositions(${matrix(flow.positions.query)}, ${matrix(flow.positions.key)}, scale=${scale}, frequencies=${JSON.stringify(flow.positions.frequencies)})`);
    else lines.push(`positions = ${flow.positions ? `td.AbsolutePositions(${matrix(flow.positions.table)})` : "None"}`);
    lines.push(`attention = td.Attention(${matrix(qk)}, ${matrix(flow.ov)}, causal=${flow.causal ? "True" : "False"}, weights="${flow.weights}", normalization="${flow.normalization}", positions=positions)`,
      `flow = td.Flow(attention, ${space})`, `start = ${matrix(flow.start)}`, `run = td.simulate(flow, start, ${times})`, "print(run.summary())");
  } else {
    lines.push(`title = "${movie.system.title.replace(/["\\]/g, "'")}"`, "", "[attention]", `qk = ${matrix(qk)}`, `ov = ${matrix(flow.ov)}`, `causal = ${flow.causal}`, `weights = "${flow.weights}"`, `normalization = "${flow.normalization}"`, "");
    if (rotary && (flow.positions.query.length > 1 || flow.positions.base === null)) return "";
    if (rotary) lines.push("[positions]", 'kind = "rotary"', `query = ${matrix(flow.positions.query[0])}`, `key = ${matrix(flow.positions.key[0])}`, `base = ${decimal(flow.positions.base)}`, `scale = ${decimal(scale)}`, "");
    else if (flow.positions) lines.push("[positions]", 'kind = "absolute"', `table = ${matrix(flow.positions.table)}`, "");
    lines.push("[space]", `kind = "${flow.space.kind}"`, ...(flow.space.metric ? [`metric = ${matrix(flow.space.metric)}`] : []), "", "[start]", `tokens = ${matrix(flow.start)}`, "", "[time]", `times = ${times}`, "");
    return lines.join("\n").replace(/(?<=[[,]\s*)-?\d+(?=[\],])/g, (whole) => `${whole}.0`);
  }
  return `${lines.join("\n")}\n`;
}

const decimal = (value) => (Number.isInteger(value) ? `${value}.0` : String(value));

function csvOf(movie) {
  const header = ["time", "token", ...Array.from({ length: movie.dim }, (_, c) => `feature_${c}`)];
  const rows = movie.states.flatMap((y, frame) => Array.from({ length: movie.n }, (_, i) => [movie.times[frame], i, ...y.subarray(i * movie.dim, (i + 1) * movie.dim)]));
  return [header, ...rows].map((row) => row.join(",")).join("\n");
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// ---- the sweep: the order parameter over the slider's range, computed while nothing else is to be done -----------------

const SWEEP = Array.from({ length: 25 }, (_, at) => 2 ** (-2 + at / 4));
/** @type {{key: string, values: number[], movie: Movie | null}} */
let sweep = { key: "", values: [], movie: null };

function sweepKey() {
  return JSON.stringify({ ...settings, beta: 0, frame: 0 });
}

/** One piece of the sweep; false where it is whole. */
function sweepOn() {
  if (!movie.live) return false;
  if (sweep.key !== sweepKey()) sweep = { key: sweepKey(), values: [], movie: null };
  if (sweep.values.length === SWEEP.length) return false;
  const times = [movie.times[0], movie.times[movie.times.length - 1]];
  if (!sweep.movie) {
    sweep.movie = new Movie({ ...settings, beta: SWEEP[sweep.values.length] });
    sweep.movie.times = times;
    if (sweep.movie.run) sweep.movie.run.times = times;
  }
  if (!sweep.movie.advance(4)) {
    const run = sweep.movie.run;
    sweep.values.push(run && run.ended ? NaN : sweep.movie.measures[sweep.movie.measures.length - 1].similarity);
    sweep.movie = null;
    drawSweep();
  }
  return true;
}

function drawSweep() {
  element("strip").hidden = !movie.live;
  const { context, width, height } = sized(element("sweep"));
  if (!context || !movie.live) return;
  const look = colours(), x = (beta) => (width - 12) * (Math.log2(beta) + 2) / 6 + 6, y = (value) => 3 + (height - 6) * (1 - value) / 2;
  context.clearRect(0, 0, width, height);
  line(context, look.rule, [], [[x(settings.beta), 0], [x(settings.beta), height]], 2);
  line(context, look.accent, [], sweep.values.map((value, at) => [x(SWEEP[at]), y(value)]).filter((point) => Number.isFinite(point[1])), 1.5);
  const whole = sweep.values.length === SWEEP.length;
  element("sweep-words").textContent = `Mean cosine at t = ${short(movie.times[movie.times.length - 1])} over β, from −1 to 1; you are at the bar.${whole ? "" : " Being computed …"}`;
}

// ---- the page ------------------------------------------------------------------------------------------------------------

/** @type {Settings} */
let settings;
/** @type {Movie} */
let movie;
/** @type {Movie | null} */
let keptMovie = null;
let playing = false, position = 0, former = 0, spoken = -Infinity;

/** Begin anew with other settings. @param {Partial<Settings>} changes */
function set(changes) {
  if (changes.preset !== undefined && changes.preset !== settings.preset) keptMovie = null;
  settings = changes.preset === undefined ? { ...settings, ...changes } : { ...usual(named(changes.preset)), ...changes };
  movie = new Movie(settings);
  movie.advance(30);
  if (changes.frame === undefined) position = Math.min(position, movie.live ? position : movie.last);
  show();
  tellTheory();
  remember();
}

function remember() {
  settings.frame = Math.floor(position);
  history.replaceState(null, "", address());
}

function show() {
  const flow = movie.system.flow;
  for (const radio of document.querySelectorAll('input[name="preset"]')) /** @type {any} */ (radio).checked = /** @type {any} */ (radio).value === settings.preset;
  element("sentence").textContent = [movie.system.sentence, movie.system.why_not_live].filter(Boolean).join(" ");
  element("live").hidden = !flow;
  element("has-positions").hidden = !(flow && flow.positions);
  element("beta").value = String(Math.log2(settings.beta));
  element("beta").setAttribute("aria-valuetext", `β = ${short(settings.beta)}`);
  element("beta-value").textContent = short(settings.beta);
  if (flow) element("tokens").max = String(flow.start.length);
  element("tokens").value = String(settings.tokens);
  element("tokens-value").textContent = String(movie.n);
  for (const name of ["mask", "weights", "positions"]) element(name).value = settings[name];
  element("time").max = String(movie.times.length - 1);
  element("kept-stage").hidden = !keptMovie;
  element("kept-words").textContent = keptMovie ? `Kept: ${keptMovie.words()}` : "";
  for (const id of ["copy-python", "copy-toml"]) element(id).hidden = !flow;
  draw();
  drawSweep();
}

function draw() {
  const frame = Math.min(Math.floor(position), movie.last);
  drawStage(element("stage"), movie, frame);
  if (keptMovie) drawStage(element("kept"), keptMovie, Math.min(Math.round(frame * (keptMovie.times.length - 1) / (movie.times.length - 1)), keptMovie.last));
  for (const name of Object.keys(CHARTS)) {
    drawChart(name, frame);
    element(`${name}-value`).textContent = short(CHARTS[name](movie.measures[frame]));
  }
  element("time").value = String(frame);
  element("time-value").textContent = `t = ${short(movie.times[frame])}`;
  element("time").setAttribute("aria-valuetext", `t = ${short(movie.times[frame])}`);
}

function speak() {
  const words = said(movie, Math.min(Math.floor(position), movie.last));
  if (element("summary").textContent !== words) element("summary").textContent = words;
  element("stage").setAttribute("aria-label", `Moving tokens. ${words}`);
}

function play(on) {
  if (on && position >= movie.times.length - 1) position = 0;
  playing = on;
  element("play").textContent = on ? "Pause" : "Play";
  if (!on) speak();
  if (!on) remember();
}

function step(now) {
  const passed = Math.min(now - former, 100);
  former = now;
  const computing = movie.advance(playing ? 6 : 12);
  if (keptMovie) keptMovie.advance(4);
  const before = Math.floor(position);
  if (playing) {
    position = Math.min(position + passed / 1000 * (movie.times.length - 1) / SECONDS, computing ? movie.last : movie.times.length - 1);
    if (!computing && position >= movie.last) {
      position = movie.last;
      play(false);
    }
  }
  if (Math.floor(position) !== before || computing || keptMovie) draw();
  else if (!computing) sweepOn();
  if (now - spoken > 2000) {
    spoken = now;
    speak();
  }
  requestAnimationFrame(step);
}

function tell(words) {
  element("copied").textContent = words;
}

async function copy(text, what) {
  if (!text) return tell(`${what}: this setting has no such form.`);
  try {
    await navigator.clipboard.writeText(text);
    tell(`${what} is in the clipboard.`);
  } catch {
    download(new Blob([text], { type: "text/plain" }), what === "The file" ? "explorer.toml" : "explorer.txt");
    tell(`${what} was saved: this browser gives no access to the clipboard.`);
  }
  return undefined;
}

function wire() {
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const radio of document.querySelectorAll('input[name="preset"]')) {
    radio.addEventListener("change", () => {
      position = 0;
      set({ preset: /** @type {any} */ (radio).value });
      if (!calm.matches) play(true);
    });
  }
  element("beta").addEventListener("input", () => set({ beta: Number((2 ** Number(element("beta").value)).toPrecision(6)) }));
  element("tokens").addEventListener("input", () => set({ tokens: Number(element("tokens").value) }));
  for (const name of ["mask", "weights", "positions"]) element(name).addEventListener("change", () => set({ [name]: element(name).value }));
  element("reset").addEventListener("click", () => {
    keptMovie = null;
    position = 0;
    set({ preset: settings.preset });
  });
  element("keep").addEventListener("click", () => {
    keptMovie = keptMovie ? null : movie;
    element("keep").textContent = keptMovie ? "Do not keep" : "Keep beside";
    show();
  });
  element("play").addEventListener("click", () => play(!playing));
  element("time").addEventListener("input", () => {
    play(false);
    position = Math.min(Number(element("time").value), movie.last);
    draw();
    speak();
    remember();
  });
  element("copy-python").addEventListener("click", () => copy(codeOf(movie, "python"), "The program"));
  element("copy-toml").addEventListener("click", () => copy(codeOf(movie, "toml"), "The file"));
  element("copy-link").addEventListener("click", () => {
    remember();
    copy(location.href, "The address");
  });
  element("save-png").addEventListener("click", () => element("stage").toBlob((blob) => blob && download(blob, "tokens.png")));
  element("save-csv").addEventListener("click", () => download(new Blob([csvOf(movie)], { type: "text/csv" }), "tokens.csv"));
  element("save-webm").addEventListener("click", film);
  const stage = element("stage");
  let drag = null;
  stage.addEventListener("pointerdown", (event) => {
    drag = [event.clientX, event.clientY];
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    pointer = { canvas: stage, x: event.offsetX, y: event.offsetY };
    if (drag) {
      view.turn -= (event.clientX - drag[0]) / 150;
      view.lift = Math.max(-1.5, Math.min(1.5, view.lift + (event.clientY - drag[1]) / 150));
      drag = [event.clientX, event.clientY];
    }
    draw();
  });
  stage.addEventListener("pointerup", () => { drag = null; });
  stage.addEventListener("pointerleave", () => { pointer = null; draw(); });
  stage.addEventListener("keydown", (event) => {
    const turn = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
    if (!turn) return;
    event.preventDefault();
    view.turn += turn[0];
    view.lift = Math.max(-1.5, Math.min(1.5, view.lift + turn[1]));
    draw();
  });
  addEventListener("resize", show);
  addEventListener("hashchange", open);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

function film() {
  const stage = element("stage");
  if (typeof MediaRecorder === "undefined" || !stage.captureStream) return tell("This browser records no film.");
  const recorder = new MediaRecorder(stage.captureStream(30), { mimeType: "video/webm" }), parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => download(new Blob(parts, { type: "video/webm" }), "tokens.webm");
  position = 0;
  play(true);
  recorder.start();
  tell("Recording until the end of the run …");
  const watch = setInterval(() => {
    if (playing) return;
    clearInterval(watch);
    recorder.stop();
    tell("The film was saved.");
  }, 200);
  return undefined;
}

function open() {
  const [wanted, problems] = fromAddress(location.hash);
  element("notice").hidden = problems.length === 0;
  element("notice").textContent = problems.length ? `The address of this page was not understood whole: ${problems.join("; ")}. The usual values stand instead.` : "";
  settings = wanted;
  movie = new Movie(settings);
  movie.advance(30);
  position = Math.min(settings.frame, movie.times.length - 1);
  while (movie.last < position && movie.advance(50));
  position = Math.min(position, movie.last);
  show();
  tellTheory();
  speak();
}

if (element("stage").getContext("2d")) {
  open();
  wire();
  play(!calm.matches && settings.frame === 0);
  requestAnimationFrame(step);
} else {
  element("notice").hidden = false;
  element("notice").textContent = `This browser draws nothing on a canvas. ${DATA.systems[0].sentence}`;
}

// For tests and for consoles: everything by one object, without waiting for frames.
/** @type {any} */ (window).tokendynamicsExplorer = {
  data: DATA,
  set(changes) { play(false); set(changes); while (movie.advance(1000)); draw(); speak(); },
  seek(frame) { play(false); while (movie.last < frame && movie.advance(1000)); position = Math.min(frame, movie.last); draw(); speak(); remember(); },
  state() {
    const frame = Math.min(Math.floor(position), movie.last);
    return { ...settings, frame, time: movie.times[frame], states: Array.from(movie.states[frame]), ...movie.measures[frame], ended: movie.run ? movie.run.ended : "", playing };
  },
  solve(flow, beta, times) {
    const run = new Run(flow, beta, times);
    while (!run.finished) run.next();
    return { states: run.states.map((y) => Array.from(y)), ended: run.ended, measures: run.states.map((y) => measured(y, run.field.n, run.field.dim)) };
  },
  sweep() { while (sweepOn()); return sweep.values; },
  code: (language) => codeOf(movie, language),
  csv: () => csvOf(movie),
};
