// The episode scrubber: a slider over time, tracks of words, value and reward, and the memory's heatmap.

function episodeSection(data) {
  const { episodes, actions } = data;
  const lead =
    "Step by step: what the agent saw, what it did, and the memory that each step started from. Drag, or " +
    "use the arrow keys, Home, End, and space to play.";
  const made = section("episode", "Inside an episode", episodes.length ? lead : null);
  const games = data.replays.map(({ href, text }) => h("li", {}, h("a", { href }, text)));
  if (games.length) made.append(h("p", {}, "Whole games, move by move:"), h("ul", { class: "games" }, ...games));
  made.append(...data.episode_notes.map(note));
  if (episodes.length) made.append(new Scrubber(episodes, actions).root);
  else if (!data.episode_notes.length)
    made.append(
      note(
        "No episode is recorded. recollect report without --no-play records some, and so does recollect play.",
      ),
    );
}

class Scrubber {
  /** ``traces``: one for each agent of an episode; those of one episode have the same number. */
  constructor(traces, actions) {
    const byNumber = new Map();
    for (const trace of traces) byNumber.set(trace.number, [...(byNumber.get(trace.number) ?? []), trace]);
    Object.assign(this, { episodes: [...byNumber.values()], actions, t: 0, timer: null });
    this.agents = this.episodes[0];
    this.episode = this.agents[0];
    this.build();
    this.chooseEpisode(0);
    onWidth(this.tracks, () => this.layout());
  }

  build() {
    const { episodes } = this;
    this.play = h("button", { type: "button", class: "play", onclick: () => this.toggle() }, "Play");
    this.slider = h("input", {
      type: "range",
      min: 0,
      value: 0,
      step: 1,
      class: "slider",
      "aria-label": "Step of the episode",
      oninput: () => this.go(Number(this.slider.value)),
    });
    this.where = h("output", { class: "where", "aria-live": "off" });
    this.detail = h("div", { class: "detail" });
    this.ribbon = h("div", { class: "ribbon" });
    this.plot = s("svg", {
      class: "strip",
      height: 84,
      role: "img",
      "aria-label": "Value and reward over the episode",
    });
    this.heat = new Heatmap();
    this.cursor = h("div", { class: "cursor" });
    this.starts = h("div", { class: "starts" });
    this.captions = {
      ribbon: h("p", { class: "caption" }, "observation"),
      plot: h("p", { class: "caption" }),
    };
    this.tracks = h(
      "div",
      { class: "tracks" },
      this.captions.ribbon,
      this.ribbon,
      this.captions.plot,
      this.plot,
      this.heat.caption,
      this.heat.canvas,
      this.starts,
      this.cursor,
    );
    this.notes = h("div", {});
    const pick = select(
      "Episode",
      episodes.map((agents, i) => [String(i), episodeName(agents, i)]),
      "0",
      (i) => this.chooseEpisode(Number(i)),
    );
    this.pickAgent = select("Agent", [], "0", (i) => this.choose(this.agents[Number(i)]));
    this.listen();
    this.root = h(
      "div",
      { class: "scrubber" },
      h("div", { class: "controls" }, pick, this.pickAgent, this.play, this.where),
      this.detail,
      h("div", { class: "slide" }, this.slider),
      this.tracks,
      h("div", { class: "below" }, this.heat.controls, this.heat.scale),
      this.notes,
    );
  }

