// The log of events, which jumps to their time, and the strip of the whole game above the slider.

/** Kinds that are shown at first: hits and paint are too many. */
const LISTED = new Set(["kill", "zone", "fall", "shutdown"]);

class EventLog {
  constructor(game, go) {
    Object.assign(this, { game, shown: new Set(LISTED), at: -1 });
    this.list = h("ol", { class: "arena-events", tabindex: 0, "aria-label": "Events" });
    this.items = game.events.map((event) => {
      const button = h(
        "button",
        { type: "button", class: eventSide(game, event), onclick: () => go(event.at) },
        h("time", {}, gameClock(game.seconds(event.at))),
        h("span", {}, eventWords(game, event)),
      );
      return { event, button, item: h("li", {}, button) };
    });
    this.empty = note("Nothing of this kind happens in this game.");
    const heading = h("h3", {}, "Events");
    this.root = h("div", { class: "arena-log" }, heading, this.filters(), this.list, this.empty);
    this.filter();
  }

  filters() {
    const kinds = EVENT_KINDS.map(([kind, text]) => {
      const found = this.game.events.filter((event) => filedUnder(event) === kind).length;
      const box = h("input", {
        type: "checkbox",
        checked: this.shown.has(kind),
        disabled: found === 0,
        value: kind,
        onchange: () => {
          if (box.checked) this.shown.add(kind);
          else this.shown.delete(kind);
          this.filter();
        },
      });
      return h("label", { class: "check" }, box, `${text} `, h("span", { class: "small" }, String(found)));
    });
    return h("div", { class: "controls", role: "group", "aria-label": "Kinds of events" }, ...kinds);
  }

  filter() {
    const items = this.items.filter(({ event }) => this.shown.has(filedUnder(event)));
    this.list.replaceChildren(...items.map(({ item }) => item));
    this.empty.hidden = items.length > 0;
    this.list.hidden = items.length === 0;
    this.at = -1;
  }

  /** Mark the events up to a moment, and keep the last of them in view. */
  go(frame) {
    if (frame === this.at) return;
    this.at = frame;
    let last = null;
    for (const { event, button, item } of this.items) {
      const isPast = event.at <= frame;
      button.classList.toggle("past", isPast);
      button.removeAttribute("aria-current");
      if (isPast && item.isConnected) last = { button, item };
    }
    if (!last) return void (this.list.scrollTop = 0);
    last.button.setAttribute("aria-current", "time");
    const { list } = this;
    const top = last.item.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top + last.item.offsetHeight > list.scrollTop + list.clientHeight)
      list.scrollTop = top - list.clientHeight / 2;
  }

  /** The frame of the next listed event after ``frame``, or of the one before it; null: there is none. */
  beside(frame, way) {
    const moments = this.items.filter(({ item }) => item.isConnected).map(({ event }) => event.at);
    const found = moments.filter((at) => (way > 0 ? at > frame : at < frame));
    if (!found.length) return null;
    return way > 0 ? Math.min(...found) : Math.max(...found);
  }
}

const filedUnder = (event) => FILED_UNDER[event.kind] ?? event.kind;

/** The holders of the zone, both scores and the mechs destroyed, over the whole game. */
function gameStrip(game) {
  const [high, band] = [44, 8];
  const foot = high - band;
  const svg = s("svg", {
    class: "arena-strip",
    viewBox: `0 0 ${game.last} ${high}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": "Scores, holders of the zone and destroyed mechs over the game",
  });
  let start = 0;
  for (let frame = 1; frame <= game.last; frame += 1) {
    const holder = game.at("zone", start);
    if (frame < game.last && game.at("zone", frame) === holder) continue;
    const name = ["", "blue", "red", "both"][holder];
    if (name) svg.append(s("rect", { class: name, x: start, width: frame - start, y: foot, height: band }));
    start = frame;
  }
  const top = Math.max(1, game.at("score", game.last, 0), game.at("score", game.last, 1));
  const y = linear(0, top, foot - 2, 3);
  SIDES.forEach((name, side) => {
    const point = (frame) => `${frame},${y(game.at("score", frame, side)).toFixed(2)}`;
    const points = Array.from({ length: game.frames }, (_, frame) => point(frame));
    svg.append(s("polyline", { class: name, points: points.join(" ") }));
  });
  for (const event of game.events)
    if (event.kind === "kill")
      svg.append(s("line", { class: eventSide(game, event), x1: event.at, x2: event.at, y1: 0, y2: foot }));
  return svg;
}
