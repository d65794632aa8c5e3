// The tour: claims that a reader checks by moving one control; and the words that are explained where they stand.

/** What a step of the tour watches: a number of a run, and the words for it.
 * @type {Record<string, {of: (movie: Movie) => number, words: (value: number, movie: Movie) => string}>} */
const TRIALS = {
  spread: { of: (run) => run.measures[run.last].spread, words: (value, run) => `spread ${rounded(value)} at t = ${short(run.times[run.last])}` },
  meeting: {
    of(run) {
      const at = run.measures.findIndex((one) => one.clusters === 1);
      return at < 0 ? Infinity : run.times[at];
    },
    words: (value, run) => (value === Infinity ? `more than one cluster until t = ${short(run.times[run.last])}` : `one cluster from t = ${short(value)}`),
  },
  leader: {
    of: (run) => Math.hypot(...run.states[run.last].subarray(0, run.dim).map((entry, c) => entry - run.states[0][c])),
    words: (value) => `the first token moves by ${value < 1e-9 ? "0" : short(value)}`,
  },
  norm: {
    of: (run) => Math.max(...Array.from({ length: run.n }, (_, i) => Math.hypot(...run.states[run.last].subarray(i * run.dim, (i + 1) * run.dim)))),
    words: (value, run) => `largest norm ${short(value)} at t = ${short(run.times[run.last])}`,
  },
  statements: {
    of: (run) => (statementsAt(run) || { rows: [] }).rows.filter((row) => row.applies).length,
    words: (value) => (value === 1 ? "one statement applies" : `${value} statements apply`),
  },
};

/** @type {{at: number, before: string}} */
let tour = { at: -1, before: "" };

/** Show one step of the tour and set what it starts from; −1 ends the tour. @param {number} at */
function showStep(at) {
  document.querySelectorAll(".pointed").forEach((one) => one.classList.remove("pointed"));
  tour = { at, before: "" };
  element("tour").hidden = at < 0;
  element("tour-start").hidden = at >= 0;
  if (at < 0) return;
  const step = DATA.tour[at];
  keptMovie = null;
  position = 0;
  set(usual(/** @type {Shown} */ (named(step.preset))));
  play(!calm.matches);
  element("tour-place").textContent = `Step ${at + 1} of ${DATA.tour.length}`;
  element("tour-text").textContent = step.text;
  element("tour-back").disabled = at === 0;
  element("tour-next").textContent = at === DATA.tour.length - 1 ? "End" : "Next";
  element(step.control).closest(".control").classList.add("pointed");
  tellTour();
}

/** Say what the number of this step is now, and what it was before the control moved. */
function tellTour() {
  if (tour.at < 0) return;
  const trial = TRIALS[DATA.tour[tour.at].measure], whole = !movie.run || movie.run.finished;
  const words = whole ? trial.words(trial.of(movie), movie) : "being computed …";
  if (whole && !tour.before) tour.before = words;
  element("tour-seen").textContent = !whole || words === tour.before ? `Now: ${words}.` : `Before: ${tour.before}. Now: ${words}.`;
}

function wireTour() {
  element("tour-start").hidden = DATA.tour.length === 0;
  element("tour-start").addEventListener("click", () => {
    showStep(0);
    element("tour-text").focus();
  });
  element("tour-next").addEventListener("click", () => showStep(tour.at + 1 < DATA.tour.length ? tour.at + 1 : -1));
  element("tour-back").addEventListener("click", () => showStep(tour.at - 1));
  element("tour-end").addEventListener("click", () => showStep(-1));
}

/** Terms show their sentence, which stands in the list at the end of the page, on hover and focus. */
function wireGlossary() {
  const tip = element("tip");
  const hide = () => { tip.hidden = true; };
  for (const term of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-term]"))) {
    const show = () => {
      tip.textContent = element(`term-${term.dataset.term}`).textContent;
      tip.hidden = false;
      const box = term.getBoundingClientRect(), { width, height } = tip.getBoundingClientRect();
      tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - width - 6))}px`;
      tip.style.top = `${box.bottom + 6 + height > innerHeight ? box.top - height - 6 : box.bottom + 6}px`;
    };
    term.tabIndex = 0;
    term.setAttribute("aria-describedby", `term-${term.dataset.term}`);
    for (const event of ["pointerenter", "focus"]) term.addEventListener(event, show);
    for (const event of ["pointerleave", "blur"]) term.addEventListener(event, hide);
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
