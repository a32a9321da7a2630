// The words of a game: names of mechs, times, events.

const mechName = (game, row) => `${SIDES[game.side(row)]} ${row % game.mechs}`;
const mechTitle = (game, row) => `${mechName(game, row)}, ${game.kind(row).name}`;

const sideTitle = (game, side) => `${side === 0 ? "Blue" : "Red"}: ${game.players[side]}`;

/** Seconds of the game, such as 0:07.25. */
function gameClock(seconds) {
  const whole = Math.floor(seconds);
  const rest = (seconds - whole).toFixed(2).slice(1);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}${rest}`;
}

const HOLDERS = ["The zone is empty", "Blue holds the zone", "Red holds the zone", "The zone is contested"];
const ENDED = {
  terminated: "decided",
  truncated: "by the time limit",
  cut: "the recording stops before the end",
};

/** How the game came out. */
function outcome(game) {
  if (game.ended === "cut") return "no result: the recording stops before the end of the game";
  const winner = { 1: "blue wins", 0: "a draw", "-1": "red wins" }[game.won];
  return `${winner}, ${ENDED[game.ended]}`;
}

const EVENT_KINDS = [
  ["kill", "Destroyed"],
  ["zone", "Zone"],
  ["fall", "Falls"],
  ["shutdown", "Shutdowns"],
  ["paint", "Paint"],
  ["smoke", "Smoke"],
  ["hit", "Hits"],
];
/** Kinds of the log that are filtered with another one. */
const FILED_UNDER = { legs: "fall", end: "zone" };

/** An event in a sentence. */
function eventWords(game, event) {
  const who = event.who === undefined ? "" : mechTitle(game, event.who);
  const whom = event.whom === undefined ? "" : mechTitle(game, event.whom);
  switch (event.kind) {
    case "kill":
      return `${who} destroys ${whom}`;
    case "hit":
      return `${who} hits ${whom} for ${fmt(event.amount)}${lasting(game, event)}`;
    case "paint":
      return `${who} paints ${whom}`;
    case "smoke":
      return `${who} fires smoke`;
    case "fall":
      return `${who} falls`;
    case "legs":
      return `${who} loses its legs`;
    case "shutdown":
      return `${who} shuts down from heat`;
    case "zone":
      return HOLDERS[event.value];
    default:
      return `The game ends: ${outcome(game)}`;
  }
}

const lasting = (game, { at, until }) =>
  until > at ? ` within ${fmt(game.seconds(until - at + 1))} s` : "";

/** The colour class of an event: the side that did it, or that it happened to. */
function eventSide(game, event) {
  if (event.kind === "zone") return ["", "blue", "red", ""][event.value];
  if (event.who !== undefined) return SIDES[game.side(event.who)];
  return { 1: "blue", "-1": "red" }[event.value] ?? "";
}
