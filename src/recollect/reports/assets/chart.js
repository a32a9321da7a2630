// Line charts in SVG: curves, bands, points with intervals, levels, healthy ranges, a crosshair.

/**
 * A chart inside ``box``. The spec:
 *   label     what it shows, for people who do not see it
 *   series    [{name, colour, x: {steps, seconds}, y, low?, high?, kind: "line" | "points" | "faint"}]
 *   levels    [{value, text}] horizontal lines        marks  [{x, text}] vertical lines
 *   zone      {low, high}: the healthy range          log, logX: logarithmic axes
 *   x         which x to begin with                   xText, xFormat: the axis in words
 *   compact   a small one: no tooltip, ``readout(text)`` instead, crosshair shared through ``group``
 */
class Chart {
  constructor(box, spec) {
    Object.assign(this, { box, spec, x: spec.x || "steps", hidden: new Set() });
    this.height = spec.height || (spec.compact ? 120 : 320);
    this.svg = s("svg", { role: "img", "aria-label": spec.label, height: this.height, class: "chart" });
    if (!spec.compact) this.svg.setAttribute("tabindex", "0");
    box.append(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.leave());
    if (spec.group) spec.group.push(this);
    onWidth(box, () => this.draw());
  }

  setX(x) {
    this.x = x;
    this.draw();
  }

  get shown() {
    return this.spec.series.filter((series) => !this.hidden.has(series.key));
  }

  draw() {
    const { spec, height } = this;
    const width = this.box.clientWidth;
    if (!width) return;
    this.margin = spec.compact ? { l: 44, r: 10, t: 8, b: 22 } : { l: 52, r: 18, t: 14, b: 40 };
    this.size = { w: width - this.margin.l - this.margin.r, h: height - this.margin.t - this.margin.b };
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.makeScales();
    this.overlay = s("g", { class: "overlay" });
    this.svg.replaceChildren(
      this.zone(),
      this.axes(),
      ...this.levels(),
      ...this.marks(),
      ...this.curves(),
      this.overlay,
    );
  }

  makeScales() {
    const { spec } = this;
    const xs = this.shown.flatMap((series) => finite(series.x[this.x]));
    const ys = this.shown.flatMap((series) =>
      [series.y, series.low, series.high].flatMap((part) => finite(part || [])),
    );
    const extra = (spec.levels || [])
      .map((level) => level.value)
      .concat(finite([spec.zone?.low, spec.zone?.high]));
    xs.push(...(spec.marks || []).map((mark) => mark.x));
    const [first, last] = extent(xs);
    const fromZero = !spec.logX && first >= 0;
    const [x0, x1] = domain(fromZero ? [0, ...xs] : xs, 0);
    this.sx = spec.logX ? logScale(first, last, 0, this.size.w) : linear(x0, x1, 0, this.size.w);
    if (spec.log) {
      const positive = ys.concat(extra).filter((value) => value > 0);
      const low = 10 ** Math.floor(Math.log10(Math.max(1e-9, Math.min(extent(positive)[0], 1))));
      const high = 10 ** Math.ceil(Math.log10(Math.max(extent(positive)[1], low * 10)));
      this.sy = logScale(low, high, this.size.h, 0);
    } else {
      const [y0, y1] = domain(ys.concat(extra), 0.06);
      this.sy = linear(y0, y1, this.size.h, 0);
    }
  }

  zone() {
    const { zone } = this.spec;
    if (!zone) return s("g");
    const [low, high] = this.sy.domain;
    const top = this.sy(Math.min(zone.high ?? high, high));
    const bottom = this.sy(Math.max(zone.low ?? low, low));
    const { l, t } = this.margin;
    return s("rect", {
      class: "zone",
      x: l,
      y: t + top,
      width: this.size.w,
      height: Math.max(0, bottom - top),
    });
  }

