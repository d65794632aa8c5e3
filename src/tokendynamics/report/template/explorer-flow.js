"use strict";

// The flow of tokens under attention, as `tokendynamics.Flow` and `simulate` have it: they are the reference, and
// every formula here is compared with them. States are rows of one Float64Array: token i, feature c at i * dim + c.

/**
 * @typedef {{kind: string, metric: number[][] | null}} Space
 * @typedef {{kind: string, table?: number[][], query?: number[][][], key?: number[][][], frequencies?: number[], scale?: number, base?: number | null}} Positions
 * @typedef {{space: Space, weights: string, peak: number, causal: boolean, factor: number, qk: number[][][], ov: number[][][],
 *   normalization: string, positions: Positions | null, start: number[][]}} System
 * @typedef {{n: number, dim: number, velocity: (y: Float64Array, out: Float64Array) => void,
 *   project: (y: Float64Array) => void}} Field
 */

/** The multiple of the identity that a matrix is; null for others.
 * @param {number[][]} matrix */
function multipleOf(matrix) {
  const value = matrix[0][0];
  return matrix.every((row, a) => row.every((entry, b) => entry === (a === b ? value : 0))) ? value : null;
}

/** The vector field of a system, with every logit multiplied by beta.
 * @param {System} system
 * @param {number} beta
 * @returns {Field} */
function fieldOf(system, beta) {
  const n = system.start.length, dim = system.start[0].length, { space, positions, causal } = system;
  const rotary = positions !== null && positions.kind === "rotary" ? positions : null;
  const table = positions !== null && positions.kind === "absolute" ? positions.table || null : null;
  const scale = beta * (rotary === null ? 1 : rotary.scale ?? 1);
  const multiples = system.ov.map(multipleOf);
  const constrained = space.kind !== "free";
  // Differences of tokens that have nearly met keep their digits; what points along the token itself is no motion.
  const differences = constrained && multiples.every((multiple) => multiple !== null);
  const read = new Float64Array(n * dim), query = new Float64Array(n * dim), values = new Float64Array(n * dim);
  const weights = new Float64Array(n);
  const rank = rotary === null || !rotary.query ? 0 : rotary.query[0][0].length;
  const turnedQuery = new Float64Array(n * rank), turnedKey = new Float64Array(n * rank);

  /** @param {Float64Array} out @param {Float64Array} x @param {number[][]} matrix @param {boolean} transposed */
  function apply(out, x, matrix, transposed) {
    for (let i = 0; i < n; i++) for (let a = 0; a < dim; a++) {
      let sum = 0;
      for (let b = 0; b < dim; b++) sum += (transposed ? matrix[b][a] : matrix[a][b]) * x[i * dim + b];
      out[i * dim + a] = sum;
    }
  }

  /** @param {Float64Array} out @param {number[][]} matrix (dim, rank) @param {number[]} frequencies */
  function turned(out, matrix, frequencies) {
    for (let i = 0; i < n; i++) for (let pair = 0; pair < rank / 2; pair++) {
      let first = 0, second = 0;
      for (let b = 0; b < dim; b++) {
        first += matrix[b][2 * pair] * read[i * dim + b];
        second += matrix[b][2 * pair + 1] * read[i * dim + b];
      }
      const cosine = Math.cos(i * frequencies[pair]), sine = Math.sin(i * frequencies[pair]);
      out[i * rank + 2 * pair] = first * cosine - second * sine;
      out[i * rank + 2 * pair + 1] = second * cosine + first * sine;
    }
  }

  /** The weights of one receiver; softmax weights are computed from the largest logit downwards,
   * exponential ones from an offset that grows with beta. @param {number} i */
  function weigh(i) {
    const last = causal ? i : n - 1;
    let largest = -Infinity, total = 0;
    for (let j = 0; j <= last; j++) {
      let logit = 0;
      for (let c = 0; c < dim; c++) logit += query[i * dim + c] * read[j * dim + c];
      for (let c = 0; c < rank; c++) logit += turnedQuery[i * rank + c] * turnedKey[j * rank + c];
      weights[j] = scale * logit;
      if (weights[j] > largest) largest = weights[j];
    }
    if (system.weights !== "linear") {
      const exponential = system.weights === "exponential", anchor = exponential ? beta * system.peak : largest;
      for (let j = 0; j <= last; j++) total += (weights[j] = Math.exp(weights[j] - anchor));
      if (exponential) total = last + 1;
      for (let j = 0; j <= last; j++) weights[j] /= total;
    }
    return last;
  }

  return {
    n, dim,
    velocity(y, out) {
      out.fill(0);
      for (let i = 0; i < n; i++) for (let c = 0; c < dim; c++) read[i * dim + c] = y[i * dim + c] + (table === null ? 0 : table[i][c]);
      for (let head = 0; head < system.qk.length; head++) {
        apply(query, read, system.qk[head], true);
        if (rotary !== null && rotary.query && rotary.key && rotary.frequencies) {
          turned(turnedQuery, rotary.query[Math.min(head, rotary.query.length - 1)], rotary.frequencies);
          turned(turnedKey, rotary.key[Math.min(head, rotary.key.length - 1)], rotary.frequencies);
        }
        if (!differences) apply(values, read, system.ov[head], false);
        for (let i = 0; i < n; i++) {
          const last = weigh(i);
          for (let j = 0; j <= last; j++) for (let c = 0; c < dim; c++) {
            const value = differences ? (multiples[head] || 0) * (read[j * dim + c] - y[i * dim + c]) : values[j * dim + c];
            out[i * dim + c] += system.factor * weights[j] * value;
          }
        }
      }
      if (!constrained) return;
      for (let i = 0; i < n; i++) {
        let along = 0;
        for (let a = 0; a < dim; a++) along += out[i * dim + a] * metricTimes(space.metric, y, i, a, dim);
        for (let a = 0; a < dim; a++) out[i * dim + a] -= along * y[i * dim + a];
      }
    },
    project(y) {
      if (!constrained) return;
      for (let i = 0; i < n; i++) {
        let square = 0;
        for (let a = 0; a < dim; a++) square += y[i * dim + a] * metricTimes(space.metric, y, i, a, dim);
        for (let a = 0; a < dim; a++) y[i * dim + a] /= Math.sqrt(square);
      }
    },
  };
}

