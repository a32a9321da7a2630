// Learning curves, gauges, success by memory length.

/** Charts that share one x axis switch; filled by the sections below. */
const overTime = [];

function learning(data) {
  const { returns, evaluations, levels } = data;
  const series = [];
  const known = finite(returns.values);
  if (known.length) series.push({ name: "training return", colour: "c0", x: returns, y: returns.values });
  for (const [name, colour, points] of evaluationSeries(evaluations))
    series.push({
      name: `${name} evaluation, 95% interval`,
      colour,
      kind: "points",
      x: points,
      y: points.values,
      low: points.low,
      high: points.high,
    });
  const lead =
    "Training return is the mean of the last finished episodes, played with sampled actions. " +
    "Evaluations play whole episodes on seeds of their own: greedy ones with the most likely actions, " +
    "sampled ones as in training.";
  const made = section("learning", "Learning", series.length ? lead : null);
  if (!series.length) {
    made.append(note("There is nothing to draw yet: no episode has ended, and nothing was evaluated."));
    return;
  }
  const lines = [];
  if (levels.best !== null) lines.push({ value: levels.best, text: `best possible ${fmt(levels.best)}` });
  if (levels.memoryless !== null)
    lines.push({ value: levels.memoryless, text: `without memory ${fmt(levels.memoryless)}` });
  const box = h("div", { class: "plot" });
  const last = known.length ? `, ${fmt(known[known.length - 1])} at the end` : "";
  const chart = new Chart(box, { label: `Return over training${last}`, series, levels: lines });
  overTime.push(chart);
  made.append(h("div", { class: "controls" }, legend(series), axisSwitch(data)), box);
  if (!evaluations.values.length)
    made.append(
      note("This run was not evaluated while it trained. eval_every=N evaluates it every N steps."),
    );
  else made.append(evaluationTable(evaluations));
}

/** Name, colour and points of the evaluations with greedy and with sampled actions. */
function evaluationSeries({ modes, sampled, ...points }) {
  const named = [
    ["greedy", "c1"],
    ["sampled", "c2"],
  ].map(([mode, colour]) => {
    const kept = (values) => values.filter((_, i) => modes[i] === mode);
    return [mode, colour, Object.fromEntries(Object.entries(points).map(([k, v]) => [k, kept(v)]))];
  });
  if (sampled) named.push(["sampled", "c2", sampled]);
  return named.filter(([, , { values }]) => values.length);
}

function axisSwitch(data) {
  if (!finite(data.returns.seconds).length && !finite(data.evaluations.seconds).length) return null;
  return segmented(
    "x axis",
    [
      ["steps", "steps"],
      ["seconds", "time"],
    ],
    "steps",
    (x) => overTime.forEach((chart) => chart.setX(x)),
  );
}

function evaluationTable(evaluations) {
  const rows = evaluationSeries(evaluations)
    .flatMap(([mode, , { steps, seconds, values, low, high }]) =>
      steps.map((step, i) => ({ mode, step, seconds: seconds[i], value: values[i], low: low[i], high: high[i] })),
    )
    .sort((a, b) => a.step - b.step)
    .map((row) =>
      h(
        "tr",
        {},
        h("td", { class: "num" }, fmt(row.step)),
        h("td", { class: "num" }, duration(row.seconds)),
        h("td", {}, row.mode),
        h("td", { class: "num" }, fmt(row.value)),
        h("td", { class: "num" }, interval(row.low, row.high) || DASH),
      ),
    );
  const names = [
    ["steps", "num"],
    ["time", "num"],
    ["actions", null],
    ["mean return", "num"],
    ["95% interval", "num"],
  ].map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  return h(
    "details",
    {},
    h("summary", {}, "Evaluations as a table"),
    h(
      "div",
      { class: "scroll" },
      h("table", {}, h("thead", {}, h("tr", {}, ...names)), h("tbody", {}, ...rows)),
    ),
  );
}

// Gauges --------------------------------------------------------------------------------------------

const VERDICTS = { healthy: "healthy", above: "high", below: "low" };

