// The head of the page: the players, both scores, the clock and the zone.

const livingOf = (game, frame, side) =>
  game.present.filter((row) => game.side(row) === side && game.isAlive(frame, row)).length;

/** The players, both scores, the clock and the zone. */
class Board {
  constructor(game) {
    this.game = game;
    this.goal = game.limit / 2;
    this.sides = SIDES.map((name, side) => {
      const parts = { score: h("strong", {}), left: h("small", {}), fill: h("i", { class: "fill" }) };
      const player = h("span", { class: "player" }, sideTitle(game, side));
      const goal = `A score of ${fmt(this.goal)} wins the game`;
      const bar = h("span", { class: "track", title: goal }, parts.fill);
      const root = h("div", { class: `arena-score ${name}` }, player, parts.score, bar, parts.left);
      return { ...parts, root };
    });
    this.time = h("strong", { class: "arena-time" });
    this.zone = h("span", { class: "arena-zone" });
    const middle = h("div", { class: "arena-middle" }, this.time, this.zone);
    this.root = h("div", { class: "arena-board" }, this.sides[0].root, middle, this.sides[1].root);
  }

  go(frame) {
    const { game } = this;
    this.sides.forEach(({ score, left, fill }, side) => {
      const now = game.at("score", frame, side);
      const tick = game.at("tick", frame, side);
      score.textContent = now.toFixed(2);
      fill.style.width = `${Math.min(100, (100 * now) / this.goal)}%`;
      const rate = tick > 0 ? `, ${fmt(tick, 3)} per second` : "";
      left.textContent = `${livingOf(game, frame, side)} of ${livingOf(game, 0, side)} mechs left${rate}`;
    });
    this.time.textContent = gameClock(game.seconds(frame));
    const isOver = frame === game.last && game.ended !== "cut";
    this.zone.textContent = isOver ? `The game is over: ${outcome(game)}` : HOLDERS[game.at("zone", frame)];
  }
}

/** The title of the page, with the result, and the board. */
function arenaHead(game, board) {
  const words = outcome(game);
  const scores = SIDES.map((_, side) => game.at("score", game.last, side).toFixed(2));
  const facts = [
    "mech arena",
    `${game.mechs} against ${game.mechs}`,
    `seed ${game.seed}`,
    game.slot ? `slot ${game.slot}` : null,
    `game ${game.episode + 1}`,
    `map ${game.map}`,
    game.options.sensing === "full" ? "full sensing" : null,
  ];
  const title = h(
    "div",
    { class: "arena-title" },
    h("h1", {}, game.players.join(" against ")),
    h("p", {}, `${words[0].toUpperCase()}${words.slice(1)}, ${scores.join(" to ")}.`),
    h("p", { class: "kicker" }, facts.filter(Boolean).join(" · ")),
  );
  return h("header", { class: "arena-head" }, title, board.root);
}
