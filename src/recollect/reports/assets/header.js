// The head of a run's page: who it is, how it went, in what surroundings.

const STATES = {
  finished: "good",
  stopped: "plain",
  running: "plain",
  failed: "bad",
  killed: "bad",
};

function badge(state, reason) {
  return h(
    "span",
    { class: `badge ${STATES[state] || "plain"}` },
    h("i", { class: "dot", "aria-hidden": "true" }),
    h("b", {}, state),
    reason ? h("span", {}, reason) : null,
  );
}

function worldName(run) {
  const options = Object.entries(run.env_kwargs || {}).map(([name, value]) => `${name}=${value}`);
  return [run.env || "an env made by code", ...options].join(" · ");
}

function figure(name, value, below) {
  return h(
    "div",
    { class: "figure" },
    h("dt", {}, name),
    h("dd", {}, h("strong", {}, value), below ? h("small", {}, below) : null),
  );
}

function headerOfRun(data) {
  const { run } = data;
  const head = h(
    "header",
    { class: "head" },
    h("p", { class: "kicker" }, worldName(run)),
    h("h1", {}, run.name),
    badge(run.state, run.reason),
  );
  if (run.state === "running")
    head.append(note("This run had not ended when the report was made: make it again for the rest."));
  const problems = data.problems.map((text) => note(text));
  head.append(...problems, keyFigures(data));
  if (run.evaluation?.difference) head.append(note(sentence(run.evaluation.difference)));
  head.append(facts(run));
  document.getElementById("content").append(head);
}

function evaluated(name, { mean, low, high, episodes }) {
  const of = episodes ? `, ${count(episodes, "episode")}` : "";
  return figure(
    name,
    fmt(mean, 3),
    low === null ? of.slice(2) : `95% interval ${interval(low, high)}${of}`,
  );
}

function keyFigures({ run, levels, gauges, speed }) {
  const result = run.evaluation;
  const list = h("dl", { class: "figures" });
  if (result) {
    list.append(evaluated(`Final evaluation, ${result.mode}`, result));
    if (result.sampled) list.append(evaluated("Final evaluation, sampled", result.sampled));
  } else {
    list.append(figure("Final evaluation", DASH, "none was made: set eval_every"));
  }
  const best =
    levels.best !== null ? `the best possible is ${fmt(levels.best)}` : "mean of the last episodes";
  list.append(
    figure("Training return", fmt(run.return, 3), run.return === null ? "no episode has ended" : best),
  );
  const planned =
    run.planned && run.planned > run.steps ? `of ${fmt(run.planned)} planned` : count(run.updates, "update");
  list.append(figure("Steps", fmt(run.steps), planned));
  list.append(figure("Episodes", fmt(run.episodes), null));
  list.append(
    figure("Time", duration(run.seconds), speed ? `${short(Math.round(speed.mean))} steps per second` : null),
  );
  const judged = gauges.filter((gauge) => gauge.verdict !== "unjudged");
  const outside = judged.filter((gauge) => gauge.verdict !== "healthy");
  if (judged.length) {
    const text = outside.length
      ? `see ${outside.map((gauge) => gauge.name).join(", ")}`
      : "all within their range";
    list.append(figure("Healthy gauges", `${judged.length - outside.length} of ${judged.length}`, text));
  }
  return list;
}

function facts(run) {
  const rows = [
    ["seed", run.seed],
    ["started", run.started ? date(run.started) : null],
    [
      "versions",
      Object.entries(run.versions)
        .map(([name, version]) => `${name} ${version}`)
        .join(", "),
    ],
    [
      "commit",
      run.git ? `${String(run.git.commit).slice(0, 12)}${run.git.dirty ? " with changes" : ""}` : null,
    ],
    ["machine", machine(run.machine)],
    [
      "best evaluation",
      run.best && run.best.mean !== null
        ? `${run.best.mode} ${fmt(run.best.mean)} at step ${fmt(run.best.steps)}`
        : null,
    ],
    ["command", run.command ? run.command.join(" ") : null],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "facts" },
    ...rows.map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: name === "command" ? "code" : null }, String(value))),
    ),
  );
}

function machine(parts) {
  const memory =
    typeof parts.memory === "number" ? `${Math.round(parts.memory / 2 ** 30)} GiB` : parts.memory;
  return [parts.system, parts.cpu, parts.cores ? count(parts.cores, "core") : null, memory, parts.gpu]
    .filter(Boolean)
    .join(", ");
}