  axes() {
    const { spec, margin, size } = this;
    const g = s("g", { class: "axes", transform: `translate(${margin.l},${margin.t})` });
    for (const tick of this.sy.ticks(spec.compact ? 3 : 5)) {
      const y = Math.round(this.sy(tick)) + 0.5;
      g.append(s("line", { class: "grid", x1: 0, x2: size.w, y1: y, y2: y }));
      g.append(
        s(
          "text",
          { x: -8, y: y + 3.5, "text-anchor": "end" },
          spec.yFormat ? spec.yFormat(tick) : spec.log ? power(tick) : fmt(tick),
        ),
      );
    }
    const last = this.sx.domain[1];
    const format = spec.xFormat || (this.x === "seconds" ? (value) => clock(value, last) : short);
    const wanted = Math.max(2, Math.floor(size.w / (spec.compact ? 90 : 110)));
    const ticks = this.x === "seconds" ? timeTicks(last, wanted) : this.sx.ticks(wanted, spec.xTicks);
    for (const tick of ticks) {
      const x = this.sx(tick);
      const anchor = x > size.w - 14 ? "end" : "middle";
      g.append(
        s("text", { x: anchor === "end" ? size.w : x, y: size.h + 16, "text-anchor": anchor }, format(tick)),
      );
    }
    g.append(s("line", { class: "axis", x1: 0, x2: size.w, y1: size.h + 0.5, y2: size.h + 0.5 }));
    if (!spec.compact) {
      const text = spec.xText || (this.x === "seconds" ? "time of training" : "env steps");
      g.append(
        s("text", { class: "axis-text", x: size.w / 2, y: size.h + 35, "text-anchor": "middle" }, text),
      );
    }
    return g;
  }

  levels() {
    const { margin, size } = this;
    return (this.spec.levels || []).map((level) => {
      const y = margin.t + this.sy(level.value);
      const above = y > margin.t + 16;
      return s(
        "g",
        { class: "level" },
        s("line", { x1: margin.l, x2: margin.l + size.w, y1: y, y2: y }),
        s("text", { x: margin.l + size.w - 2, y: above ? y - 5 : y + 13, "text-anchor": "end" }, level.text),
      );
    });
  }

  marks() {
    const { margin, size } = this;
    return (this.spec.marks || []).map((mark) => {
      const x = margin.l + this.sx(mark.x);
      const right = x > margin.l + size.w * 0.7;
      return s(
        "g",
        { class: "level" },
        s("line", { x1: x, x2: x, y1: margin.t, y2: margin.t + size.h }),
        s(
          "text",
          { x: x + (right ? -6 : 6), y: margin.t + size.h - 8, "text-anchor": right ? "end" : "start" },
          mark.text,
        ),
      );
    });
  }

  curves() {
    const { margin } = this;
    const move = `translate(${margin.l},${margin.t})`;
    const drawn = [];
    for (const series of this.shown) {
      const xs = series.x[this.x];
      const at = (i, value) => [this.sx(xs[i]), this.sy(value)];
      const g = s("g", { class: `series ${series.kind || "line"} ${series.colour}`, transform: move });
      if (series.low && series.kind !== "points")
        g.append(s("path", { class: "band", d: area(xs, series, at) }));
      if (series.kind === "points") {
        for (let i = 0; i < xs.length; i += 1) this.whisker(g, series, i, at);
      }
      const path = outline(xs, series.y, at);
      g.append(s("path", { class: "line", d: path.d, "stroke-dasharray": series.dash }));
      for (const [x, y] of path.alone) g.append(s("circle", { class: "point", cx: x, cy: y, r: 2.5 }));
      drawn.push(g);
      if (this.spec.zone && (this.spec.warnHigh || this.spec.warnLow)) drawn.push(this.outside(path.d, move));
    }
    return drawn;
  }

  whisker(g, series, i, at) {
    const y = series.y[i];
    if (y === null || series.x[this.x][i] === null) return;
    if (series.low?.[i] !== null && series.high?.[i] !== null && series.low) {
      const [x, top] = at(i, series.high[i]);
      g.append(s("line", { class: "whisker", x1: x, x2: x, y1: top, y2: at(i, series.low[i])[1] }));
    }
    const [cx, cy] = at(i, y);
    g.append(s("circle", { class: "point", cx, cy, r: 3.5 }));
  }

