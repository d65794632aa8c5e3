// What a reader takes away: code that computes what is seen, its numbers, its picture, a film.

/** @param {any} rows */
const matrix = (rows) => JSON.stringify(rows);
/** @param {number[][][]} matrices @param {number} factor */
const scaled = (matrices, factor) => matrices.map((rows) => rows.map((row) => row.map((entry) => factor * entry)));

/** The program, or the file, that makes what is seen. @param {Movie} movie @param {string} language */
function codeOf(movie, language) {
  const flow = movie.flow;
  if (!flow) return "";
  const rotary = flow.positions && flow.positions.kind === "rotary" ? flow.positions : null, beta = movie.settings.beta, qk = rotary ? flow.qk : scaled(flow.qk, beta);
  const scale = rotary ? beta * (rotary.scale ?? 1) : 1, offset = flow.weights === "exponential" ? beta * flow.peak : 0, python = language === "python", times = JSON.stringify(movie.times);
  const lines = [];
  if (python) {
    /** @type {Record<string, string>} */
    const spaces = { sphere: "td.Sphere()", free: "td.Free()", ellipsoid: `td.Ellipsoid(${matrix(flow.space.metric)})` }, space = spaces[flow.space.kind];
    lines.push("import tokendynamics as td", "");
    if (rotary) lines.push(`positions = td.RotaryPositions(${matrix(rotary.query)}, ${matrix(rotary.key)}, scale=${scale}, frequencies=${JSON.stringify(rotary.frequencies)})`);
    else lines.push(`positions = ${flow.positions ? `td.AbsolutePositions(${matrix(flow.positions.table)})` : "None"}`);
    lines.push(`attention = td.Attention(${matrix(qk)}, ${matrix(flow.ov)}, causal=${flow.causal ? "True" : "False"}, weights="${flow.weights}", normalization="${flow.normalization}", positions=positions${offset ? `, offset=${offset}` : ""})`,
      `flow = td.Flow(attention, ${space})`, `start = ${matrix(flow.start)}`, `run = td.simulate(flow, start, ${times})`, "print(run.summary())");
  } else {
    lines.push(`title = ${JSON.stringify(movie.system.title)}`, "", "[attention]", `qk = ${matrix(qk)}`, `ov = ${matrix(flow.ov)}`, `causal = ${flow.causal}`, `weights = "${flow.weights}"`, `normalization = "${flow.normalization}"`, ...(offset ? [`offset = ${decimal(offset)}`] : []), "");
    if (rotary && (Math.max((rotary.query || []).length, (rotary.key || []).length) > 1 || rotary.base === undefined || rotary.base === null)) return "";
    if (rotary) lines.push("[positions]", 'kind = "rotary"', `query = ${matrix((rotary.query || [])[0])}`, `key = ${matrix((rotary.key || [])[0])}`, `base = ${decimal(rotary.base ?? NaN)}`, `scale = ${decimal(scale)}`, "");
    else if (flow.positions) lines.push("[positions]", 'kind = "absolute"', `table = ${matrix(flow.positions.table)}`, "");
    lines.push("[space]", `kind = "${flow.space.kind}"`, ...(flow.space.metric ? [`metric = ${matrix(flow.space.metric)}`] : []), "", "[start]", `tokens = ${matrix(flow.start)}`, "", "[time]", `times = ${times}`, "");
    return lines.map((row, at) => (at ? row.replace(/(?<=[[,]\s*)-?\d+(?=[\],])/g, (whole) => `${whole}.0`) : row)).join("\n");
  }
  return `${lines.join("\n")}\n`;
}

/** @param {number} value */
const decimal = (value) => (Number.isInteger(value) ? `${value}.0` : String(value));

/** @param {Movie} movie */
function csvOf(movie) {
  // The frames of Python may hold coordinates along directions, not features.
  const axis = !movie.flow && movie.system.plane ? "direction" : "feature";
  const header = [movie.system.clock || "time", "token", ...Array.from({ length: movie.dim }, (_, c) => `${axis}_${c}`)];
  const rows = movie.states.flatMap((y, frame) => Array.from({ length: movie.n }, (_, i) => [movie.times[frame], i, ...y.subarray(i * movie.dim, (i + 1) * movie.dim)]));
  return [header, ...rows].map((row) => row.join(",")).join("\n");
}

/** A pen whose lines, discs and words become SVG. @implements {Pen} */
class Drawing {
  strokeStyle = ""; fillStyle = ""; lineWidth = 1; font = "";
  /** @type {CanvasTextAlign} */
  textAlign = "left";
  /** @type {string[]} */
  marks = [];
  path = ""; dash = "";
  beginPath() { this.path = ""; }
  /** @param {number} x @param {number} y */
  moveTo(x, y) { this.path += `M${x.toFixed(2)},${y.toFixed(2)}`; }
  /** @param {number} x @param {number} y */
  lineTo(x, y) { this.path += `L${x.toFixed(2)},${y.toFixed(2)}`; }
  /** A whole circle. @param {number} x @param {number} y @param {number} r */
  arc(x, y, r) { this.path += `M${(x - r).toFixed(2)},${y.toFixed(2)}a${r.toFixed(2)},${r.toFixed(2)} 0 1 0 ${(2 * r).toFixed(2)},0a${r.toFixed(2)},${r.toFixed(2)} 0 1 0 ${(-2 * r).toFixed(2)},0`; }
  /** @param {number[]} dash */
  setLineDash(dash) { this.dash = dash.join(" "); }
  stroke() { this.marks.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"${this.dash ? ` stroke-dasharray="${this.dash}"` : ""}/>`); }
  fill() { this.marks.push(`<path d="${this.path}" fill="${this.fillStyle}"/>`); }
  strokeText() {}
  /** @param {string} text @param {number} x @param {number} y */
  fillText(text, x, y) {
    const words = text.replace(/[<>&]/g, (sign) => `&#${sign.charCodeAt(0)};`);
    this.marks.push(`<text x="${x}" y="${y}" fill="${this.fillStyle}" font-family="sans-serif" font-size="12">${words}</text>`);
  }
}

/** The stage as it is seen. @param {Movie} movie @param {number} frame */
function svgOf(movie, frame) {
  const { clientWidth: width, clientHeight: height } = element("stage"), look = colours(), pen = new Drawing();
  drawScene(pen, look, width, height, movie.scene(Math.min(frame, movie.last)), view);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><title>${element("summary").textContent}</title><rect width="${width}" height="${height}" fill="${look.paper}"/>${pen.marks.join("")}</svg>`;
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** @param {string} words */
function tell(words) {
  element("copied").textContent = words;
}

/** @param {string} text @param {string} what */
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

function film() {
  const stage = element("stage");
  if (!stage.captureStream || typeof MediaRecorder === "undefined" || !MediaRecorder.isTypeSupported("video/webm")) return tell("This browser records no film.");
  const recorder = new MediaRecorder(stage.captureStream(30), { mimeType: "video/webm" });
  /** @type {Blob[]} */
  const parts = [];
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

