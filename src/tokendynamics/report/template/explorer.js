// The page: what is set, what is computed of it, and what is drawn and said. States of live systems come from `Run`.

/**
 * @typedef {{name: string, measured: string, margin: string | null, holds: boolean | null}} Hypothesis
 * @typedef {{title: string, applies: boolean, prediction: string | null, rate?: number[][], of_beta?: boolean, hypotheses: Hypothesis[]}} Row
 * @typedef {{title: string, outcome: string, words: string}} Certified
 * @typedef {{axes: {beta?: number[], causal: boolean[], weights: string[], positions: boolean[]}, rows: (Omit<Row, "hypotheses"> & {hypotheses: number[]})[], hypotheses: Hypothesis[], index: number[][], elsewhere: number, certified?: Certified[]}} Table
 * @typedef {{name: string, title: string, sentence: string, why_not_live: string, flow: System | null, beta: number, times: number[],
 *   clock?: string | null, extent?: number, why_no_statements?: string, plane: {names: string[], vectors: number[][]} | null, frames: number[][][] | null, sweep?: (number | null)[] | null, statements: Table | null, space?: string,
 *   certificates?: {beta: number[], certified: Certified[], index: number[][]} | null,
 *   tokens?: string[], added?: string[], measures?: {spread: number | null, rank: number | null, clusters: number | null, added?: (number | null)[]}[]}} Shown
 * @typedef {{preset: string, beta: number, tokens: number, mask: string, weights: string, positions: string, frame: number}} Settings
 * @typedef {{spread: number, similarity: number, rank: number, clusters: number, energy: number, added?: (number | null)[]}} Measures
 */

/** @type {{version: string, systems: Shown[], tour: {text: string, preset: string, control: string, measure: string}[]}} */
const DATA = JSON.parse(element("explorer-data").textContent);
/** From the first frame to the last. */
const SECONDS = 12;
/** Frames that a trail goes back. */
const TRAIL = 45;
const VIEW = { turn: 0.7, lift: 0.35 };
/** Of a spread: below it nothing is data. */
const ROUNDING = 1e-12;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @param {string} name */
const named = (name) => DATA.systems.find((system) => system.name === name);

// ---- settings, and the address that holds them -------------------------------------------------------------------

/** @param {Shown} system @returns {Settings} */
function usual(system) {
  const flow = system.flow;
  return {
    preset: system.name, beta: system.beta, tokens: flow ? flow.start.length : 0, mask: flow && flow.causal ? "causal" : "full",
    weights: flow ? flow.weights : "softmax", positions: flow && flow.positions ? "on" : "off", frame: 0,
  };
}

/** From where to where numbers can be set. @param {Shown} system @returns {Record<string, [number, number]>} */
function ranges({ beta, flow, times }) {
  const all = flow ? flow.start.length : 0;
  return { beta: [Math.min(0.25, beta), Math.max(16, beta)], tokens: [Math.min(2, all), all], frame: [0, times.length - 1], turn: [-10, 10], lift: [-1.5, 1.5] };
}

/** Settings of an address, what in it could not be taken, the view, and the setting kept beside. @param {string} fragment
 * @returns {[Settings, string[], View, Settings | null]} */
function fromAddress(fragment) {
  const asked = new URLSearchParams(fragment.replace(/^#/, ""));
  /** @type {string[]} */
  const problems = [];
  const wanted = named(asked.get("preset") ?? DATA.systems[0].name), system = wanted || DATA.systems[0];
  if (!wanted) problems.push(`the start “${(asked.get("preset") || "").slice(0, 20)}” is not known`);
  const settings = /** @type {Settings & Record<string, any>} */ (usual(system)), most = ranges(system);
  const seen = /** @type {View & Record<string, number>} */ ({ ...VIEW });
  /** @type {Settings | null} */
  let kept = null;
  for (const [name, text] of asked) {
    if (name === "preset") continue;
    if (name !== "frame" && Object.hasOwn({ ...settings, kept }, name) && !system.flow) problems.push(`${name} cannot be set where saved states are played`);
    else if (name === "positions" && text === "on" && !system.flow?.positions) problems.push("this start has no positions");
    else if (Object.hasOwn(most, name)) {
      const value = text.trim() === "" ? NaN : Number(text), [low, high] = most[name];
      const whole = name === "tokens" || name === "frame";
      if (value >= low && value <= high && (!whole || Number.isInteger(value))) (Object.hasOwn(seen, name) ? seen : settings)[name] = value;
      else problems.push(`${name} = ${text.slice(0, 20)} is no ${whole ? "whole " : ""}number from ${short(low)} to ${short(high)}`);
    } else if (["mask", "weights", "positions"].includes(name)) {
      if ([...element(name).options].some((option) => option.value === text)) settings[name] = text;
      else problems.push(`${name} = ${text.slice(0, 20)} is not known`);
    } else if (name === "kept") {
      const [beside, wrong] = fromAddress(`preset=${system.name}&${text}`);
      kept = { ...beside, preset: system.name };
      problems.push(...wrong.map((problem) => `kept beside: ${problem}`));
    } else problems.push(`${name.slice(0, 20)} is no setting`);
  }
  return [settings, problems, seen, kept];
}

function address() {
  const { preset, frame } = settings, held = movie.live ? settings : { preset, frame };
  const query = (/** @type {Record<string, unknown>} */ values) => new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)]));
  const asked = query(held), turn = Math.atan2(Math.sin(view.turn), Math.cos(view.turn));
  if (view.turn !== VIEW.turn || view.lift !== VIEW.lift) Object.entries({ turn, lift: view.lift }).forEach(([name, value]) => asked.set(name, value.toFixed(3)));
  if (keptMovie) asked.set("kept", String(query(keptMovie.settings)));
  return `#${asked}`;
}

