// The map: a canvas with a camera that zooms and pans, and the mech under the pointer.

const SHOWN = { trails: true, sight: false, names: true };
const COLOURS = {
  ...{ ink: "--ink", muted: "--muted", blue: "--blue", red: "--red", paper: "--paper" },
  ...{ empty: "--ring-empty" },
  ...{ paint: "--paint", laser: "--laser", flame: "--flame", smoke: "--smoke", smokeEdge: "--smoke-edge" },
  ...{ off: "--off", bad: "--bad", onMech: "--on-mech", shade: "--wall-shadow" },
};
const MOST_ZOOM = 8;

class ArenaMap {
  /** ``choose``: called with the row that was clicked, or null. */
  constructor(game, choose) {
    Object.assign(this, { game, choose, selected: null, hovered: null, t: 0, follows: false });
    this.shows = { ...SHOWN };
    this.camera = { x: 0, y: 0, zoom: 1 };
    this.canvas = h("canvas", {
      class: "arena-canvas",
      tabindex: 0,
      role: "img",
      "aria-label": "The arena from above",
      "aria-describedby": "arena-now",
    });
    this.context = this.canvas.getContext("2d");
    this.root = h("div", { class: "arena-stage" }, this.canvas, this.buttons());
    this.readColours();
    onTheme(() => (this.readColours(), this.draw()));
    this.listen();
    onWidth(this.root, () => this.resize());
  }

  buttons() {
    const button = (text, label, onclick) =>
      h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    return h(
      "div",
      { class: "arena-zoom" },
      button("+", "Zoom in", () => this.zoom(1.5)),
      button(MINUS, "Zoom out", () => this.zoom(1 / 1.5)),
      button("⌂", "Show the whole map", () => this.home()),
    );
  }

  readColours() {
    this.colours = {};
    for (const [name, variable] of Object.entries(COLOURS)) this.colours[name] = css(variable);
    this.ground = drawGround(this.game.terrain);
  }

  resize() {
    const size = this.canvas.clientWidth;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.size = size;
    this.canvas.width = this.canvas.height = Math.round(size * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  /** Pixels for each metre. */
  get scale() {
    return (this.size / this.game.terrain.side) * this.camera.zoom;
  }

  toCanvas(x, y) {
    const { camera, scale, size } = this;
    return [size / 2 + (x - camera.x) * scale, size / 2 - (y - camera.y) * scale];
  }

  toMap(left, top) {
    const { camera, scale, size } = this;
    return [camera.x + (left - size / 2) / scale, camera.y - (top - size / 2) / scale];
  }

  /** Zoom by a factor; the point (left, top) of the canvas stays where it is. */
  zoom(factor, left = this.size / 2, top = this.size / 2) {
    const [x, y] = this.toMap(left, top);
    this.camera.zoom = Math.min(MOST_ZOOM, Math.max(1, this.camera.zoom * factor));
    this.canvas.style.touchAction = this.camera.zoom > 1 ? "none" : "pan-y";
    const [toX, toY] = this.toMap(left, top);
    this.pan(x - toX, y - toY);
  }

  pan(dx, dy) {
    const { camera } = this;
    const room = (this.game.terrain.side / 2) * (1 - 1 / camera.zoom);
    camera.x = Math.min(room, Math.max(-room, camera.x + dx));
    camera.y = Math.min(room, Math.max(-room, camera.y + dy));
    this.draw();
  }

  home() {
    this.follows = false;
    this.camera = { x: 0, y: 0, zoom: 1 };
    this.draw();
  }

  select(row) {
    this.selected = row;
    this.draw();
  }

  go(t) {
    this.t = t;
    if (this.follows && this.selected !== null) {
      const [x, y] = this.game.place(t, this.selected);
      this.pan(x - this.camera.x, y - this.camera.y);
    } else this.draw();
  }

  /** The mech at a point of the canvas; of several the nearest; null if there is none. */
  mechAt(left, top) {
    let [best, gap] = [null, Infinity];
    for (const row of this.game.present) {
      const [x, y] = this.toCanvas(...this.game.place(this.t, row));
      const away = Math.hypot(x - left, y - top);
      if (away < Math.max(14, radiusOf(this, row) * 1.6) && away < gap) [best, gap] = [row, away];
    }
    return best;
  }

  listen() {
    const pointers = new Map();
    let moved = 0;
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, at(event));
      moved = 0;
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const [left, top] = at(event);
      const before = pointers.get(event.pointerId);
      if (!before) return this.hover(event, this.mechAt(left, top));
      moved += Math.hypot(left - before[0], top - before[1]);
      pointers.set(event.pointerId, [left, top]);
      if (moved < 4) return;
      this.follows = false;
      hideTip();
      const others = [...pointers].filter(([id]) => id !== event.pointerId);
      if (others.length) {
        const [, other] = others[0];
        const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
        this.zoom(apart([left, top]) / apart(before), ...other);
      } else this.pan((before[0] - left) / this.scale, (top - before[1]) / this.scale);
    });
    const up = (event) => {
      if (!pointers.delete(event.pointerId) || moved >= 4 || event.type !== "pointerup") return;
      this.choose(this.mechAt(...at(event)));
    };
    this.canvas.addEventListener("pointerup", up);
    this.canvas.addEventListener("pointercancel", up);
    this.canvas.addEventListener("pointerleave", () => this.hover(null, null));
    this.canvas.addEventListener(
      "wheel",
      (event) => {
        // The wheel scrolls the page, unless the map was clicked before or the fingers pinch.
        if (!event.ctrlKey && document.activeElement !== this.canvas) return;
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 400), ...at(event));
      },
      { passive: false },
    );
  }

  hover(event, row) {
    this.canvas.style.cursor = row === null ? "" : "pointer";
    if (row === null) hideTip();
    else showTip(event.clientX, event.clientY, mechTitle(this.game, row), tipRows(this.game, this.t, row));
    if (this.hovered === row) return;
    this.hovered = row;
    this.draw();
  }

  draw() {
    if (!this.size) return;
    const { context: c, game, t, size, shows } = this;
    c.fillStyle = css("--surface");
    c.fillRect(0, 0, size, size);
    const half = game.terrain.side / 2;
    const [left, top] = this.toCanvas(-half, half);
    c.imageSmoothingQuality = "high";
    c.drawImage(this.ground, left, top, 2 * half * this.scale, 2 * half * this.scale);
    drawZone(this, t);
    drawSmoke(this, t);
    const alive = game.present.filter((row) => game.isAlive(Math.floor(t), row));
    if (shows.trails) for (const row of alive) drawTrail(this, row, t);
    if (shows.sight) for (const row of alive) drawSight(this, row, t);
    else if (this.selected !== null) drawSight(this, this.selected, t);
    const wrecks = game.present.filter((row) => !alive.includes(row));
    for (const row of [...wrecks, ...alive]) drawMech(this, row, t);
    for (const row of alive) drawFire(this, row, t);
    drawShots(this, t);
    drawHits(this, t);
  }
}

/** The numbers of a mech for the tooltip. */
function tipRows(game, t, row) {
  const frame = Math.floor(t);
  const kind = game.kind(row);
  const of = (name, most) => `${fmt(game.at(name, frame, row), 3)} of ${fmt(most)}`;
  return [
    ["health", of("hp", kind.hp), SIDES[game.side(row)]],
    ["heat", of("heat", kind.cap)],
    ["stability", of("stability", game.stability)],
    ["now", game.status(frame, row)],
  ];
}
