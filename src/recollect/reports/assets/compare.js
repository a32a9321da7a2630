// Several runs beside each other: curves by group, results, differences.

const COLOURS = 8;
const groupColour = (i) => `c${i % COLOURS}`;
const groupDash = (i) => [null, "7 4", "2 3"][Math.floor(i / COLOURS) % 3];

function headerOfComparison(data) {
  const { groups, runs, panels } = data;
  const worlds = panels.map((panel) => panel.world).join(" · ");
  const repeated = groups.some((group) => group.runs > 1);
  document
    .getElementById("content")
    .append(
      h(
        "header",
        { class: "head" },
        h("p", { class: "kicker" }, worlds),
        h(
          "h1",
          {},
          `${count(runs.length, "run")}${groups.length > 1 ? ` in ${count(groups.length, "group")}` : ""}`,
        ),
        h(
          "p",
          { class: "lead" },
          repeated
            ? "Runs that differ in nothing but the seed are one group. Lines are interquartile means over its " +
                "runs, shades their 95% stratified bootstrap intervals, faint lines the single runs."
            : "No two runs differ in nothing but the seed, so there are no intervals: repeat them with " +
                "other seeds.",
        ),
        ...data.problems.map(note),
      ),
    );
}

function comparedCurves(data) {
  const made = section(
    "learning",
    "Learning",
    data.groups.some((group) => group.runs > 1) ? "A group's line ends where its shortest run ends." : null,
  );
  const charts = [];
  const hasEvaluations = data.panels.some((panel) => panel.evaluations.some((lines) => lines.band));
  const hasReturns = data.panels.some((panel) => panel.returns.some((lines) => lines.band));
  if (!hasEvaluations && !hasReturns) {
    made.append(note("None of these runs has finished an episode or was evaluated yet."));
    return;
  }
  const first = hasReturns ? "returns" : "evaluations";
  if (hasEvaluations && hasReturns) {
    const choice = segmented(
      "Return",
      [
        ["returns", "training"],
        ["evaluations", data.mode ? `${data.mode} evaluation` : "evaluation"],
      ],
      first,
      (kind) => charts.forEach((show) => show(kind)),
    );
    made.append(h("div", { class: "controls" }, choice));
  }
  for (const panel of data.panels) made.append(...comparedPanel(data, panel, first, charts));
}

function comparedPanel(data, panel, first, charts) {
  const box = h("div", { class: "plot" });
  const empty = note("No evaluations here: set eval_every.");
  const levels = [];
  if (panel.levels.best !== null)
    levels.push({ value: panel.levels.best, text: `best possible ${fmt(panel.levels.best)}` });
  if (panel.levels.memoryless !== null)
    levels.push({ value: panel.levels.memoryless, text: `without memory ${fmt(panel.levels.memoryless)}` });
  const chart = new Chart(box, {
    label: `Return over training in ${panel.world}, by group`,
    series: seriesOf(data, panel[first]),
    levels,
    height: 360,
  });
  const items = panel.returns.map(({ group }) => ({
    name: data.groups[group].label,
    colour: groupColour(group),
    keys: [`${group}`],
  }));
  charts.push((kind) => {
    chart.spec.series = seriesOf(data, panel[kind]);
    empty.hidden = chart.spec.series.length > 0;
    chart.draw();
  });
  empty.hidden = chart.spec.series.length > 0;
  const title = data.panels.length > 1 ? [h("h3", {}, panel.world)] : [];
  return [...title, legend(items, items.length > 1 ? chart : null), box, empty];
}

function seriesOf(data, lines) {
  const faint = [];
  const bold = [];
  for (const { group, singles, band } of lines) {
    const colour = groupColour(group);
    if (singles.length > 1)
      for (const one of singles)
        faint.push({ name: one.name, key: `${group}`, kind: "faint", colour, x: one, y: one.values });
    if (band)
      bold.push({
        name: data.groups[group].label,
        key: `${group}`,
        colour,
        dash: groupDash(group),
        x: band,
        y: band.values,
        ...(singles.length > 1 ? { low: band.low, high: band.high } : {}),
      });
  }
  return [...faint, ...bold];
}

// Tables --------------------------------------------------------------------------------------------

