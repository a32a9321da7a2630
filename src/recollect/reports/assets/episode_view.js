// One step of an episode in detail: what was seen, what was done, what was expected.

const FEW = 16;

/** A row with a name, a bar from ``zero`` to ``value`` on the scale [low, high], and the number. */
function barRow(name, value, low, high, { chosen = false, spread = null, text = null } = {}) {
  const span = high - low || 1;
  const place = (number) => Math.min(1, Math.max(0, (number - low) / span));
  const track = h("span", { class: "track" });
  if (spread === null) {
    const zero = place(Math.min(Math.max(0, low), high));
    track.append(piece("fill", Math.min(zero, place(value)), Math.abs(place(value) - zero)));
  } else {
    const [from, to] = [place(value - spread), place(value + spread)];
    track.append(piece("spread", from, to - from), piece("tick", place(value), 0));
  }
  return h(
    "li",
    { class: chosen ? "chosen" : null },
    h("span", { class: "name" }, name),
    track,
    h("span", { class: "num" }, text ?? fmt(value, 3)),
  );
}

function piece(kind, left, width) {
  const made = h("i", { class: kind });
  made.style.left = `${left * 100}%`;
  made.style.width = `${width * 100}%`;
  return made;
}

const bars = (rows) => h("ul", { class: "bars" }, ...rows);

// What was seen -------------------------------------------------------------------------------------

function seen(episode, t) {
  const made = [];
  if (episode.words) made.push(h("p", { class: "said" }, episode.words.texts[episode.words.index[t]]));
  for (const part of episode.obs) {
    if (part.name) made.push(h("h4", {}, part.name));
    made.push(observation(part, t));
  }
  return made.length ? made : [DASH];
}

function observation(part, t) {
  if (part.kind === "discrete") return oneHot(part, part.values[t]);
  if (part.kind === "image") {
    const at = Math.floor(t / part.every);
    const alt = `What the agent sees at step ${at * part.every}`;
    return h("img", { class: "seen", alt, src: `data:image/png;base64,${part.pngs[at]}` });
  }
  const values = part.values[t];
  if (values.length <= FEW)
    return bars(values.map((value, i) => barRow(String(i), value ?? 0, part.low, part.high)));
  return columns(values, part.low, part.high);
}

function oneHot(part, value) {
  if (part.n > 64) return h("p", {}, `${fmt(value)} of ${fmt(part.n)}`);
  const cells = Array.from({ length: part.n }, (_, i) =>
    h("span", { class: i === value ? "on" : null }, String(i)),
  );
  return h("div", { class: "one-hot", role: "img", "aria-label": `${value} of ${part.n}` }, ...cells);
}

