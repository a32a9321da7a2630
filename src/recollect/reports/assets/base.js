// Elements, numbers in words, themes, the tooltip and small controls: what all sections share.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Elements ------------------------------------------------------------------------------------------

/** An element with attributes and children; strings become text, so that no name is ever markup. */
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A section and its entry in the navigation. ``title`` is a text or [heading, entry]. */
function section(id, title, lead, ...children) {
  const [long, brief] = Array.isArray(title) ? title : [title, title];
  const heading = h("h2", { id: `${id}-title` }, long);
  document.getElementById("nav").append(h("a", { href: `#${id}` }, brief));
  const made = h("section", { id, "aria-labelledby": `${id}-title` }, heading);
  if (lead) made.append(h("p", { class: "lead" }, lead));
  made.append(...children.filter(Boolean));
  document.getElementById("content").append(made);
  return made;
}

const note = (text) => h("p", { class: "note" }, text);

// Numbers in words ----------------------------------------------------------------------------------

const DASH = "–";
const MINUS = "−";

/** A number with about four digits. */
function fmt(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e6 || size < 1e-4) {
    text = value
      .toExponential(Math.max(0, digits - 2))
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  } else if (Number.isInteger(value)) {
    text = value.toLocaleString("en-US");
  } else {
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    text = value.toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 6) });
  }
  return text.replace("-", MINUS);
}

/** A count of steps for an axis: 500, 20k, 1.5M. */
function short(value) {
  const size = Math.abs(value);
  const scaled = (unit, letter) => `${Number((value / unit).toPrecision(4))}${letter}`.replace("-", MINUS);
  if (size >= 1e9) return scaled(1e9, "G");
  if (size >= 1e6) return scaled(1e6, "M");
  if (size >= 1e4) return scaled(1e3, "k");
  return fmt(value);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds < 10) return `${fmt(seconds, 2)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Seconds on an axis that ends at ``last``: 30 s, 2:30, 1:05:00. */
function clock(seconds, last) {
  if (last < 60) return `${fmt(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor((whole % 3600) / 60);
  if (last < 3600) return `${minutes}:${two(whole % 60)}`;
  return `${Math.floor(whole / 3600)}:${two(minutes)}:${two(whole % 60)}`;
}

const count = (n, one, many = `${one}s`) =>
  `${n === null ? DASH : n.toLocaleString("en-US")} ${n === 1 ? one : many}`;

const interval = (low, high) => (low === null || high === null ? "" : `${fmt(low, 3)} to ${fmt(high, 3)}`);

const percent = (share) => `${Number((share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0))}%`;

function date(iso) {
  const moment = new Date(iso);
  if (!iso || Number.isNaN(moment.getTime())) return iso || DASH;
  return (
    moment.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short", timeZone: "UTC" }) + " UTC"
  );
}

// Themes --------------------------------------------------------------------------------------------

const themed = [];
const onTheme = (redraw) => themed.push(redraw);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme-text").textContent = theme === "dark" ? "Light" : "Dark";
  document
    .getElementById("theme")
    .setAttribute("aria-label", `Use the ${theme === "dark" ? "light" : "dark"} theme`);
  for (const redraw of themed) redraw();
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = false; // remembered while the page is open, and nowhere else
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => chosen || setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    chosen = true;
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
}

// The tooltip ---------------------------------------------------------------------------------------

const tip = h("div", { class: "tip", role: "status", hidden: true });
document.body.append(tip);

/** Show a title and rows of [text, value, colour class] near a point of the window. */
function showTip(x, y, title, rows) {
  tip.replaceChildren(
    h("div", { class: "tip-title" }, title),
    ...rows.map(([text, value, colour]) =>
      h(
        "div",
        { class: "tip-row" },
        colour ? h("i", { class: `dot ${colour}` }) : null,
        h("span", {}, text),
        h("b", {}, value),
      ),
    ),
  );
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = x + 14 + width > innerWidth - 8 ? x - 14 - width : x + 14;
  const top = Math.min(Math.max(8, y - height / 2), innerHeight - height - 8);
  tip.style.transform = `translate(${Math.max(8, left)}px, ${top}px)`;
}

const hideTip = () => (tip.hidden = true);
addEventListener("scroll", hideTip, { passive: true });

// Controls ------------------------------------------------------------------------------------------

let groups = 0;

/** A choice of few: radio buttons that look like one bar. options: [[value, text], ...]. */
function segmented(legend, options, value, onchange) {
  const name = `choice-${(groups += 1)}`;
  const inputs = options.map(([option, text]) =>
    h(
      "label",
      {},
      h("input", {
        type: "radio",
        name,
        value: option,
        checked: option === value,
        onchange: () => onchange(option),
      }),
      h("span", {}, text),
    ),
  );
  return h("fieldset", { class: "segmented" }, h("legend", {}, legend), ...inputs);
}

/** A choice of many. */
function select(text, options, value, onchange) {
  const menu = h(
    "select",
    { onchange: (event) => onchange(event.target.value) },
    ...options.map(([option, shown]) => h("option", { value: option, selected: option === value }, shown)),
  );
  return h("label", { class: "select" }, h("span", {}, text), menu);
}

/** Call ``draw`` with an element's width now and whenever it changes. */
function onWidth(element, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = element.clientWidth;
    if (width > 0 && width !== last) draw((last = width));
  }).observe(element);
}
