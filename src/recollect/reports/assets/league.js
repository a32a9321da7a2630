// The league: ratings over time, the payoff matrix, the results against each opponent, cycles.

const FIRST_OPPONENTS = 15;
const NUMBERS_UP_TO = 16; // columns of the matrix with the share as a number

function leagueSection({ league }) {
  if (!league) return;
  if (league.problem) {
    section("league", "League", null, note(league.problem));
    return;
  }
  const { anchor, cycles, more_cycles: more, side } = league;
  const worth = side
    ? ` The first side is worth ${signed(side.value)} points (${signed(side.low)} to ${signed(side.high)}).`
    : "";
  const made = section(
    "league",
    "League",
    "Opponents are frozen snapshots of the agent and scripted players. Ratings are Elo points, fitted to all " +
      `games at once, with bootstrapped 95% intervals; ${anchor} is at 0.${worth}`,
  );
  made.append(h("h3", {}, "Rating over time"), ...ratingsOverTime(league));
  if (cycles.length) {
    const rest = more ? [h("li", {}, `and ${count(more, "more cycle")}`)] : [];
    made.append(
      h("h3", {}, "Cycles"),
      h("p", { class: "lead" }, "Each beats the next, clear of even. No rating can describe that."),
      h("ul", { class: "cycles" }, ...cycles.map((text) => h("li", {}, text)), ...rest),
    );
  } else {
    made.append(note("No cycles: no players beat each other in a circle, as far as the games show."));
  }
  made.append(h("h3", {}, "Who beats whom"), ...payoffMatrix(league.matrix));
  made.append(h("h3", {}, "The agent in training against each opponent"), ...opponentTables(league.opponents));
}

const signed = (value) => (value > 0 ? "+" : "") + fmt(Math.round(value));

function ratingText({ value, low, high, bounded }) {
  if (value === null) return DASH;
  if (low === high) return signed(value);
  return `${signed(value)} (${signed(low)} to ${signed(high)})${bounded ? "" : " *"}`;
}

// Ratings -------------------------------------------------------------------------------------------

function ratingsOverTime({ anchor, ratings, agent, added }) {
  const text = (points) => (i) =>
    `${points.names[i]}: ${ratingText({
      value: points.value[i],
      low: points.low[i],
      high: points.high[i],
      bounded: points.bounded[i],
    })}`;
  const of = (name, colour, kind, points) => ({
    name,
    colour,
    kind,
    x: { steps: points.steps },
    y: points.value,
    low: points.low,
    high: points.high,
    text: text(points),
  });
  const series = [];
  if (finite(agent.value).length)
    series.push(of("agent in training, from a snapshot to the next", "c0", "line", agent));
  if (finite(ratings.value).length) series.push(of("frozen snapshots, 95% interval", "c1", "points", ratings));
  if (!series.length) return [note(`No game links a snapshot to ${anchor} yet.`)];
  const levels = [{ value: 0, text: anchor }];
  for (const one of added) if (one.value !== null) levels.push({ value: one.value, text: one.name });
  const box = h("div", { class: "plot" });
  const said = series.map(({ name, y }) => `${name} ${finite(y).map(signed).join(", ")}`).join("; ");
  new Chart(box, { label: `Ratings over training: ${said}`, series, levels, height: 300 });
  const parts = [legend(series), box];
  if ([...ratings.bounded, ...agent.bounded].some((bounded, i) => !bounded && valueAt(ratings, agent, i) !== null))
    parts.push(note("*: won or lost all of its games against the rest. How far away it is, is a guess."));
  return parts;
}

/** The i-th of both lists of values, one after the other. */
const valueAt = (ratings, agent, i) => [...ratings.value, ...agent.value][i];

// The payoff matrix ---------------------------------------------------------------------------------