function results(data) {
  const made = section(
    "results",
    "Results",
    `The final evaluation of each run${data.mode ? ` with ${data.mode} actions` : ""}; of a group, the ` +
      "interquartile mean with its 95% interval.",
  );
  if (!data.groups.some((group) => group.iqm !== null))
    made.append(note("None of these runs was evaluated: set eval_every, or use recollect eval."));
  made.append(resultTable(data.groups, (group, i) => groupColour(i), "group"));
  if (data.overall.length) {
    made.append(
      h("h3", {}, "Over all worlds"),
      h(
        "p",
        { class: "small" },
        "0 is the best policy without memory, 1 the best with. Runs are resampled within their world. " +
          "What a preset chose for its own task makes no other settings.",
      ),
    );
    made.append(resultTable(data.overall, () => "c-muted", "settings"));
  }
}

function resultTable(rows, colour, what) {
  const scales = new Map();
  for (const world of new Set(rows.map((row) => row.world))) {
    const ends = rows.filter((row) => row.world === world).flatMap((row) => [row.iqm, row.low, row.high]);
    scales.set(world, domain(finite(ends), 0.08));
  }
  const several = scales.size > 1;
  const lines = rows.map((row, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("i", { class: `swatch line ${colour(row, i)}` }), row.label),
      several ? h("td", {}, row.world) : null,
      h("td", { class: "num" }, fmt(row.runs)),
      h("td", { class: "num" }, h("b", {}, fmt(row.iqm, 3))),
      h(
        "td",
        { class: "num" },
        interval(row.low, row.high) ||
          h("span", { class: "small" }, row.iqm === null ? "not evaluated" : "one run"),
      ),
      h(
        "td",
        { class: "forest" },
        row.iqm === null ? "" : forest(row, ...scales.get(row.world), colour(row, i)),
      ),
    ),
  );
  const names = [
    [what, ""],
    ...(several ? [["world", ""]] : []),
    ["runs", "num"],
    ["IQM", "num"],
    ["95% interval", "num"],
    ["", "forest"],
  ];
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h("tr", {}, ...names.map(([name, kind]) => h("th", { scope: "col", class: kind || null }, name))),
      ),
      h("tbody", {}, ...lines),
    ),
  );
}

function forest(row, low, high, colour) {
  const at = (value) => 4 + ((value - low) / (high - low || 1)) * 152;
  const svg = s("svg", { width: 160, height: 18, class: "series points " + colour, "aria-hidden": "true" });
  if (row.low !== null)
    svg.append(s("line", { class: "whisker", x1: at(row.low), x2: at(row.high), y1: 9, y2: 9 }));
  svg.append(s("circle", { class: "point", cx: at(row.iqm), cy: 9, r: 4 }));
  return svg;
}

function runTable(data) {
  const made = section("runs", "Runs", null);
  const names = [
    ["run", ""],
    ["seed", "num"],
    ["state", ""],
    ["steps", "num"],
    ["time", "num"],
    ["return", "num"],
    ["actions", ""],
    ["evaluation", "num"],
    ["95% interval", "num"],
  ];
  const rows = data.runs.map((run) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("i", { class: `swatch line ${groupColour(run.group)}` }), run.name),
      h("td", { class: "num" }, String(run.seed ?? DASH)),
      h("td", {}, h("span", { title: run.reason }, run.state)),
      h("td", { class: "num" }, fmt(run.steps)),
      h("td", { class: "num" }, duration(run.seconds)),
      h("td", { class: "num" }, fmt(run.return, 3)),
      h("td", {}, run.evaluation?.mode ?? DASH),
      h("td", { class: "num" }, fmt(run.evaluation?.mean, 3)),
      h(
        "td",
        { class: "num" },
        run.evaluation ? interval(run.evaluation.low, run.evaluation.high) || DASH : DASH,
      ),
    ),
  );
  made.append(
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h("tr", {}, ...names.map(([name, kind]) => h("th", { scope: "col", class: kind || null }, name))),
        ),
        h("tbody", {}, ...rows),
      ),
    ),
  );
}

function differenceTable(data) {
  const { rows } = data.differences;
  const made = section(
    "differences",
    "Differences",
    rows.length ? "The settings in which the groups differ." : null,
  );
  if (!rows.length) {
    made.append(note("All runs have the same config but for the seed and the like."));
    return;
  }
  const names = [
    h("th", { scope: "col" }, "setting"),
    ...data.groups.map((group, i) =>
      h("th", { scope: "col" }, h("i", { class: `swatch line ${groupColour(i)}` }), group.label),
    ),
  ];
  const lines = rows.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("code", {}, row.name)),
      ...row.values.map((value) => h("td", {}, h("code", {}, value))),
    ),
  );
  made.append(
    h(
      "div",
      { class: "scroll" },
      h("table", {}, h("thead", {}, h("tr", {}, ...names)), h("tbody", {}, ...lines)),
    ),
  );
}
