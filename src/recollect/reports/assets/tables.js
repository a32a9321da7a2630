// What happened, and the config.

function eventList(data) {
  const { events } = data;
  const made = section("events", "Events and advice", null);
  if (!events.length) {
    made.append(note("Nothing was noted: no events.jsonl, or an empty one."));
    return;
  }
  const saved = events.filter((event) => event.kind === "checkpoint").length;
  made.append(h("p", { class: "lead" }, data.advice));
  const row = (event) =>
    h(
      "li",
      { class: `event ${event.kind}` },
      h("span", { class: "num" }, event.steps === null ? DASH : fmt(event.steps)),
      h("span", { class: "num", title: date(event.time) }, duration(event.seconds)),
      h("span", { class: "kind" }, event.kind),
      h("span", { class: "text" }, event.text),
    );
  const list = h("ol", { class: "events" });
  const show = (all) =>
    list.replaceChildren(...events.filter((event) => all || event.kind !== "checkpoint").map(row));
  show(false);
  if (saved) {
    const box = h("input", { type: "checkbox", onchange: (event) => show(event.target.checked) });
    made.append(
      h(
        "div",
        { class: "controls" },
        h("label", { class: "check" }, box, ` also the ${count(saved, "checkpoint")}`),
      ),
    );
  }
  const names = ["steps", "time", "", ""].map((name) => h("span", { class: name ? "num" : null }, name));
  made.append(h("div", { class: "event names", "aria-hidden": "true" }, ...names), list);
}

function configTable(data) {
  const rows = data.config;
  const changed = rows.filter((row) => row.changed);
  const made = section(
    "config",
    "Config",
    rows.length ? `${changed.length} of ${rows.length} settings differ from the defaults.` : null,
  );
  if (!rows.length) {
    made.append(note("run.json holds no config."));
    return;
  }
  const body = h("tbody", {});
  const state = { text: "", all: changed.length === 0 };
  const draw = () => {
    const wanted = state.text.trim().toLowerCase();
    const fits = (row) =>
      wanted
        ? `${row.name} ${row.value} ${row.part} ${row.line}`.toLowerCase().includes(wanted)
        : state.all || row.changed;
    const found = rows.filter(fits);
    body.replaceChildren(...found.map(configRow));
    if (!found.length) body.append(h("tr", {}, h("td", { colspan: 3, class: "small" }, "No setting fits.")));
  };
  const search = h("input", {
    type: "search",
    id: "config-search",
    placeholder: "a name, a value, a word",
    oninput: (event) => ((state.text = event.target.value), draw()),
  });
  const which = segmented(
    "Show",
    [
      ["changed", "changed"],
      ["all", "all"],
    ],
    state.all ? "all" : "changed",
    (value) => ((state.all = value === "all"), draw()),
  );
  made.append(
    h("div", { class: "controls" }, h("label", { class: "select" }, h("span", {}, "Search"), search), which),
  );
  const names = ["setting", "value", "default"].map((name) => h("th", { scope: "col" }, name));
  made.append(
    h(
      "div",
      { class: "scroll" },
      h("table", { class: "config" }, h("thead", {}, h("tr", {}, ...names)), body),
    ),
  );
  draw();
}

function configRow(row) {
  const mark = row.changed ? h("span", { class: "mark" }, row.preset ? "by preset" : "changed") : null;
  return h(
    "tr",
    { class: row.changed ? "changed" : null },
    h("th", { scope: "row" }, h("code", {}, row.name), mark, h("small", {}, row.line || "")),
    h("td", {}, h("code", {}, row.value)),
    h("td", {}, row.default === null ? h("span", { class: "small" }, DASH) : h("code", {}, row.default)),
  );
}