// ---- a movie: the frames of one setting and what is measured of them ---------------------------------------------

class Movie {
  /** @param {Settings} settings */
  constructor(settings) {
    this.settings = { ...settings };
    const system = named(settings.preset);
    if (!system) throw new Error(`no system is named ${settings.preset}`);
    /** @type {Shown} */
    this.system = system;
    this.times = this.system.times;
    this.live = Boolean(this.system.flow);
    /** @type {System | null} */
    const flow = this.system.flow ? { ...this.system.flow, causal: settings.mask === "causal", weights: settings.weights,
      positions: settings.positions === "on" ? this.system.flow.positions : null,
      start: this.system.flow.start.slice(0, settings.tokens) } : null;
    this.flow = flow;
    this.run = flow ? new Run(flow, settings.beta, this.times) : null;
    const frames = this.system.frames || [], first = flow ? flow.start : frames[0];
    this.states = this.run ? this.run.states : frames.map((frame) => Float64Array.from(frame.flat()));
    this.n = first.length;
    this.dim = first[0].length;
    /** @type {Measures[]} */
    this.measures = [];
    // Frames are drawn in three directions; what is measured is measured by Python in all.
    if (!this.run) this.measures = (this.system.measures || []).map((one) => ({ spread: one.spread ?? NaN, similarity: 1 - (one.spread ?? NaN), rank: one.rank ?? NaN, clusters: one.clusters ?? NaN, energy: NaN, added: one.added }));
  }