/** Entry a of M y_i. @param {number[][] | null} metric @param {Float64Array} y @param {number} i @param {number} a @param {number} dim */
function metricTimes(metric, y, i, a, dim) {
  if (metric === null) return y[i * dim + a];
  let sum = 0;
  for (let b = 0; b < dim; b++) sum += metric[a][b] * y[i * dim + b];
  return sum;
}

// Dormand and Prince's pair of orders 5 and 4: the last stage is the first of the next step.
const STAGES = [
  [1 / 5],
  [3 / 40, 9 / 40],
  [44 / 45, -56 / 15, 32 / 9],
  [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
  [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
  [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
];
const ERROR = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];
const RTOL = 1e-9, ATOL = 1e-11, MOST_STEPS = 20000, FAR = 1e9;

/** A run, computed as far as it is asked for; its states at the times are those of `tokendynamics.simulate`. */
class Run {
  /** @param {System} system @param {number} beta @param {number[]} times increasing, the first that of the start */
  constructor(system, beta, times) {
    this.field = fieldOf(system, beta);
    this.times = times;
    this.y = Float64Array.from(system.start.flat());
    this.field.project(this.y);
    /** @type {Float64Array[]} */
    this.states = [this.y.slice()];
    /** @type {Float64Array[]} */
    this.stages = Array.from({ length: 7 }, () => new Float64Array(this.y.length));
    this.t = times[0];
    this.step = 1e-3 * (times[times.length - 1] - times[0]);
    this.steps = 0;
    this.ended = "";
    this.field.velocity(this.y, this.stages[0]);
  }

  get finished() {
    return this.ended !== "" || this.states.length === this.times.length;
  }

  /** Go on to the next of the times; false where it is not reached, by then or at all. @param {number} deadline of `performance.now` */
  next(deadline = Infinity) {
    const until = this.times[this.states.length], trial = new Float64Array(this.y.length);
    while (this.t < until) {
      if (performance.now() > deadline) return false;
      const last = this.t + 1.0001 * this.step >= until, h = last ? until - this.t : this.step;
      for (let stage = 0; stage < 6; stage++) {
        for (let entry = 0; entry < trial.length; entry++) {
          let sum = 0;
          for (let before = 0; before <= stage; before++) sum += STAGES[stage][before] * this.stages[before][entry];
          trial[entry] = this.y[entry] + h * sum;
        }
        if (stage === 5) this.field.project(trial);
        this.field.velocity(trial, this.stages[stage + 1]);
      }
      let squares = 0, largest = 0;
      for (let entry = 0; entry < trial.length; entry++) {
        let error = 0;
        for (let stage = 0; stage < 7; stage++) error += ERROR[stage] * this.stages[stage][entry];
        const size = Math.max(Math.abs(trial[entry]), Math.abs(this.y[entry]));
        squares += (h * error / (ATOL + RTOL * size)) ** 2;
        largest = Math.max(largest, size);
      }
      const ratio = Number.isFinite(squares) ? Math.sqrt(squares / trial.length) : Infinity;
      if (ratio <= 1) {
        this.y.set(trial);
        this.stages[0].set(this.stages[6]);
        this.t = last ? until : this.t + h;
      }
      this.steps += 1;
      if (ratio <= 1 && largest >= FAR) this.ended = `tokens fly apart: one is farther than 10⁹ from zero at t = ${short(this.t)}`;
      else if (this.steps > MOST_STEPS) this.ended = `the ${short(MOST_STEPS)} steps that a browser takes reach t = ${short(this.t)}`;
      else if (h < 1e-14 * Math.max(1, Math.abs(this.t)) && !last) this.ended = `the steps that the error allows become too small at t = ${short(this.t)}`;
      if (this.ended) return false;
      if (!last || ratio > 1) this.step = h * Math.min(5, Math.max(0.2, 0.9 * ratio ** -0.2));
    }
    this.states.push(this.y.slice());
    return true;
  }
}

/** Radians: tokens that are nearer than this are of one cluster. */
const LINK = 0.1;

/** What is measured of states: as `tokendynamics.observables` has it.
 * @param {Float64Array} y @param {number} n @param {number} dim */
function measured(y, n, dim) {
  const unit = new Float64Array(n * dim), gram = Array.from({ length: dim }, () => new Float64Array(dim));
  let closest = Infinity;
  for (let i = 0; i < n; i++) {
    let norm = 0;
    for (let c = 0; c < dim; c++) norm = Math.hypot(norm, y[i * dim + c]);
    closest = Math.min(closest, norm);
    for (let a = 0; a < dim; a++) {
      unit[i * dim + a] = y[i * dim + a] / norm;
      for (let b = 0; b < dim; b++) gram[a][b] += y[i * dim + a] * y[i * dim + b];
    }
  }
  const parent = Array.from({ length: n }, (_, i) => i);
  /** @param {number} i @returns {number} */
  const root = (i) => (parent[i] === i ? i : (parent[i] = root(parent[i])));
  let apart = 0;
  for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) {
    let difference = 0, sum = 0;
    for (let c = 0; c < dim; c++) {
      difference += (unit[i * dim + c] - unit[j * dim + c]) ** 2;
      sum += (unit[i * dim + c] + unit[j * dim + c]) ** 2;
    }
    apart += difference / 2; // one minus the cosine, which keeps its digits where tokens have nearly met
    if (2 * Math.atan2(Math.sqrt(difference), Math.sqrt(sum)) <= LINK) parent[root(i)] = root(j);
  }
  const roots = new Set(parent.map((_, i) => root(i)));
  const spread = closest > 0 ? apart / (n * (n - 1) / 2) : NaN;
  return { spread, similarity: 1 - spread, rank: effectiveRank(gram), clusters: closest > 0 && n > 1 ? roots.size : NaN };
}

/** exp of the entropy of the shares of a symmetric matrix's eigenvalues, by Jacobi's rotations. @param {Float64Array[]} gram */
function effectiveRank(gram) {
  const dim = gram.length;
  for (let sweep = 0; sweep < 30; sweep++) for (let a = 0; a < dim; a++) for (let b = a + 1; b < dim; b++) {
    if (Math.abs(gram[a][b]) <= 1e-17 * Math.hypot(gram[a][a], gram[b][b])) continue;
    const angle = 0.5 * Math.atan2(2 * gram[a][b], gram[b][b] - gram[a][a]), c = Math.cos(angle), s = Math.sin(angle);
    for (let k = 0; k < dim; k++) [gram[k][a], gram[k][b]] = [c * gram[k][a] - s * gram[k][b], s * gram[k][a] + c * gram[k][b]];
    for (let k = 0; k < dim; k++) [gram[a][k], gram[b][k]] = [c * gram[a][k] - s * gram[b][k], s * gram[a][k] + c * gram[b][k]];
  }
  const values = gram.map((row, a) => Math.max(row[a], 0)), total = values.reduce((sum, value) => sum + value, 0);
  return Math.exp(-values.reduce((sum, value) => sum + (value > 0 ? value / total * Math.log(value / total) : 0), 0));
}

/** log(−V), V = −½ Σ exp(x_i · qk x_j) of the first head. @param {System} system @param {number} beta @param {Float64Array} y @param {number} dim */
function logEnergy(system, beta, y, dim) {
  const n = y.length / dim, qk = system.qk[0];
  let largest = -Infinity, sum = 0;
  const logits = [];
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
    let logit = 0;
    for (let a = 0; a < dim; a++) for (let b = 0; b < dim; b++) logit += y[i * dim + a] * qk[a][b] * y[j * dim + b];
    logits.push(beta * logit);
    largest = Math.max(largest, beta * logit);
  }
  for (const logit of logits) sum += Math.exp(logit - largest);
  return largest + Math.log(sum) - Math.log(2);
}
