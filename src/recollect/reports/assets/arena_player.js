// The player: time, the controls, the keyboard, and the parts of the page that follow the time.

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const KEYS = [
  ["Space", "play or pause"],
  ["← →", "one decision back or on; with Shift a second"],
  ["Home End", "start and end"],
  ["< >", "slower, faster"],
  ["p n", "event before, next event"],
  ["[ ]", "mech before, next mech"],
  ["f", "follow the mech"],
  ["Esc", "no mech"],
  ["+ − 0", "zoom in, out, whole map"],
  ["t s l", "trails, sight of all mechs, names"],
];

class Player {
  constructor(game, board) {
    Object.assign(this, { game, board, t: 0, speed: 1, isPlaying: false, selected: null });
    const go = (frame) => (this.pause(), this.go(frame));
    const choose = (row) => this.select(row);
    this.map = new ArenaMap(game, choose);
    this.roster = new Roster(game, choose);
    this.panel = new MechPanel(game, go, () => this.select(null));
    this.log = new EventLog(game, go);
    this.build();
    document.addEventListener("keydown", (event) => this.key(event));
    this.select(null);
    this.go(0);
  }

  build() {
    const { game } = this;
    const button = (path, title, onclick) =>
      h("button", { type: "button", class: "arena-step", title, "aria-label": title, onclick }, icon(path));
    this.play = h("button", { type: "button", class: "play", onclick: () => this.toggle() }, "Play");
    this.slider = h("input", {
      type: "range",
      class: "slider",
      min: 0,
      max: game.last,
      step: 1,
      value: 0,
      "aria-label": "Time of the game",
      oninput: () => (this.pause(), this.go(Number(this.slider.value))),
    });
    this.clock = h("output", { class: "where" });
    this.now = h("p", { id: "arena-now", class: "small", "aria-live": "off" });
    this.speeds = segmented(
      "Speed",
      SPEEDS.map((speed) => [String(speed), `${speed}×`]),
      "1",
      (speed) => (this.speed = Number(speed)),
    );
    this.boxes = {};
    const shows = Object.keys(SHOWN).map((name) => this.box(name));
    const transport = h(
      "div",
      { class: "controls arena-transport" },
      h(
        "div",
        { class: "arena-buttons" },
        button("M3 3h2v10H3zM13 3v10L6 8z", "Start", () => (this.pause(), this.go(0))),
        button("M11 3v10L4 8z", "One decision back", () => this.step(-1)),
        this.play,
        button("M5 3v10l7-5z", "One decision on", () => this.step(1)),
        button("M3 3v10l7-5zM11 3h2v10h-2z", "End", () => (this.pause(), this.go(game.last))),
      ),
      this.clock,
      this.speeds,
    );
    this.stage = h(
      "div",
      { class: "arena-main" },
      this.map.root,
      h("div", { class: "slide arena-slide" }, gameStrip(game), this.slider),
      transport,
      h("div", { class: "controls" }, ...shows),
      this.now,
    );
    this.root = h(
      "div",
      { class: "arena" },
      this.stage,
      h("div", { class: "arena-aside" }, this.panel.root, this.roster.root, this.log.root, keyHelp()),
    );
  }

  box(name) {
    const onchange = () => this.show(name, input.checked);
    const input = h("input", { type: "checkbox", name, checked: SHOWN[name], onchange });
    this.boxes[name] = input;
    const text = { trails: "Trails", sight: "Sight of all", names: "Names" }[name];
    return h("label", { class: "check" }, input, text);
  }

  show(name, is) {
    this.boxes[name].checked = this.map.shows[name] = is;
    this.map.draw();
  }

  // Time

  go(t) {
    const { game } = this;
    this.t = Math.min(game.last, Math.max(0, t));
    const frame = Math.floor(this.t + 1e-9);
    this.slider.value = frame;
    this.clock.textContent = `${gameClock(game.seconds(this.t))} of ${gameClock(game.seconds(game.last))}`;
    const words = `${gameClock(game.seconds(frame))}, decision ${frame} of ${game.last}`;
    this.slider.setAttribute("aria-valuetext", words);
    this.map.go(this.t);
    if (frame === this.frame) return;
    this.frame = frame;
    this.board.go(frame);
    this.roster.go(frame);
    this.panel.show(frame);
    this.log.go(frame);
    this.describe(frame);
  }

