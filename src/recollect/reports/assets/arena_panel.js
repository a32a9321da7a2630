// The lists of both sides, and everything about the mech that is selected.

/** A list of the mechs of both sides; each is a button that selects its mech. */
class Roster {
  constructor(game, choose) {
    this.game = game;
    this.items = new Map();
    const lists = SIDES.map((name, side) => {
      const rows = game.present.filter((row) => game.side(row) === side);
      return h(
        "div",
        { class: "arena-side" },
        h("h3", { class: name }, sideTitle(game, side)),
        h("ul", { class: "arena-list" }, ...rows.map((row) => this.item(row, choose))),
      );
    });
    this.root = h("div", { class: "arena-roster" }, ...lists);
  }

  item(row, choose) {
    const { game } = this;
    const bar = h("i", { class: "fill" });
    const status = h("span", { class: "status" });
    const score = h("span", { class: "num" });
    const button = h(
      "button",
      { type: "button", "aria-pressed": "false", "data-row": row, onclick: () => choose(row) },
      shapeIcon(game.kind(row).name, game.side(row)),
      h("span", { class: "name" }, `${row % game.mechs} ${game.kind(row).name}`),
      status,
      score,
      h("span", { class: `track ${SIDES[game.side(row)]}` }, bar),
    );
    this.items.set(row, { button, bar, status, score });
    return h("li", {}, button);
  }

  select(selected) {
    for (const [row, { button }] of this.items) button.setAttribute("aria-pressed", String(row === selected));
  }

  go(frame) {
    const { game } = this;
    for (const [row, { button, bar, status, score }] of this.items) {
      bar.style.width = `${(100 * game.at("hp", frame, row)) / game.kind(row).hp}%`;
      status.textContent = game.status(frame, row);
      button.classList.toggle("gone", !game.isAlive(frame, row));
      const kills = game.killsBy(frame, row);
      score.textContent = `${Math.round(game.at("dealt", frame, row))}${kills ? ` · ${kills}✕` : ""}`;
      score.title = `${fmt(game.at("dealt", frame, row))} damage dealt, ${count(kills, "mech")} destroyed`;
    }
  }
}

/** The selected mech: what it is and does now, and charts over the whole game. */
class MechPanel {
  /** ``go``: called with the frame that was clicked in a chart; ``close``: without arguments. */
  constructor(game, go, close) {
    Object.assign(this, { game, go, row: null, charts: [] });
    this.heading = h("h3", {});
    this.facts = h("dl", { class: "pairs" });
    this.plots = h("div", { class: "arena-charts" });
    const closing = h("button", { type: "button", class: "quiet", onclick: close }, "Close");
    this.root = h(
      "section",
      { class: "arena-panel", "aria-label": "Selected mech", hidden: true },
      h("div", { class: "arena-panel-head" }, this.heading, closing),
      this.facts,
      this.plots,
    );
  }

  select(row) {
    this.row = row;
    this.root.hidden = row === null;
    if (row === null) return;
    const { game } = this;
    const kind = game.kind(row);
    const title = `${mechTitle(game, row)}, ${kind.tons} t`;
    this.heading.replaceChildren(shapeIcon(kind.name, game.side(row)), title);
    const column = (name) => Array.from({ length: game.frames }, (_, frame) => game.at(name, frame, row));
    const extras = [
      ["memory", "memory norm"],
      ["value", "value"],
    ].map(([name, words]) => [words, game.extra(name, row), null]);
    const plots = [
      ["health", column("hp"), kind.hp],
      ["heat", column("heat"), kind.cap],
      ["stability", column("stability"), game.stability],
      ["legs", column("legs"), kind.legs],
      ...extras.filter(([, values]) => values !== null),
    ];
    this.charts = plots.map(([name, values, most]) => new SmallChart(name, values, most, this.game, this.go));
    this.plots.className = `arena-charts ${SIDES[game.side(row)]}`;
    this.plots.replaceChildren(...this.charts.map((chart) => chart.root));
  }

  show(frame) {
    if (this.row === null) return;
    this.facts.replaceChildren(
      ...this.rows(frame).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    );
    for (const chart of this.charts) chart.show(frame);
  }

  /** [name, value] of everything that is shown of this moment. */
  rows(frame) {
    const { game, row } = this;
    const number = (name) => fmt(game.at(name, frame, row), 4);
    const aim = game.at("aim", frame, row);
    const names = (rows) => (rows.length ? rows.map((other) => mechName(game, other)).join(", ") : "none");
    const contacts = game.contacts(frame, row).filter((other) => other >= 0);
    const left = (name) => (game.at(name, frame, row) > 0 ? `${number(name)} s left` : "no");
    const weapons = frame > 0 ? game.fired(frame, row) : [];
    return [
      ["now", game.status(frame, row) + (game.isDown(frame, row) ? `, rises in ${number("down")} s` : "")],
      ["aims at", aim < 0 ? "nothing" : mechTitle(game, aim)],
      ["has fired", weapons.length ? weapons.join(", ") : "nothing"],
      ["sees", names(game.seen(frame, row))],
      ["contacts", names(contacts)],
      ["sensors", `${number("range")} m${["", ", jams", ", clears"][game.at("ewar", frame, row)]}`],
      ["painted", left("painted")],
      ["suppressed", left("suppressed")],
      ["place", `${number("x")}, ${number("y")} m, ${fmt(game.at("above", frame, row), 2)} m up`],
      ["damage dealt", `${number("dealt")}, ${count(game.killsBy(frame, row), "mech")} destroyed`],
    ];
  }
}

/** A line over the whole game with its present value; a click goes to its moment. */
class SmallChart {
  constructor(name, values, most, game, go) {
    Object.assign(this, { values, most, last: game.last });
    this.now = h("output", {});
    this.plot = s("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.x = linear(0, game.last, 0, 100);
    const known = finite(values);
    const [low, high] = extent([0, most ?? 0, ...known]);
    this.y = linear(low, high || 1, 29, 1);
    const path = outline(
      values.map((_, frame) => frame),
      values.map((value) => (Number.isFinite(value) ? value : null)),
      (frame, value) => [this.x(frame), this.y(value)],
    );
    this.cursor = s("line", { class: "hair", y1: 0, y2: 30 });
    if (most !== null) {
      const top = this.y(most);
      this.plot.append(s("line", { class: "limit", x1: 0, x2: 100, y1: top, y2: top }));
    }
    this.plot.append(s("path", { class: "line", d: path.d }), this.cursor);
    const at = (event) => {
      const box = this.plot.getBoundingClientRect();
      return ((event.clientX - box.left) / box.width) * game.last;
    };
    this.plot.addEventListener("click", (event) => go(Math.round(at(event))));
    this.root = h(
      "figure",
      { class: "arena-chart", role: "img", "aria-label": `${name} over the game` },
      h("figcaption", {}, h("span", {}, name), this.now),
      this.plot,
    );
  }

  show(frame) {
    const value = this.values[frame] ?? null;
    const of = this.most === null ? "" : ` of ${fmt(this.most)}`;
    this.now.textContent = Number.isFinite(value) ? `${fmt(value, 4)}${of}` : DASH;
    this.cursor.setAttribute("x1", this.x(frame));
    this.cursor.setAttribute("x2", this.x(frame));
  }
}