  /** Compute for some milliseconds; true where something is left. @param {number} milliseconds */
  advance(milliseconds) {
    if (!this.run || this.run.finished) return false;
    const until = performance.now() + milliseconds;
    while (!this.run.finished && performance.now() < until) this.run.next(until);
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

  /** Three coordinates of a token, between two frames on the line that joins them. @param {number} frame @param {number} i @returns {Place} */
  place(frame, i) {
    const before = Math.min(Math.floor(frame), this.last), after = Math.min(before + 1, this.last), share = frame - before, at = i * this.dim;
    const y = this.states[before], z = this.states[after], plane = this.flow ? this.system.plane : null;
    const entry = (/** @type {number} */ c) => (c < this.dim ? y[at + c] + (share > 0 ? share * (z[at + c] - y[at + c]) : 0) : 0);
    if (!plane) return [entry(0), entry(1), entry(2)];
    const [a, b, c] = plane.vectors.map((vector) => vector.reduce((sum, weight, feature) => sum + weight * entry(feature), 0));
    return [a, b, c ?? 0];
  }

  /** Whether each time is the same multiple of the one before. */
  get logarithmic() {
    const [, one, two] = this.times, last = this.times.length - 1;
    return last > 2 && one > 0 && Math.abs(this.times[last] / this.times[last - 1] / (two / one) - 1) < 1e-6;
  }

  /** When a frame is, in words. @param {number} frame */
  when(frame) {
    return this.system.clock ? `${this.system.clock} ${short(this.times[frame])}` : `t = ${short(this.times[frame])}`;
  }

  /** What a canvas shows at a frame, which may lie between two. @param {number} frame @returns {Scene} */
  scene(frame) {
    const sphere = this.space === "sphere", free = this.space === "free";
    let extent = sphere ? 1 : this.system.extent || 0;
    const frames = extent ? [] : free ? [frame, Math.max(0, frame - TRAIL)] : [0, this.last];
    for (const one of frames) for (let i = 0; i < this.n; i++) extent = Math.max(extent, ...this.place(one, i).map(Math.abs));
    return {
      n: this.n, flat: this.dim < 3, sphere, extent, centre: [0, 0, 0], trail: TRAIL, frame, ringed: 0, names: this.system.plane ? this.system.plane.names : [],
      place: (one, i) => this.place(one, i),
      label: (i) => (this.system.tokens ? this.system.tokens[i] : `token ${i + 1}`),
    };
  }

  /** Whether tokens that point one way are in one place: elsewhere angles say nothing of distances. */
  get round() {
    return this.space === "sphere" || this.space === "ellipsoid";
  }

  get space() {
    return this.flow ? this.flow.space.kind : this.system.space || "free";
  }

  words() {
    const { beta, mask, weights, positions } = this.settings, has = this.system.flow && this.system.flow.positions;
    return `β = ${short(beta)}, ${mask} mask, ${weights} weights${has ? (positions === "on" ? ", with positions" : ", without positions") : ""}, ${this.n} tokens`;
  }
}

// ---- drawing: the tokens, and what is measured of them over time ---------------------------------------------------

/** @type {View} */
const view = { ...VIEW };
/** @param {number} turn @param {number} lift */
function turnBy(turn, lift) {
  view.turn += turn;
  view.lift = Math.max(-1.5, Math.min(1.5, view.lift + lift));
}
/** @type {{canvas: HTMLCanvasElement, x: number, y: number} | null} */
let pointer = null;

/** @param {HTMLCanvasElement} canvas @param {Movie} movie @param {number} frame */
function drawStage(canvas, movie, frame) {
  const { context, width, height } = sized(canvas);
  if (!context) return;
  const look = colours(), scene = movie.scene(frame), dots = drawScene(context, look, width, height, scene, view);
  const near = pointer && pointer.canvas === canvas ? nearest(dots, pointer.x, pointer.y) : null;
  if (near) drawLabel(context, look, width, near, scene.label(near.i));
}

/** @type {Record<string, (one: Measures) => number>} */
const CHARTS = { spread: (one) => one.spread, rank: (one) => one.rank, clusters: (one) => one.clusters, energy: (one) => one.energy };
(DATA.systems[0].added || []).forEach((_, place) => { CHARTS[`added-${place}`] = (one) => (one.added || [])[place] ?? NaN; });

/** @param {string} name */
function drawChart(name) {
  const { context, width, height } = sized(element(name));
  if (!context) return;
  const look = colours(), pick = CHARTS[name], log = name === "spread", longest = movie.times.length - 1;
  const value = (/** @type {Measures} */ one) => (log ? Math.log10(Math.max(pick(one), 1e-17)) : pick(one));
  const movies = [...(keptMovie ? [keptMovie] : []), movie];
  const all = movies.flatMap((one) => one.measures.map(value)).filter(Number.isFinite);
  context.fillStyle = look.muted;
  context.font = `${0.69 * look.rem}px system-ui, sans-serif`;
  element(name).style.backgroundSize = all.length ? "" : "0";
  if (!all.length) {
    context.fillText(name === "energy" ? "known for live flows of one head" : movie.run ? (movie.n < 2 ? "undefined for one token" : "undefined: a token is at zero") : "undefined, or not measured", 0, height / 2);
    return;
  }
  let low = Math.min(...all), high = Math.max(...all);
  const flat = high - low < 1e-9 * Math.max(1, Math.abs(high)), label = (/** @type {number} */ at, /** @type {number} */ down) => context.fillText(short(log ? 10 ** at : at), 0, down);
  if (flat) {
    label(high, height / 2 + 4);
    [low, high] = [low - 0.5, high + 0.5];
  } else {
    label(high, 0.75 * look.rem);
    label(low, height - 3);
  }
  const left = 4.5 * look.rem, x = (/** @type {number} */ at) => left + ((width - left - 2) * at) / longest, y = (/** @type {number} */ at) => 4 + ((height - 8) * (high - at)) / (high - low);
  const floor = Math.log10(ROUNDING);
  if (log && low < floor) line(context, look.muted, [4, 3], [[left, y(floor)], [width, y(floor)]]);
  for (const one of movies) {
    const points = one.measures.map((measures, at) => [x((at * longest) / (one.times.length - 1)), y(value(measures))]).filter((point) => Number.isFinite(point[1]));
    line(context, one === movie ? look.accent : look.muted, one === movie ? [] : [5, 3], points, 1.6);
  }
}

// ---- what is said ------------------------------------------------------------------------------------------------------

/** What the tokens do at a frame, in words. @param {Movie} movie @param {number} frame */
function said(movie, frame) {
  const now = movie.measures[frame], before = movie.measures[Math.max(0, frame - 8)], after = movie.measures[Math.min(movie.last, frame + 8)];
  const time = `At ${movie.when(frame)}`;
  if (movie.n < 2) return `${time} there is one token: a spread and clusters need two.`;
  if (!Number.isFinite(now.spread)) return `${time} ${movie.run ? "a token is at zero, which has no direction" : "the spread is not known"}.`;
  const groups = now.clusters === 1 ? "one cluster, " : Number.isFinite(now.clusters) ? `${now.clusters} clusters, ` : "";
  let largest = 0;
  for (let i = 0; i < movie.n; i++) largest = Math.max(largest, Math.hypot(...movie.states[frame].subarray(i * movie.dim, (i + 1) * movie.dim)));
  const size = movie.space === "free" && movie.flow ? ` The largest norm is ${short(largest)}.` : "";
  const ended = movie.run && movie.run.ended && frame === movie.last ? ` The run ends here: ${movie.run.ended}.` : "";
  if (now.spread < 1e-9) return `${time} all ${movie.n} tokens point one way${movie.round ? ": they have met" : ""}.${size}${ended}`;
  const change = (after.spread - before.spread) / Math.max(now.spread, 1e-300), fast = 0.004;
  const does = change < -fast ? "draw together" : change > fast ? "move apart" : "hardly move against each other";
  return `${time} the ${movie.round ? "" : "directions of the "}${movie.n} tokens ${does}: ${groups}spread ${rounded(now.spread)}.${size}${ended}`;
}

/** What has been seen since the start, beside which a prediction stands. @param {Movie} movie @param {number} frame */
function seen(movie, frame) {
  const from = movie.measures[0], to = movie.measures[frame], span = `from ${movie.when(0)} to ${short(movie.times[frame])}`;
  if (frame === 0) return "Seen: nothing yet.";
  if (!Number.isFinite(from.spread + to.spread)) return `Seen: ${span} no change of the spread, which is undefined at ${Number.isFinite(from.spread) ? "the later" : "the first"} of these times.`;
  const first = rounded(from.spread), last = rounded(to.spread);
  const spread = first === last ? `stayed at ${last}` : `${to.spread > from.spread ? "rose" : "fell"} from ${first} to ${last}`;
  const same = from.clusters === to.clusters ? "the number of clusters is the same" : `clusters went from ${from.clusters} to ${to.clusters}`;
  return `Seen: ${span} the spread ${spread}${Number.isFinite(from.clusters + to.clusters) ? `; ${same}` : ""}.`;
}

/** A spread; what is within rounding is 0. @param {number} value */
const rounded = (value) => (value < ROUNDING ? "0" : short(value));

/** A rate whose terms Python gives: the sum of c·exp(−kβ). @param {number[][]} terms @param {number} beta */
const rateOf = (terms, beta) => terms.reduce((sum, [c, k]) => sum + c * Math.exp(-k * beta), 0);

/** A number times a variable; 1 is not written. @param {string} written @param {string} variable */
const times = (written, variable) => (written === "1" ? variable : `${written} ${variable}`);

/** A row whose rate is that at β. @param {Row} row @param {number} beta @returns {Row} */
const filled = (row, beta) => (row.rate && row.prediction ? { ...row, prediction: row.prediction.replace("{rate} t", times(short(rateOf(row.rate, beta)), "t")) } : row);

/** Where a setting stands in a grid of Python's, β being the nearest of its values. @param {Table["axes"]} axes @param {number[]} betas @param {Settings} settings */
function placeIn({ causal, weights, positions }, betas, settings) {
  const far = betas.map((value) => Math.abs(Math.log(value / settings.beta))), beta = Math.max(0, far.indexOf(Math.min(...far)));
  const at = [causal.indexOf(settings.mask === "causal"), weights.indexOf(settings.weights), Math.max(0, positions.indexOf(settings.positions === "on"))];
  return { place: ((beta * causal.length + at[0]) * weights.length + at[1]) * positions.length + at[2], beta: betas[beta] ?? settings.beta };
}

/** The rows at a setting: where they depend on β in more than a rate, for the nearest grid point. @param {Movie} movie */
function statementsAt(movie) {
  const table = movie.system.statements;
  if (!table) return null;
  const row = (/** @type {number} */ place) => ({ ...table.rows[place], hypotheses: table.rows[place].hypotheses.map((one) => table.hypotheses[one]) });
  if (!table.axes.beta) return { rows: table.index[0].map(row), beta: movie.settings.beta, elsewhere: table.elsewhere };
  const { place, beta } = placeIn(table.axes, table.axes.beta, movie.settings);
  return { rows: table.index[place].map((one) => filled(row(one), movie.settings.beta)), beta, elsewhere: table.elsewhere };
}

/** What Python certified of a run with this setting, or with the nearest β of its grid; of all tokens, so that fewer have none.
 * @param {Movie} movie @returns {{certified: Certified[], beta: number}} */
function certificatesAt(movie) {
  const { statements, certificates, flow } = movie.system, settings = movie.settings;
  if (statements && statements.certified) return { certified: statements.certified, beta: settings.beta };
  if (!statements || !certificates || !flow || movie.n < flow.start.length) return { certified: [], beta: settings.beta };
  const { place, beta } = placeIn(statements.axes, certificates.beta, settings);
  return { certified: certificates.index[place].map((one) => certificates.certified[one]), beta };
}

/** Whether a value of β is the one that is set. @param {number} beta */
const isSet = (beta) => Math.abs(beta / movie.settings.beta - 1) < 1e-9;

/** @type {Record<string, string>} */
const MARKS = { true: "✓", false: "✗", null: "?" };

function tellTheory() {
  const table = statementsAt(movie), list = element("statements");
  list.replaceChildren();
  element("certified").hidden = true;
  element("cited").hidden = !table || !table.rows.length;
  if (!table) {
    element("theory-answer").textContent = movie.system.why_no_statements || "";
    element("theory-where").textContent = "";
    return;
  }
  element("theory").classList.toggle("uncovered", !table.rows.some((row) => row.applies));
  const applying = table.rows.filter((row) => row.applies), others = table.rows.filter((row) => !row.applies);
  const measured = applying.filter((row) => row.hypotheses.every((one) => one.holds !== null)), assumed = applying.length - measured.length;
  const whole = measured.length === 1 ? "One statement applies: all its hypotheses hold." : measured.length ? `${measured.length} statements apply: all their hypotheses hold.` : "";
  const noun = measured.length ? "more" : assumed === 1 ? "statement" : "statements";
  const further = assumed ? `${assumed === 1 ? "One" : assumed} ${noun} ${assumed === 1 ? "applies" : "apply"} if what cannot be measured (?) holds.` : "";
  element("theory-answer").textContent = applying.length === 0 ? "No theorem covers this." : [whole, further].filter(Boolean).join(" ");
  const all = movie.system.flow ? movie.system.flow.start.length : movie.n;
  element("theory-where").textContent = movie.n < all ? `Computed for all ${all} tokens of the start; nothing is certified of fewer.` : "";
  list.append(...applying.map((row) => statement(row, applying.length === 1, table.beta)));
  element("certified").hidden = !list.querySelector(".certificate");
  if (table.elsewhere) element("theory-where").append(` ${table.elsewhere} more statements are about flows of another kind.`);
  if (!others.length) return;
  const rest = document.createElement("details"), summary = document.createElement("summary");
  summary.textContent = `${others.length} statements do not apply`;
  rest.append(summary, ...others.map((row) => statement(row, false, table.beta)));
  list.append(rest);
}

/** One statement, its prediction, and what was measured for each of its hypotheses, at a β if that matters.
 * @param {Row} row @param {boolean} open @param {number} at */
function statement(row, open, at) {
  const details = document.createElement("details"), summary = document.createElement("summary"), hypotheses = document.createElement("ul");
  const failing = row.hypotheses.filter((one) => one.holds === false).length;
  const assumed = row.applies && row.hypotheses.some((one) => one.holds === null);
  summary.textContent = `${MARKS[String(assumed ? null : row.applies)]} ${row.title}`;
  const prediction = document.createElement("p");
  prediction.textContent = row.prediction ? `Predicts: ${row.prediction}.` : `${failing} of ${row.hypotheses.length} hypotheses fail.`;
  if (row.of_beta && !isSet(at)) prediction.append(` Computed for β = ${short(at)}, the nearest grid point.`);
  details.open = open;
  for (const one of row.hypotheses) {
    const item = document.createElement("li");
    item.textContent = `${MARKS[String(one.holds)]} ${one.name}: ${one.measured}${one.margin === null ? "" : ` (margin ${one.margin})`}`;
    hypotheses.append(item);
  }
  details.append(summary, hypotheses);
  const item = document.createElement("div");
  item.className = row.applies ? "applies" : "quiet";
  item.append(details, prediction);
  const { certified, beta } = certificatesAt(movie), one = row.applies && certified.find(({ title }) => title === row.title);
  if (!one) return item;
  const words = document.createElement("p"), nearest = isSet(beta) ? "" : ` Computed for the nearest grid point (β = ${short(beta)}).`;
  words.className = `certificate ${one.outcome}`;
  words.textContent = `Certificate: ${one.words}.${nearest}`;
  item.append(words);
  return item;
}

// ---- the sweep: the order parameter over the slider's range. Python's of a start stands on the page; with any other
// control it is computed while nothing else is to be done. ------------------------------------------------------------

const SWEPT = 25;
/** One of the values of β that are swept. @param {number} at */
function sweptBeta(at) {
  const [low, high] = ranges(movie.system).beta;
  return low * (high / low) ** (at / (SWEPT - 1));
}

/** @type {{key: string, values: number[], movie: Movie | null, by: string}} */
let sweep = { key: "", values: [], movie: null, by: "" };

/** What a sweep is of. @param {Settings} one */
const sweepKey = (one) => JSON.stringify({ ...one, beta: 0, frame: 0 });

/** Begin the sweep of other settings. */
function sweepAnew() {
  const key = sweepKey(settings), ready = key === sweepKey(usual(movie.system)) && movie.system.sweep;
  if (sweep.key !== key) sweep = { key, values: (ready || []).map((one) => one ?? NaN), movie: null, by: ready ? "Python, when this page was made" : "this page" };
}

/** One piece of the sweep; false where it is whole. */
function sweepOn() {
  if (!movie.live) return false;
  sweepAnew();
  if (sweep.values.length === SWEPT) return false;
  const times = [movie.times[0], movie.times[movie.times.length - 1]];
  if (!sweep.movie) {
    sweep.movie = new Movie({ ...settings, beta: sweptBeta(sweep.values.length) });
    sweep.movie.times = times;
    if (sweep.movie.run) sweep.movie.run.times = times;
  }
  if (!sweep.movie.advance(4)) {
    const run = sweep.movie.run;
    sweep.values.push(run && run.ended ? NaN : sweep.movie.measures[sweep.movie.last].similarity);
    sweep.movie = null;
    drawSweep();
  }
  return true;
}

function drawSweep() {
  element("strip").hidden = !movie.live;
  const { context, width, height } = sized(element("sweep"));
  if (!context || !movie.live) return;
  sweepAnew();
  const [low, high] = ranges(movie.system).beta, x = (/** @type {number} */ beta) => (width - 12) * Math.log(beta / low) / Math.log(high / low) + 6, look = colours(), y = (/** @type {number} */ value) => 3 + (height - 6) * (1 - value) / 2;
  line(context, look.rule, [], [[x(settings.beta), 0], [x(settings.beta), height]], 2);
  line(context, look.accent, [], sweep.values.map((value, at) => [x(sweptBeta(at)), y(value)]).filter((point) => Number.isFinite(point[1])), 1.5);
  element("sweep-words").textContent = `Mean cosine of all pairs at t = ${short(movie.times[movie.times.length - 1])} for β from ${short(low)} to ${short(high)}, on a scale from −1 to 1; the bar marks the β that is set. ${sweep.values.length < SWEPT ? "Being computed …" : sweep.values.some(Number.isFinite) ? `Computed by ${sweep.by}.` : "No run reaches that time."}`;
}

// ---- the page ------------------------------------------------------------------------------------------------------------

let settings = usual(DATA.systems[0]);
/** @type {Movie} */
let movie;
/** @type {Movie | null} */
let keptMovie = null;
let playing = false, position = 0, former = 0, spoken = -Infinity;

/** Begin anew with other settings. @param {Partial<Settings>} changes */
function set(changes) {
  if (changes.preset !== undefined && changes.preset !== settings.preset) keptMovie = null;
  settings = changes.preset === undefined ? { ...settings, ...changes } : { ...usual(named(changes.preset) || DATA.systems[0]), ...changes };
  movie = new Movie(settings);
  movie.advance(30);
  if (changes.frame === undefined) position = Math.min(position, movie.live ? position : movie.last);
  show();
  tellTheory();
  tellTour();
  remember();
}

function remember() {
  settings.frame = Math.floor(position);
  history.replaceState(null, "", address());
}

function show() {
  const flow = movie.system.flow;
  for (const radio of document.querySelectorAll('input[name="preset"]')) /** @type {any} */ (radio).checked = /** @type {any} */ (radio).value === settings.preset;
  // What a sentence claims is claimed of the settings that a start has, and of no others.
  const { frame, ...start } = usual(movie.system), same = Object.entries(start).every(([name, value]) => settings[/** @type {keyof Settings} */ (name)] === value);
  const sentence = movie.system.sentence && !same ? `As it starts, before a control is changed: ${movie.system.sentence}` : movie.system.sentence;
  element("sentence").textContent = [sentence, movie.system.why_not_live].filter(Boolean).join(" ");
  element("live").hidden = !flow;
  element("has-positions").hidden = !(flow && flow.positions);
  const { beta, tokens } = ranges(movie.system);
  [element("beta").min, element("beta").max] = beta.map((value) => String(Math.log2(value)));
  element("beta").value = String(Math.log2(settings.beta));
  element("beta").setAttribute("aria-valuetext", `β = ${short(settings.beta)}`);
  element("beta-value").textContent = short(settings.beta);
  [element("tokens").min, element("tokens").max] = tokens.map(String);
  element("tokens").value = String(settings.tokens);
  element("tokens-value").textContent = String(movie.n);
  for (const name of ["mask", "weights", "positions"]) element(name).value = /** @type {any} */ (settings)[name];
  element("time").max = String(movie.times.length - 1);
  element("log-time").hidden = !movie.logarithmic;
  element("turning").hidden = movie.dim < 3;
  element("keep").textContent = keptMovie ? "Stop comparing" : "Keep to compare";
  element("kept-stage").hidden = !keptMovie;
  element("kept-words").textContent = keptMovie ? `Kept, dashed below: ${keptMovie.words()}` : "";
  element("now-words").hidden = !keptMovie;
  element("now-words").textContent = `Now: ${movie.words()}`;
  for (const id of ["copy-python", "copy-toml"]) element(id).hidden = !flow;
  draw();
  drawSweep();
}

/** Draw the tokens, their numbers (`much` 1), and all that is measured over time (2). */
function draw(much = 2) {
  const at = Math.min(position, movie.last), frame = Math.floor(at);
  drawStage(element("stage"), movie, at);
  if (keptMovie) drawStage(element("kept"), keptMovie, Math.min((at * (keptMovie.times.length - 1)) / (movie.times.length - 1), keptMovie.last));
  if (!much) return;
  element("charts").style.setProperty("--at", position / (movie.times.length - 1));
  for (const [name, pick] of Object.entries(CHARTS)) {
    if (much > 1) drawChart(name);
    const value = pick(movie.measures[frame]);
    element(`${name}-value`).textContent = name === "spread" ? rounded(value) : short(value);
  }
  element("time").value = String(frame);
  element("time-value").textContent = movie.when(frame);
  element("time").setAttribute("aria-valuetext", movie.when(frame));
}

function speak() {
  const frame = Math.min(Math.floor(position), movie.last), words = said(movie, frame);
  element("theory-seen").textContent = seen(movie, frame);
  if (element("summary").textContent !== words) element("summary").textContent = words;
  element("stage").setAttribute("aria-label", `Moving tokens. ${words}`);
}

/** @param {boolean} on */
function play(on) {
  if (on && position >= movie.times.length - 1) position = 0;
  playing = on;
  element("play").textContent = on ? "Pause" : "Play";
  if (!on) speak();
  if (!on) remember();
}

/** @param {number} now */
function step(now) {
  const passed = Math.min(now - former, 100);
  former = now;
  const known = movie.last + (keptMovie ? keptMovie.last : 0), before = position;
  const computing = movie.advance(playing ? 6 : 12);
  if (keptMovie) keptMovie.advance(4);
  const grown = movie.last + (keptMovie ? keptMovie.last : 0) > known;
  if (playing) {
    position = Math.min(position + passed / 1000 * (movie.times.length - 1) / SECONDS, computing ? movie.last : movie.times.length - 1);
    if (!computing && position >= movie.last) {
      position = movie.last;
      play(false);
    }
  }
  if (position !== before || grown) draw(grown ? 2 : Number(Math.floor(position) !== Math.floor(before)));
  if (!computing && position === before) sweepOn();
  if (!computing && grown) tellTour();
  if (now - spoken > 2000) {
    spoken = now;
    speak();
  }
  requestAnimationFrame(step);
}

function wire() {
  element("controls").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
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
    show();
    remember();
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
  element("save-png").addEventListener("click", () => element("stage").toBlob((/** @type {Blob | null} */ blob) => blob && download(blob, "tokens.png")));
  element("save-csv").addEventListener("click", () => download(new Blob([csvOf(movie)], { type: "text/csv" }), "tokens.csv"));
  element("save-webm").addEventListener("click", film);
  const stage = element("stage");
  /** @type {[number, number] | null} */
  let drag = null;
  stage.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    drag = [event.clientX, event.clientY];
    stage.setPointerCapture(event.pointerId);
    pointer = { canvas: stage, x: event.offsetX, y: event.offsetY };
    draw(0);
  });
  stage.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    pointer = { canvas: stage, x: event.offsetX, y: event.offsetY };
    if (drag) {
      turnBy((drag[0] - event.clientX) / 150, (event.clientY - drag[1]) / 150);
      drag = [event.clientX, event.clientY];
    }
    draw(0);
  });
  stage.addEventListener("pointerup", () => {
    drag = null;
    remember();
  });
  stage.addEventListener("pointerleave", (/** @type {PointerEvent} */ event) => {
    if (event.pointerType === "touch") return; // the label of a token that was touched stays
    pointer = null;
    draw(0);
  });
  stage.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    /** @type {Record<string, [number, number]>} */
    const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }, turn = turns[event.key];
    if (!turn) return;
    event.preventDefault();
    turnBy(...turn);
    draw();
    remember();
  });
  addEventListener("resize", show);
  wireGlossary();
  wireTour();
  element("save-svg").addEventListener("click", () => download(new Blob([svgOf(movie, position)], { type: "image/svg+xml" }), "tokens.svg"));
  addEventListener("hashchange", open);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

