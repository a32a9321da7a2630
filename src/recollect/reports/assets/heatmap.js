// The memory of one episode as a picture: units from top to bottom, steps from left to right.

const DIVERGING = {
  light: ["#0f3b80", "#5d8fd1", "#f4f3ef", "#e2934f", "#8f3a00"],
  dark: ["#a6ccff", "#3d70bb", "#1b1e24", "#a9591a", "#ffc590"],
};

const SORTS = [
  ["lively", "liveliness"],
  ["number", "number"],
  ["peak", "time of peak"],
];

class Heatmap {
  constructor() {
    this.canvas = h("canvas", { class: "heat", role: "img" });
    this.caption = h("p", { class: "caption" });
    this.controls = h("div", { class: "controls" });
    this.scale = h("div", { class: "scale" });
    Object.assign(this, { sort: "lively", part: "all", order: [] });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    onTheme(() => this.draw());
  }

  choose(episode) {
    this.episode = episode;
    episode.cells ??= decode(episode.memory.data);
    this.part = "all";
    this.order = this.makeOrder();
    const { memory } = episode;
    const parts = [...new Set(memory.parts)];
    this.controls.replaceChildren();
    if (!memory.units) return;
    if (parts.length > 1) {
      const options = [["all", "all"], ...parts.map((part) => [part, part])];
      this.controls.append(segmented("Part", options, "all", (part) => this.arrange({ part })));
    }
    this.controls.append(segmented("Sort units by", SORTS, this.sort, (sort) => this.arrange({ sort })));
  }

  arrange(choice) {
    Object.assign(this, choice);
    this.order = this.makeOrder();
    this.draw();
  }

  value(unit, t) {
    const { memory, cells, steps } = this.episode;
    return (cells[unit * steps + t] / 32767) * memory.peak[unit];
  }

  /** The units to show from top to bottom. */
  makeOrder() {
    const { memory } = this.episode;
    const units = memory.parts
      .map((_, unit) => unit)
      .filter((unit) => this.part === "all" || memory.parts[unit] === this.part);
    if (this.sort === "number") return units;
    const limits = this.limits();
    const score = new Map(
      units.map((unit) => [
        unit,
        this.sort === "peak"
          ? this.peakTime(unit)
          : this.liveliness(unit) / limits.get(memory.parts[unit]) ** 2,
      ]),
    );
    return units.sort(
      (a, b) => (this.sort === "peak" ? score.get(a) - score.get(b) : score.get(b) - score.get(a)) || a - b,
    );
  }

  /** How much the unit changes: its variance. */
  liveliness(unit) {
    const { steps } = this.episode;
    let [sum, squares] = [0, 0];
    for (let t = 0; t < steps; t += 1) {
      const value = this.value(unit, t);
      sum += value;
      squares += value * value;
    }
    return squares / steps - (sum / steps) ** 2;
  }

  /** When the unit is furthest from 0. */
  peakTime(unit) {
    const { steps } = this.episode;
    let [best, at] = [-1, 0];
    for (let t = 0; t < steps; t += 1) {
      const size = Math.abs(this.value(unit, t));
      if (size > best) [best, at] = [size, t];
    }
    return at;
  }

  /** The largest size of a value in each part: parts such as h and c differ. */
  limits() {
    const { memory } = this.episode;
    const limits = new Map();
    memory.parts.forEach((part, unit) =>
      limits.set(part, Math.max(limits.get(part) || 1e-9, memory.peak[unit])),
    );
    return limits;
  }

  draw() {
    const { canvas, order } = this;
    const { memory, steps } = this.episode;
    canvas.hidden = !memory.units;
    const size = `${count(order.length, "unit")} × ${count(steps, "step")}`;
    this.caption.textContent = memory.units ? `memory: ${size}` : "This policy has no memory.";
    this.scale.replaceChildren();
    const width = canvas.clientWidth;
    if (!memory.units || !width) return;
    const height = Math.round(Math.min(512, Math.max(140, order.length * 6)));
    const dense = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * dense), Math.round(height * dense)];
    canvas.style.height = `${height}px`;
    canvas.setAttribute("aria-label", `The memory over the episode: ${size}`);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    const limits = this.limits();
    context.drawImage(this.pixels(limits), 0, 0, canvas.width, canvas.height);
    this.drawScale(limits);
  }

  /** A canvas with one pixel for each number. */
  pixels(limits) {
    const { order } = this;
    const { memory, steps } = this.episode;
    const made = document.createElement("canvas");
    [made.width, made.height] = [steps, order.length];
    const context = made.getContext("2d");
    const image = context.createImageData(steps, order.length);
    const palette = ramp();
    order.forEach((unit, row) => {
      const limit = limits.get(memory.parts[unit]);
      for (let t = 0; t < steps; t += 1) {
        const level = Math.round(((this.value(unit, t) / limit + 1) / 2) * 255);
        image.data.set(palette[Math.min(255, Math.max(0, level))], (row * steps + t) * 4);
      }
    });
    context.putImageData(image, 0, 0);
    return made;
  }

  drawScale(limits) {
    const bar = h("i", { class: "ramp" });
    const colours = DIVERGING[document.documentElement.dataset.theme];
    bar.style.background = `linear-gradient(90deg, ${colours.join(",")})`;
    const shown = [...limits].filter(([part]) => this.part === "all" || part === this.part);
    const ends = shown.map(([part, limit]) => `${shown.length > 1 ? `${part}: ` : ""}±${fmt(limit, 2)}`);
    const text = h("span", { class: "small" }, ends.join(", "));
    this.scale.replaceChildren(h("span", {}, MINUS), bar, h("span", {}, "+"), text);
  }

  hover(event) {
    const { steps, memory } = this.episode;
    const box = this.canvas.getBoundingClientRect();
    const place = (part, size, cells) => Math.min(cells - 1, Math.max(0, Math.floor((part / size) * cells)));
    const t = place(event.clientX - box.left, box.width, steps);
    const unit = this.order[place(event.clientY - box.top, box.height, this.order.length)];
    if (unit === undefined) return;
    const row = [memory.names[unit], fmt(this.value(unit, t)), null];
    showTip(event.clientX, event.clientY, `step ${t}`, [row]);
  }
}

function decode(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Int16Array(bytes.buffer);
}

/** 256 colours from the lowest through 0 to the highest. */
function ramp() {
  const stops = DIVERGING[document.documentElement.dataset.theme].map((hex) =>
    [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)),
  );
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1);
    const i = Math.min(stops.length - 2, Math.floor(place));
    const mixed = stops[i].map((from, k) => Math.round(from + (stops[i + 1][k] - from) * (place - i)));
    return [...mixed, 255];
  });
}