  listen() {
    this.slider.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      this.toggle();
    });
    let held = false;
    this.tracks.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      held = true;
      this.stop();
      this.slider.focus({ preventScroll: true });
      this.go(this.stepAt(event.clientX));
      event.preventDefault();
    });
    addEventListener("pointermove", (event) => held && this.go(this.stepAt(event.clientX)));
    addEventListener("pointerup", () => (held = false));
    addEventListener("pointercancel", () => (held = false));
  }

  /** Show the same agent in another episode, if it is there. */
  chooseEpisode(i) {
    this.agents = this.episodes[i];
    const same = this.agents.findIndex((one) => one.agent === this.episode.agent);
    const options = this.agents.map((one, k) =>
      h("option", { value: String(k), selected: k === Math.max(0, same) }, agentName(one)),
    );
    this.pickAgent.querySelector("select").replaceChildren(...options);
    this.pickAgent.hidden = this.agents.length < 2 && this.agents[0].agent === null;
    this.choose(this.agents[Math.max(0, same)], 0);
  }

  /** Show an agent of the episode, at the same moment if ``t`` is not given. */
  choose(episode, t = this.t + this.episode.start - episode.start) {
    this.stop();
    this.episode = episode;
    this.slider.max = episode.steps - 1;
    this.heat.choose(episode);
    this.captions.plot.replaceChildren(
      h("i", { class: "swatch line c0" }),
      `value ${range(episode.value)}`,
      h("i", { class: "swatch stack c1" }),
      `reward ${range(episode.reward)}`,
    );
    this.notes.replaceChildren(...episode.notes.map(note));
    this.layout();
    this.go(t);
  }

  // Drawing

  layout() {
    const width = this.tracks.clientWidth;
    if (!width) return;
    const cell = width / this.episode.steps;
    const thumb = 18;
    // The thumb's middle travels exactly from the first cell's middle to the last one's.
    this.slider.style.width = `${width - cell + thumb}px`;
    this.slider.style.marginLeft = `${(cell - thumb) / 2}px`;
    this.drawRibbon(width);
    this.drawPlot(width);
    this.heat.draw();
    const starts = this.episode.first.filter((t) => t > 0);
    this.starts.replaceChildren(
      ...starts.map((t) => {
        const mark = h("i", { title: `an episode starts at step ${t}` });
        mark.style.left = `${(t / this.episode.steps) * 100}%`;
        return mark;
      }),
    );
    this.place();
  }

  drawRibbon(width) {
    const { words, steps } = this.episode;
    const few = words && words.texts.length <= 12;
    this.ribbon.hidden = this.captions.ribbon.hidden = !few;
    if (!few) return;
    const runs = [];
    words.index.forEach((index, t) => {
      if (runs.length && runs[runs.length - 1].index === index) runs[runs.length - 1].steps += 1;
      else runs.push({ index, steps: 1, from: t });
    });
    const common = mostCommon(words.index);
    this.ribbon.classList.toggle("few", runs.length < 120);
    this.ribbon.replaceChildren(
      ...runs.map((run) => {
        const text = words.texts[run.index];
        const room = (width * run.steps) / steps;
        const made = h(
          "span",
          {
            class: run.index === common && words.texts.length > 2 ? "usual" : `w${run.index % 6}`,
            title: `${text}, step ${run.from}`,
          },
          room > text.length * 7 + 6 ? text : "",
        );
        made.style.flexGrow = run.steps;
        return made;
      }),
    );
  }

  drawPlot(width) {
    const { steps, value, reward } = this.episode;
    const height = 84;
    this.plot.setAttribute("width", width);
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const at = (t) => ((t + 0.5) * width) / steps;
    const known = finite(value);
    const sy = linear(...domain(known, 0.08), height - 4, 6);
    const [least, most] = extent([0, ...finite(reward)]);
    const sr = linear(least, most > least ? most : 1, height - 4, 6);
    // A reward at every step is a background, one now and then an event.
    const often = reward.filter(Boolean).length > steps / 2;
    const bars = s("g", { class: `series stack c1 ${often ? "often" : ""}` });
    const wide = Math.max(1, Math.min(10, (width / steps) * 0.6));
    reward.forEach((one, t) => {
      if (!one) return;
      const [a, b] = [sr(Math.max(one, 0)), sr(Math.min(one, 0))];
      bars.append(s("rect", { x: at(t) - wide / 2, width: wide, y: a, height: Math.max(1.5, b - a) }));
    });
    const path = outline(
      value.map((_, t) => t),
      value,
      (t, v) => [at(t), sy(v)],
    );
    this.dot = s("circle", { class: "here c0", r: 4 });
    this.spot = (t) => (value[t] === null ? null : [at(t), sy(value[t])]);
    this.plot.replaceChildren(
      bars,
      s(
        "g",
        { class: "series line c0" },
        s("path", { class: "line", d: path.d }),
        ...path.alone.map(([cx, cy]) => s("circle", { class: "point", cx, cy, r: 2.5 })),
      ),
      this.dot,
    );
  }

  // Moving

  stepAt(clientX) {
    const box = this.tracks.getBoundingClientRect();
    return Math.floor(((clientX - box.left) / box.width) * this.episode.steps);
  }

  go(t) {
    const { episode } = this;
    this.t = Math.min(episode.steps - 1, Math.max(0, t));
    this.slider.value = this.t;
    const said = episode.words ? `${episode.words.texts[episode.words.index[this.t]]}, ` : "";
    this.slider.setAttribute(
      "aria-valuetext",
      `step ${this.t} of ${episode.steps - 1}: ${said}action ${actionWords(episode, this.t, this.actions)}, ` +
        `value ${fmt(episode.value[this.t])}, reward ${fmt(episode.reward[this.t])}`,
    );
    const start = episode.first.includes(this.t)
      ? " · an episode starts"
      : this.t === episode.steps - 1
        ? ` · ${ENDS[episode.ended]}`
        : "";
    const late = episode.start > 0 ? ` (${episode.start + this.t} of the episode)` : "";
    this.where.textContent = `step ${this.t} of ${episode.steps - 1}${late}${start}`;
    this.detail.replaceChildren(
      h("div", {}, h("h3", {}, "Sees"), ...seen(episode, this.t)),
      h("div", {}, h("h3", {}, "Does"), ...acted(episode, this.t, this.actions)),
      h("div", {}, h("h3", {}, "Expects"), expected(episode, this.t)),
    );
    this.place();
  }

  place() {
    this.cursor.style.left = `${((this.t + 0.5) / this.episode.steps) * 100}%`;
    const spot = this.spot?.(this.t);
    if (!spot || !this.dot) return;
    this.dot.setAttribute("cx", spot[0]);
    this.dot.setAttribute("cy", spot[1]);
  }

  toggle() {
    if (this.timer !== null) return this.stop();
    if (this.t === this.episode.steps - 1) this.go(0);
    const pause = Math.min(400, Math.max(40, 8000 / this.episode.steps));
    this.play.textContent = "Pause";
    this.timer = setInterval(() => {
      this.go(this.t + 1);
      if (this.t === this.episode.steps - 1) this.stop();
    }, pause);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }
}

const ENDS = {
  terminated: "the episode terminates",
  truncated: "the time limit ends it",
  cut: "the recording ends",
};

function episodeName(agents, i) {
  const [one] = agents;
  const trained = short(one.checkpoint_steps ?? 0);
  const mode = ["greedy", "sampled"].includes(one.mode) ? `${one.mode} ` : "";
  const steps = count(Math.max(...agents.map((agent) => agent.start + agent.steps)), "step");
  const what = one.agent === null ? `return ${fmt(one.return)}` : `return ${fmt(mean(agents))} on average`;
  return `${i + 1}: ${mode}${what}, ${steps}, trained ${trained}`;
}

const mean = (agents) => agents.reduce((sum, one) => sum + one.return, 0) / agents.length;

function agentName(one) {
  const group = one.group !== null && one.group !== one.agent ? ` (${one.group})` : "";
  return `${one.agent}${group}: return ${fmt(one.return)}, ${count(one.steps, "step")}`;
}

function range(values) {
  const known = finite(values);
  if (!known.length) return DASH;
  const [low, high] = extent(known);
  return low === high ? fmt(low, 3) : `${fmt(low, 3)} to ${fmt(high, 3)}`;
}

function mostCommon(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}