  /** The same line again in the colour of a warning, cut to what lies outside the healthy range. */
  outside(d, transform) {
    const { zone } = this.spec;
    const id = `clip-${(Chart.clips += 1)}`;
    const [low, high] = this.sy.domain;
    const top = this.sy(Math.min(zone.high ?? high, high));
    const bottom = this.sy(Math.max(zone.low ?? low, low));
    const clip = s("clipPath", { id });
    const rect = (y, height) => s("rect", { x: -4, y, width: this.size.w + 8, height: Math.max(0, height) });
    // A pixel away from the border: a line that lies on it is not outside.
    if (this.spec.warnHigh && zone.high !== null) clip.append(rect(-20, top + 19));
    if (this.spec.warnLow && zone.low !== null) clip.append(rect(bottom + 1, this.size.h - bottom + 20));
    const path = s("path", { class: `line ${this.spec.tone}`, d, "clip-path": `url(#${id})` });
    return s("g", { class: "series", transform }, clip, path);
  }

  // The crosshair

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const place = event.clientX - box.left - this.margin.l;
    if (place < -8 || place > this.size.w + 8) return this.leave();
    this.cross(this.sx.invert(place), event.clientX, event.clientY);
  }

  key(event) {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) || !this.shown.length) return;
    event.preventDefault();
    const longest = this.shown.reduce((a, b) => (b.y.length > a.y.length ? b : a));
    const xs = longest.x[this.x];
    const stride = Math.max(1, Math.round(xs.length / 100));
    const moves = { ArrowLeft: this.at - stride, ArrowRight: this.at + stride, Home: 0, End: xs.length - 1 };
    this.at = Math.min(xs.length - 1, Math.max(0, Number.isFinite(moves[event.key]) ? moves[event.key] : 0));
    const box = this.svg.getBoundingClientRect();
    this.cross(xs[this.at], box.left + this.margin.l + this.sx(xs[this.at]), box.top + this.height / 2);
  }

  cross(x, clientX, clientY) {
    const rows = this.show(x);
    if (this.spec.group) for (const other of this.spec.group) if (other !== this) other.show(x);
    if (this.spec.compact || !rows.length) return;
    const format =
      this.spec.xFormat ||
      (this.x === "seconds" ? (value) => clock(value, value) : (value) => `${fmt(Math.round(value))} steps`);
    showTip(
      clientX,
      clientY,
      this.spec.xTip ? this.spec.xTip(rows[0].x) : format(rows[0].x),
      rows.map((row) => row.cells),
    );
  }

  /** Draw the crosshair at ``x``; the nearest value of each series. */
  show(x) {
    if (!this.overlay) return [];
    const { margin, size } = this;
    const rows = [];
    this.overlay.replaceChildren();
    for (const series of this.shown) {
      if (series.kind === "faint") continue;
      const i = nearest(series.x[this.x], series.y, x, this.spec.logX);
      if (i < 0) continue;
      const [px, py] = [margin.l + this.sx(series.x[this.x][i]), margin.t + this.sy(series.y[i])];
      if (!rows.length)
        this.overlay.append(
          s("line", { class: "hair", x1: px, x2: px, y1: margin.t, y2: margin.t + size.h }),
        );
      this.overlay.append(
        s("circle", { class: `here ${series.colour}`, cx: px, cy: py, r: this.spec.compact ? 3 : 4 }),
      );
      const bounds =
        series.low && series.low[i] !== null && series.low[i] !== series.high[i]
          ? ` (${interval(series.low[i], series.high[i])})`
          : "";
      rows.push({
        x: series.x[this.x][i],
        cells: [series.name, series.text ? series.text(i) : fmt(series.y[i]) + bounds, series.colour],
      });
      if (this.spec.readout) this.spec.readout(fmt(series.y[i]), true);
    }
    return rows;
  }

  leave() {
    hideTip();
    for (const chart of this.spec.group || [this]) {
      chart.overlay?.replaceChildren();
      chart.spec.readout?.(null, false);
    }
  }
}
Chart.clips = 0;

/** Names and colours of the series of a chart; with ``chart``, each can be hidden. */
function legend(series, chart) {
  const items = series.map((one) => {
    const mark = h("i", { class: `swatch ${one.kind || "line"} ${one.colour}` });
    if (!chart) return h("li", {}, mark, one.name);
    const toggle = (event) => {
      for (const key of one.keys) chart.hidden[event.target.checked ? "delete" : "add"](key);
      chart.draw();
    };
    return h(
      "li",
      {},
      h("label", {}, h("input", { type: "checkbox", checked: true, onchange: toggle }), mark, one.name),
    );
  });
  return h("ul", { class: "legend" }, ...items);
}