function open() {
  const [wanted, problems, looked, kept] = fromAddress(location.hash);
  Object.assign(view, looked);
  element("notice").hidden = problems.length === 0;
  element("notice").textContent = problems.length ? `The address of this page was not understood whole: ${problems.join("; ")}. The usual values stand instead.` : "";
  settings = wanted;
  movie = new Movie(settings);
  keptMovie = kept && new Movie(kept);
  movie.advance(30);
  position = Math.min(settings.frame, movie.times.length - 1);
  while (movie.last < position && movie.advance(50));
  position = Math.min(position, movie.last);
  show();
  tellTheory();
  speak();
}

if (element("stage").getContext("2d")) {
  element("still").hidden = true;
  element("columns").hidden = false;
  open();
  wire();
  play(!calm.matches && settings.frame === 0);
  requestAnimationFrame(step);
} else {
  element("notice").hidden = false;
  element("notice").textContent = `This browser draws nothing on a canvas: nothing moves here. ${DATA.systems[0].sentence}`;
}

// For tests and for consoles: everything by one object, without waiting for frames.
/** @type {any} */ (window).tokendynamicsExplorer = {
  data: DATA,
  /** @param {Partial<Settings>} changes */
  set(changes) {
    const asked = Object.entries({ preset: settings.preset, ...changes }).map(([name, value]) => [name, String(value)]);
    const [, problems] = fromAddress(String(new URLSearchParams(asked)));
    if (problems.length) throw new RangeError(problems.join("; "));
    play(false);
    set(changes);
    while (movie.advance(1000));
    draw();
    speak();
    tellTour();
  },
  play() { play(true); },
  /** @param {number} frame */
  seek(frame) { play(false); while (movie.last < frame && movie.advance(1000)); position = Math.min(frame, movie.last); draw(); speak(); remember(); },
  state() {
    const frame = Math.min(Math.floor(position), movie.last);
    return { ...settings, frame, time: movie.times[frame], states: Array.from(movie.states[frame]), ...movie.measures[frame], ended: movie.run ? movie.run.ended : "", playing };
  },
  /** @param {System} flow @param {number} beta @param {number[]} times */
  solve(flow, beta, times) {
    const run = new Run(flow, beta, times);
    while (!run.finished) run.next();
    return { states: run.states.map((y) => Array.from(y)), ended: run.ended, measures: run.states.map((y) => measured(y, run.field.n, run.field.dim)) };
  },
  rate: rateOf,
  written: short,
  sweep() { while (sweepOn()); return sweep.values; },
  /** @param {string} language */
  code: (language) => codeOf(movie, language),
  csv: () => csvOf(movie),
  svg: () => svgOf(movie, position),
  /** @param {number} at */
  tour(at) { showStep(at); play(false); while (movie.advance(1000)); tellTour(); },
  measure: (/** @type {string} */ name) => TRIALS[name].of(movie),
  /** Milliseconds of one picture, averaged. @param {number} pictures */
  drawing(pictures) {
    const began = performance.now();
    for (let picture = 0; picture < pictures; picture++) draw(0);
    return (performance.now() - began) / pictures;
  },
};