function diagnostics(data) {
  const { gauges, others } = data;
  const made = section(
    "gauges",
    "Gauges",
    "What every update measures about itself. The shaded range is healthy; the second half of the run " +
      "is what is judged.",
  );
  if (!gauges.length && !others.length) {
    made.append(note("There are no metrics yet: they come with the first update."));
    return;
  }
  const outside = gauges.filter((gauge) => gauge.advice);
  if (outside.length)
    made.append(
      h(
        "ul",
        { class: `advice ${outside.some((gauge) => gauge.strict) ? "bad" : "warn"}` },
        ...outside.map((gauge) => h("li", {}, h("code", {}, gauge.name), " ", gauge.advice)),
      ),
    );
  const group = [];
  made.append(h("div", { class: "multiples" }, ...gauges.map((gauge) => multiple(gauge, group))));
  if (!others.length) return;
  const grid = h("div", { class: "multiples" });
  const more = h("details", {}, h("summary", {}, `${count(others.length, "more metric")}`), grid);
  more.addEventListener(
    "toggle",
    () =>
      more.open && !grid.children.length && grid.append(...others.map((metric) => multiple(metric, group))),
  );
  made.append(more);
}

function multiple(metric, group) {
  const known = finite(metric.values);
  const last = fmt(known[known.length - 1]);
  const readout = h("output", {}, last);
  const text = VERDICTS[metric.verdict];
  const tone = text === "healthy" ? "good" : metric.strict ? "bad" : "warn";
  const box = h("div", { class: "plot" });
  const isGiven = (value) => value !== null && value !== undefined;
  const chart = new Chart(box, {
    compact: true,
    group,
    label: `${metric.name} over training, ${last} at the end${text ? `, ${text}` : ""}`,
    series: [
      {
        name: metric.name,
        colour: "c0",
        kind: metric.sparse ? "points" : "line",
        x: metric,
        y: metric.values,
      },
    ],
    zone: isGiven(metric.high) || isGiven(metric.low) ? { low: metric.low, high: metric.high } : null,
    tone: metric.strict ? "bad" : "warn",
    warnHigh: isGiven(metric.high),
    warnLow: Boolean(metric.warn_low),
    levels: isGiven(metric.limit) ? [{ value: metric.limit, text: metric.limit_name }] : [],
    log: metric.log,
    readout: (value) => (readout.textContent = value ?? last),
  });
  chart.x = overTime[0]?.x || "steps";
  overTime.push(chart);
  return h(
    "figure",
    { class: "multiple" },
    h("figcaption", {}, h("code", {}, metric.name), readout),
    box,
    h(
      "p",
      {},
      text ? h("span", { class: `verdict ${tone}` }, h("i", { class: "dot" }), text) : null,
      sentence(metric.line),
      metric.words ? h("span", { class: "words" }, metric.words) : null,
    ),
  );
}

function sentence(text) {
  if (!text) return "";
  const first = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? `${first} ` : `${first}. `;
}

// Success by memory length --------------------------------------------------------------------------

function memoryLength(data) {
  const { lengths } = data;
  if (!lengths) {
    if (!data.length_notes.length) return;
    section(
      "memory-length",
      ["How far the memory reaches", "Memory length"],
      null,
      ...data.length_notes.map(note),
    );
    return;
  }
  const unit = lengths.option;
  const x = { steps: lengths.length };
  const series = [
    {
      name: "evaluated return, 95% interval",
      colour: "c0",
      kind: "points",
      x,
      y: lengths.mean,
      low: lengths.low,
      high: lengths.high,
    },
  ];
  const levels = [];
  for (const [name, values] of [
    ["best possible", lengths.best],
    ["without memory", lengths.memoryless],
  ]) {
    const known = finite(values);
    if (known.length && known.every((value) => value === known[0]))
      levels.push({ value: known[0], text: `${name} ${fmt(known[0])}` });
    else if (known.length) series.push({ name, colour: "c-muted", dash: "3 4", x, y: values });
  }
  const lead =
    `The checkpoint of step ${fmt(lengths.checkpoint_steps)} was trained with ${unit} = ${lengths.trained} ` +
    `and is tried with others here, ${count(lengths.episodes, "episode")} each, with ${lengths.mode} ` +
    "actions. Beyond the mark it meets lengths that it never saw.";
  const made = section(
    "memory-length",
    ["How far the memory reaches", "Memory length"],
    lead,
    legend(series),
  );
  const box = h("div", { class: "plot" });
  made.append(box);
  const said = lengths.length.map((length, i) => `${length}: ${fmt(lengths.mean[i])}`);
  new Chart(box, {
    label: `Evaluated return by ${unit}: ${said.join(", ")}`,
    height: 260,
    series,
    levels,
    marks: [{ x: lengths.trained, text: "trained" }],
    logX: true,
    xTicks: lengths.length,
    xText: unit,
    xFormat: (value) => fmt(value),
    xTip: (value) => `${unit} = ${fmt(value)}`,
  });
}