/** Many numbers as thin columns. */
function columns(values, low, high) {
  const top = Math.max(high, 0);
  const span = top - Math.min(low, 0) || 1;
  const svg = s("svg", {
    class: "columns",
    viewBox: `0 0 ${values.length} 100`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${values.length} numbers from ${fmt(low)} to ${fmt(high)}`,
  });
  values.forEach((value, i) => {
    const [from, to] = [
      ((top - Math.max(value ?? 0, 0)) / span) * 100,
      ((top - Math.min(value ?? 0, 0)) / span) * 100,
    ];
    svg.append(s("rect", { x: i + 0.1, width: 0.8, y: from, height: Math.max(to - from, 0.5) }));
  });
  return svg;
}

// What was done -------------------------------------------------------------------------------------

function acted(episode, t, names) {
  const made = [];
  const parts = episode.distribution[t];
  for (const part of parts) {
    if (part.part !== "" && parts.length > 1) made.push(h("h4", {}, part.part));
    made.push(distribution(episode, t, part, parts.length === 1 ? names : []));
  }
  if (!parts.length || parts.some((part) => part.kind === "normal"))
    made.push(h("p", { class: "small" }, `action ${plainAction(episode.action[t])}`));
  return made;
}

function distribution(episode, t, part, names) {
  const taken = chosen(episode.action[t], part.part);
  if (part.kind === "normal") {
    const [low, high] = normalRange(episode, part.part);
    return bars(
      part.mean.map((mean, i) =>
        barRow(`${i}`, mean, low, high, {
          spread: part.std[i],
          text: `${fmt(mean, 3)} ± ${fmt(part.std[i], 2)}`,
        }),
      ),
    );
  }
  if (part.kind === "values") {
    const [low, high] = valueRange(episode);
    const made = part.q.map((q, i) => [q, i]).filter(([q]) => q !== null);
    if (made.length > FEW) made.sort((a, b) => b[0] - a[0]);
    const list = bars(
      made.slice(0, FEW).map(([q, i]) =>
        barRow(names[i] ?? String(i), q, low, high, { chosen: i === taken, text: fmt(q, 3) }),
      ),
    );
    if (made.length > FEW)
      list.append(h("li", { class: "small" }, `and ${made.length - FEW} of lower value`));
    return list;
  }
  const row = (p, i, is) =>
    barRow(names[i] ?? String(i), p ?? 0, 0, 1, { chosen: is, text: percent(p ?? 0) });
  if (part.kind === "bernoulli")
    return bars(part.probs.map((p, i) => row(p, i, Array.isArray(taken) && taken[i] === 1)));
  const ranked = part.probs.map((p, i) => [p, i]);
  if (ranked.length > FEW) ranked.sort((a, b) => b[0] - a[0]);
  const list = bars(ranked.slice(0, FEW).map(([p, i]) => row(p, i, i === taken)));
  if (ranked.length > FEW)
    list.append(h("li", { class: "small" }, `and ${ranked.length - FEW} less likely ones`));
  return list;
}

/** The part of an action that a part of the distribution belongs to: "arm.2" is action.arm[2]. */
function chosen(action, name) {
  const path = name === "" ? [] : name.split(".");
  return path.reduce(
    (value, key) => (value !== null && typeof value === "object" ? value[key] : value),
    action,
  );
}

/** The range of a normal part over the whole episode, so that bars of different steps compare. */
function normalRange(episode, name) {
  episode.ranges ??= {};
  if (!episode.ranges[name]) {
    const parts = episode.distribution.flatMap((step) => step.filter((part) => part.part === name));
    const ends = parts.flatMap((part) =>
      part.mean.flatMap((mean, i) => [mean - part.std[i], mean + part.std[i]]),
    );
    episode.ranges[name] = extent([0, ...ends]);
  }
  return episode.ranges[name];
}

/** The range of the action values over the whole episode. */
function valueRange(episode) {
  episode.valueRange ??= extent([
    0,
    ...episode.distribution.flatMap((step) => step.flatMap((part) => (part.q ?? []).filter((q) => q !== null))),
  ]);
  return episode.valueRange;
}

function plainAction(action) {
  if (typeof action === "number") return fmt(action);
  if (Array.isArray(action)) return `[${action.map(plainAction).join(", ")}]`;
  if (action && typeof action === "object")
    return Object.entries(action)
      .map(([key, value]) => `${key} ${plainAction(value)}`)
      .join(", ");
  return String(action);
}

/** The action in a few words, for the line that is read aloud. */
function actionWords(episode, t, names) {
  const action = episode.action[t];
  return Number.isInteger(action) && names[action] !== undefined ? names[action] : plainAction(action);
}

// What was expected ---------------------------------------------------------------------------------

const hasActionValues = (episode) => episode.distribution[0].some((part) => part.kind === "values");

function expected(episode, t) {
  const sum = episode.reward.slice(0, t + 1).reduce((total, reward) => total + (reward ?? 0), 0);
  const rows = [
    [hasActionValues(episode) ? "value of the action" : "value", fmt(episode.value[t]), "c0"],
    ["reward", fmt(episode.reward[t]), "c1"],
    ["return so far", fmt(Number(sum.toPrecision(6))), null],
  ];
  if (episode.log_prob[t] !== null) rows.push(["log-prob of the action", fmt(episode.log_prob[t], 3), null]);
  return h(
    "dl",
    { class: "pairs" },
    ...rows.map(([name, value, colour]) =>
      h("div", {}, h("dt", {}, colour ? h("i", { class: `dot ${colour}` }) : null, name), h("dd", {}, value)),
    ),
  );
}