function payoffMatrix({ rows, columns, cells, hidden }) {
  if (!cells.length) return [note("No game has ended yet.")];
  const dense = columns.length > NUMBERS_UP_TO;
  const found = new Map(cells.map((cell) => [`${cell[0]} ${cell[1]}`, cell]));
  const drawn = [];
  const line = (row, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, row),
      ...columns.map((column, j) => {
        const cell = found.get(`${i} ${j}`);
        if (!cell) return h("td", { class: "none" });
        const td = payoffCell(row, column, cell, dense);
        drawn.push(td);
        return td.element;
      }),
    );
  const table = h(
    "table",
    { class: dense ? "payoff dense" : "payoff" },
    h(
      "thead",
      {},
      h("tr", {}, h("td", {}), ...columns.map((name) => h("th", { scope: "col" }, h("span", {}, name)))),
    ),
    h("tbody", {}, ...rows.map(line)),
  );
  const bar = h("i", { class: "ramp" });
  const paint = () => {
    const colours = ramp();
    bar.style.background = `linear-gradient(90deg, ${DIVERGING[document.documentElement.dataset.theme].join(",")})`;
    for (const { element, share } of drawn) {
      const [red, green, blue] = colours[Math.round(share * 255)];
      element.style.background = `rgb(${red}, ${green}, ${blue})`;
      element.style.color = luminance([red, green, blue]) > 0.19 ? "#101214" : "#ffffff";
    }
  };
  onTheme(paint);
  paint();
  const words =
    "Points of the row against the column, a draw as half a point" +
    (dense ? "; point at a cell for its numbers. " : ", in percent, and below it the 95% interval. ") +
    "s3+ is the agent in training, from s3 to the next snapshot; other rows are matches between members." +
    (hidden ? ` ${count(hidden, "row or column", "rows and columns")} in between are left out.` : "");
  return [
    h("p", { class: "lead" }, words),
    h("div", { class: "scale" }, h("span", {}, "0%"), bar, h("span", {}, "100%")),
    h("div", { class: "scroll payoff-box", tabindex: "0", role: "region", "aria-label": "Who beats whom" }, table),
  ];
}

function payoffCell(row, column, [, , win, draw, loss, low, high], dense) {
  const games = win + draw + loss;
  const share = (win + draw / 2) / games;
  const ends = `${Math.round(low * 100)} to ${Math.round(high * 100)}`;
  const said = `${row} against ${column}: ${Math.round(share * 100)}% (${ends}%) of ${count(games, "game")}`;
  const show = (event) =>
    showTip(event.clientX, event.clientY, `${row} against ${column}`, [
      ["points", `${percent(share)} (${ends}%)`, null],
      ["won, drawn, lost", [win, draw, loss].map((n) => fmt(n)).join(", "), null],
    ]);
  const element = h(
    "td",
    { "aria-label": said, onpointermove: show, onpointerleave: hideTip },
    dense ? null : [h("b", {}, String(Math.round(share * 100))), h("small", {}, ends.replace(" to ", "–"))],
  );
  return { element, share };
}

/** WCAG's relative luminance of an sRGB colour. */
function luminance(colour) {
  const [red, green, blue] = colour.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// Opponents -----------------------------------------------------------------------------------------

function opponentTables(opponents) {
  const [first, rest] = [opponents.slice(0, FIRST_OPPONENTS), opponents.slice(FIRST_OPPONENTS)];
  const parts = [opponentTable(first)];
  if (rest.length)
    parts.push(
      h("details", {}, h("summary", {}, `${count(rest.length, "more opponent")}, played less`), opponentTable(rest)),
    );
  return parts;
}

function opponentTable(opponents) {
  const most = Math.max(...opponents.map((one) => one.share || 0), 1e-9);
  const names = [
    ["opponent", ""],
    ["state", ""],
    ["steps", "num"],
    ["games", "num"],
    ["of all", ""],
    ["won, 95% interval", "num"],
    ["0% to 100%", "forest"],
    ["drawn", "num"],
    ["lost", "num"],
    ["Elo, 95% interval", "num"],
  ].map(([name, kind]) => h("th", { scope: "col", class: kind || null }, name));
  const range = (part) =>
    part ? `${percent(part[0])} (${Math.round(part[1] * 100)} to ${Math.round(part[2] * 100)})` : DASH;
  const rows = opponents.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", title: one.origin }, one.name),
      h("td", {}, one.kind === "snapshot" ? one.state : `${one.state}, ${one.kind}`),
      h("td", { class: "num" }, one.steps === null ? DASH : short(one.steps)),
      h("td", { class: "num" }, fmt(one.games)),
      h("td", { class: "played" }, one.games ? playedBar(one.share, most) : null),
      h("td", { class: "num" }, range(one.win)),
      h(
        "td",
        { class: "forest" },
        one.win ? forest({ iqm: one.win[0], low: one.win[1], high: one.win[2] }, 0, 1, "c0") : null,
      ),
      h("td", { class: "num" }, one.draw ? percent(one.draw[0]) : DASH),
      h("td", { class: "num" }, one.loss ? percent(one.loss[0]) : DASH),
      h("td", { class: "num" }, ratingText(one.rating)),
    ),
  );
  return h(
    "div",
    { class: "scroll" },
    h("table", { class: "opponents" }, h("thead", {}, h("tr", {}, ...names)), h("tbody", {}, ...rows)),
  );
}

/** The share of all games as a bar, with the number. */
function playedBar(share, most) {
  const width = Math.max(1, (share / most) * 60);
  return h(
    "span",
    {},
    s(
      "svg",
      { width: 64, height: 12, class: "c1", "aria-hidden": "true" },
      s("rect", { x: 0, y: 1, width, height: 10, rx: 2, fill: "currentColor" }),
    ),
    percent(share),
  );
}
