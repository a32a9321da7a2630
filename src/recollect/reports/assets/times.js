// Where the time went: that of the learner, and that of actors in other processes.

const STAGES = {
  env: "stepping the env",
  act: "choosing actions",
  wait: "waiting for rollouts",
  learn: "learning",
  other: "everything else",
};

const PARTS = {
  env: "stepping the env",
  policy: "choosing actions",
  transport: "weights and rollouts on their way",
  learner: "waiting for the learner",
};

const PLACES = { processes: "in processes of their own", ray: "on a Ray cluster" };

function speedByStage(data) {
  const { speed } = data;
  if (!speed) {
    section("speed", "Speed", null, note("No speed was measured yet."));
    return;
  }
  const made = section(
    "speed",
    "Speed",
    `${fmt(Math.round(speed.mean))} env steps per second over the whole run, and where the time went.`,
  );
  const [total, shares] = [h("div", { class: "plot" }), h("div", { class: "plot" })];
  made.append(
    ...shareBar(speed, STAGES),
    h(
      "div",
      { class: "pair" },
      h("figure", {}, h("figcaption", {}, "steps per second"), total),
      h("figure", {}, h("figcaption", {}, "share of time by stage"), shares),
    ),
  );
  overTime.push(
    new Chart(total, {
      label: "Steps per second over training",
      height: 200,
      series: [{ name: "steps/s", colour: "c0", x: speed.total, y: speed.total.values }],
    }),
  );
  drawShares(shares, speed, "Share of time");
}

/** Only where the actors live in other processes. */
function runtimeOfActors(data) {
  const { runtime } = data;
  if (!runtime) return;
  const place = PLACES[runtime.runtime] || "in other processes";
  const made = section(
    "runtime",
    "Runtime",
    `${count(runtime.actors, "actor")} ${place}, ${runtime.mode}. The learner waited for them ` +
      `${percent(runtime.waited)} of its time` +
      (runtime.restarts ? `; ${count(runtime.restarts, "restart")} after a process died or hung.` : "."),
  );
  const [speeds, shares, lag] = [1, 2, 3].map(() => h("div", { class: "plot" }));
  const range = [
    { name: "fastest", colour: "c0", x: runtime.fastest, y: runtime.fastest.values },
    { name: "slowest", colour: "c1", x: runtime.slowest, y: runtime.slowest.values },
  ];
  const lags = [
    { name: "most", colour: "c1", x: runtime.lag_max, y: runtime.lag_max.values },
    { name: "mean", colour: "c0", x: runtime.lag, y: runtime.lag.values },
  ];
  const figures = h(
    "div",
    { class: "pair" },
    h("figure", {}, h("figcaption", {}, "steps per second of an actor"), legend(range), speeds),
    h("figure", {}, h("figcaption", {}, "share of the actors' time"), shares),
  );
  made.append(...shareBar(runtime, PARTS), figures);
  overTime.push(
    new Chart(speeds, {
      label: "Steps per second of the slowest and of the fastest actor",
      height: 200,
      series: range,
    }),
  );
  drawShares(shares, runtime, "Share of the actors' time");
  if (runtime.mode !== "async") return;
  figures.append(
    h("figure", {}, h("figcaption", {}, "lag of the weights that acted, in updates"), legend(lags), lag),
  );
  overTime.push(
    new Chart(lag, { label: "Lag of the weights that acted, in updates", height: 200, series: lags }),
  );
}

function shareColours({ stages }) {
  return stages.map((stage, i) => (["other", "learner"].includes(stage) ? "c-muted" : `c${i}`));
}

/** A bar with the shares of the whole run, and their legend. */
function shareBar(times, names) {
  const colours = shareColours(times);
  const parts = times.stages.map((stage, i) => {
    const part = h("i", { class: colours[i] });
    part.style.flexGrow = times.overall[i];
    return part;
  });
  const words = times.stages.map((stage, i) =>
    h(
      "li",
      {},
      h("i", { class: `swatch line ${colours[i]}` }),
      `${names[stage] || stage} `,
      h("b", {}, percent(times.overall[i])),
    ),
  );
  return [
    h("div", { class: "share", "aria-hidden": "true" }, ...parts),
    h("ul", { class: "legend" }, ...words),
  ];
}

/** The shares over the run, in a box that is on the page already. */
function drawShares(box, times, caption) {
  const said = times.stages.map((stage, i) => `${stage} ${percent(times.overall[i])}`);
  overTime.push(
    new Chart(box, {
      label: `${caption}: ${said.join(", ")}`,
      height: 200,
      yFormat: (value) => `${value}%`,
      series: stacked(times, shareColours(times)),
    }),
  );
}

/** Each stage as a band on top of those before it. */
function stacked(times, colours) {
  let below = times.steps.map(() => 0);
  return times.stages.map((stage, k) => {
    const low = below;
    const high = low.map((value, i) => value + (times.shares[k][i] ?? 0) * 100);
    below = high;
    return {
      name: stage,
      colour: colours[k],
      kind: "stack",
      x: times,
      y: high,
      low,
      high,
      text: (i) => percent(times.shares[k][i] ?? 0),
    };
  });
}