  /** The moment in words, for those who cannot see the map. */
  describe(frame) {
    const { game } = this;
    const living = SIDES.map((_, side) => livingOf(game, frame, side));
    this.now.textContent =
      `Decision ${frame} of ${game.last}. ${HOLDERS[game.at("zone", frame)]}. ` +
      `${count(living[0], "blue mech")} and ${count(living[1], "red mech")} are left.`;
  }

  step(count) {
    this.pause();
    this.go(Math.round(count > 0 ? Math.floor(this.t + 1e-9) + count : Math.ceil(this.t - 1e-9) + count));
  }

  toggle() {
    if (this.isPlaying) return this.pause();
    if (this.t >= this.game.last) this.go(0);
    this.isPlaying = true;
    this.play.textContent = "Pause";
    let before = performance.now();
    const tick = (now) => {
      if (!this.isPlaying) return;
      // A tab in the background gets no ticks: it goes on where it was.
      const passed = Math.min(250, Math.max(0, now - before)) / 1000;
      before = now;
      this.go(this.t + (passed * this.speed) / this.game.decision);
      if (this.t >= this.game.last) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.isPlaying = false;
    this.play.textContent = "Play";
  }

  faster(way) {
    const at = SPEEDS.indexOf(this.speed) + way;
    this.speeds.querySelectorAll("input")[Math.min(SPEEDS.length - 1, Math.max(0, at))].click();
  }

  // Mechs

  select(row) {
    this.selected = row;
    if (row === null) this.map.follows = false;
    this.map.select(row);
    this.roster.select(row);
    this.panel.select(row);
    if (this.frame !== undefined) this.panel.show(this.frame);
  }

  beside(way) {
    const { present } = this.game;
    const at = present.indexOf(this.selected);
    const next = at < 0 ? (way > 0 ? 0 : present.length - 1) : (at + way + present.length) % present.length;
    this.select(present[next]);
  }

  follow() {
    if (this.selected === null) return;
    this.map.follows = !this.map.follows;
    if (this.map.follows && this.map.camera.zoom === 1) this.map.zoom(3);
    this.map.go(this.t);
  }

  // Keys

  key(event) {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isSlider = target === this.slider;
    if (!isSlider && target.closest("select, input[type=radio], input[type=search]")) return;
    const onButton = target.closest("button, summary, input[type=checkbox]") && event.key === " ";
    const action = onButton ? null : this.actions()[event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  }

  actions() {
    const jump = (way) => {
      const found = this.log.beside(this.frame, way);
      if (found !== null) (this.pause(), this.go(found));
    };
    const faster = (way) => () => this.faster(way);
    const flip = (name) => () => this.show(name, !this.map.shows[name]);
    return {
      " ": () => this.toggle(),
      ArrowLeft: (event) => this.step(event.shiftKey ? -1 / this.game.decision : -1),
      ArrowRight: (event) => this.step(event.shiftKey ? 1 / this.game.decision : 1),
      Home: () => (this.pause(), this.go(0)),
      End: () => (this.pause(), this.go(this.game.last)),
      ...{ "<": faster(-1), ",": faster(-1), ">": faster(1), ".": faster(1) },
      ...{ p: () => jump(-1), n: () => jump(1), "[": () => this.beside(-1), "]": () => this.beside(1) },
      ...{ f: () => this.follow(), Escape: () => this.select(null) },
      ...{ "+": () => this.map.zoom(1.5), "=": () => this.map.zoom(1.5), "-": () => this.map.zoom(1 / 1.5) },
      ...{ 0: () => this.map.home(), t: flip("trails"), s: flip("sight"), l: flip("names") },
    };
  }
}

const icon = (d) =>
  s("svg", { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, s("path", { d }));

function keyHelp() {
  const rows = KEYS.map(([keys, words]) => h("div", {}, h("dt", {}, h("kbd", {}, keys)), h("dd", {}, words)));
  return h("details", {}, h("summary", {}, "Keys"), h("dl", { class: "pairs arena-keys" }, ...rows));
}

startTheme();
{
  const game = new Game(DATA);
  const board = new Board(game);
  const player = new Player(game, board);
  const content = document.getElementById("content");
  content.classList.add("arena-page");
  content.append(arenaHead(game, board), player.root);
  const from = `A replay, hash ${DATA.sha256.slice(0, 12)}.`;
  document.getElementById("footer").append(`${from} This file needs no network.`);
}
