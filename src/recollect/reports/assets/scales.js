// From numbers to places on the page, and paths through them.

// Scales --------------------------------------------------------------------------------------------

const finite = (values) =>
  values.filter((value) => value !== null && value !== undefined && Number.isFinite(value));

/** The lowest and the highest; a loop, because a call takes no hundred thousand arguments. */
function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

function domain(values, pad) {
  if (!values.length) return [0, 1];
  let [low, high] = extent(values);
  if (low === high)
    [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.2, high + Math.abs(high) * 0.2];
  const space = (high - low) * pad;
  return [low >= 0 && low - space < 0 ? 0 : low - space, high + space];
}

function linear(d0, d1, r0, r1) {
  const scale = (value) => r0 + ((value - d0) / (d1 - d0 || 1)) * (r1 - r0);
  scale.domain = [d0, d1];
  scale.invert = (place) => d0 + ((place - r0) / (r1 - r0 || 1)) * (d1 - d0);
  scale.ticks = (wanted) => {
    const raw = (d1 - d0) / wanted || 1;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= raw * 0.8) || raw;
    const ticks = [];
    for (let i = Math.ceil(d0 / step - 1e-9); i * step <= d1 + step * 1e-6; i += 1)
      ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  };
  return scale;
}

/** From 0 on, at times that people count in. */
function timeTicks(end, wanted) {
  const units = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = units.find((unit) => unit >= (end / wanted) * 0.8);
  if (end < 3 || !step) return linear(0, end, 0, 1).ticks(wanted);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

function logScale(d0, d1, r0, r1) {
  const [l0, l1] = [Math.log10(d0), Math.log10(d1 > d0 ? d1 : d0 * 10)];
  const inner = linear(l0, l1, r0, r1);
  const scale = (value) => inner(Math.log10(Math.max(value, d0)));
  scale.domain = [d0, d1];
  scale.invert = (place) => 10 ** inner.invert(place);
  scale.ticks = (wanted, given) => {
    if (given) return given;
    const step = Math.max(1, Math.round((l1 - l0) / wanted));
    const ticks = [];
    for (let k = Math.ceil(l0 - 1e-9); k <= l1 + 1e-9; k += step) ticks.push(10 ** k);
    return ticks;
  };
  return scale;
}

const power = (value) => {
  const exponent = Math.round(Math.log10(value));
  const digits = String(Math.abs(exponent)).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return exponent === 0 ? "1" : `10${exponent < 0 ? "⁻" : ""}${digits}`;
};

// Paths ---------------------------------------------------------------------------------------------

/** The line through what is there; points without a neighbour, which a line would not show. */
function outline(xs, ys, at) {
  let d = "";
  let run = [];
  const alone = [];
  const close = () => {
    if (run.length === 1) alone.push(run[0]);
    else if (run.length) d += "M" + run.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
    run = [];
  };
  for (let i = 0; i < xs.length; i += 1) {
    if (ys[i] === null || xs[i] === null) close();
    else run.push(at(i, ys[i]));
  }
  close();
  return { d, alone };
}

function area(xs, series, at) {
  const known = xs
    .map((_, i) => i)
    .filter((i) => xs[i] !== null && series.low[i] !== null && series.high[i] !== null);
  if (known.length < 2) return "";
  const path = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
  const top = path(known.map((i) => at(i, series.high[i])));
  return `M${top}L${path(known.reverse().map((i) => at(i, series.low[i])))}Z`;
}

function nearest(xs, ys, x, isLog) {
  const place = isLog ? Math.log : (value) => value;
  let best = -1;
  let gap = Infinity;
  for (let i = 0; i < xs.length; i += 1) {
    if (xs[i] === null || ys[i] === null) continue;
    const away = Math.abs(place(xs[i]) - place(x));
    if (away < gap) [best, gap] = [i, away];
  }
  return best;
}
