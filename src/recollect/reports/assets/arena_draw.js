// What is between the mechs: the zone, trails, lines of sight and of fire, shots, smoke, explosions.

/** Frames of a trail, and of the ring where a mech was destroyed. */
const TRAIL = 24;
const BLAST = 5;

function line(c, from, to, colour, width, dash = []) {
  c.save();
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.setLineDash(dash);
  c.beginPath();
  c.moveTo(...from);
  c.lineTo(...to);
  c.stroke();
  c.restore();
}

/** The zone in the colour of its holder; striped if both sides are in it. */
function drawZone(view, t) {
  const { context: c, game, colours } = view;
  const holder = game.at("zone", Math.floor(t));
  const [x, y] = view.toCanvas(0, 0);
  const radius = game.radius * view.scale;
  const colour = [colours.muted, colours.blue, colours.red, colours.ink][holder];
  c.save();
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.globalAlpha = holder === EMPTY ? 0.1 : 0.2;
  if (holder === CONTESTED) {
    c.clip();
    c.lineWidth = 7;
    for (let i = -radius * 2, k = 0; i < radius * 2; i += 10, k += 1) {
      c.strokeStyle = k % 2 ? colours.blue : colours.red;
      c.beginPath();
      c.moveTo(x + i - radius, y + radius);
      c.lineTo(x + i + radius, y - radius);
      c.stroke();
    }
  } else {
    c.fillStyle = colour;
    c.fill();
  }
  c.restore();
  ring(c, x, y, radius, colour, 2, holder === EMPTY ? [6, 5] : []);
}

/** The way that a mech has come, fading. */
function drawTrail(view, row, t) {
  const { context: c, game, colours } = view;
  const start = Math.max(0, Math.floor(t) - TRAIL);
  const points = [];
  for (let frame = start; frame <= Math.floor(t); frame += 1) points.push(game.place(frame, row));
  if (game.isAlive(Math.floor(t), row)) points.push(game.place(t, row));
  c.save();
  c.lineCap = "round";
  c.lineWidth = view.selected === row ? 2.5 : 1.75;
  c.strokeStyle = colours[SIDES[game.side(row)]];
  for (let i = 1; i < points.length; i += 1) {
    c.globalAlpha = (0.55 * i) / points.length;
    c.beginPath();
    c.moveTo(...view.toCanvas(...points[i - 1]));
    c.lineTo(...view.toCanvas(...points[i]));
    c.stroke();
  }
  c.restore();
}

/** The reach of a mech's sensors, the enemies that it sees, and the one that it aims at. */
function drawSight(view, row, t) {
  const { context: c, game, colours } = view;
  const frame = Math.floor(t);
  if (!game.isAlive(frame, row)) return;
  const from = view.toCanvas(...game.place(t, row));
  const colour = colours[SIDES[game.side(row)]];
  c.save();
  c.globalAlpha = view.selected === row ? 0.9 : 0.3;
  for (const enemy of game.seen(frame, row))
    line(c, from, view.toCanvas(...game.place(t, enemy)), colour, 1.5, [1, 4]);
  c.restore();
  if (view.selected !== row) return;
  ring(c, ...from, game.at("range", frame, row) * view.scale, colour, 1, [2, 6]);
  const aim = game.at("aim", frame, row);
  if (aim < 0) return;
  const [x, y] = view.toCanvas(...game.place(t, aim));
  const reach = radiusOf(view, aim) * 2.1;
  c.save();
  c.strokeStyle = colours.ink;
  c.lineWidth = 1.5;
  c.beginPath();
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    c.moveTo(x + dx * reach * 0.8, y + dy * reach * 0.8);
    c.lineTo(x + dx * reach * 1.2, y + dy * reach * 1.2);
  }
  c.stroke();
  c.restore();
}

/** Weapons that fire between two decisions, from the mech to its target, as long as they do. */
function drawFire(view, row, t) {
  const { context: c, game, colours } = view;
  const frame = Math.floor(t);
  if (frame >= game.last) return;
  const target = game.at("aim", frame, row);
  if (target < 0) return;
  const share = t - frame;
  const from = view.toCanvas(...game.place(t, row));
  const to = view.toCanvas(...game.place(t, target));
  c.save();
  c.lineCap = "round";
  for (const weapon of game.fired(frame + 1, row)) {
    const { colour, width, isBeam } = FIRE[weapon] ?? {};
    if (!isBeam) continue;
    c.globalAlpha = 0.25 + 0.65 * Math.sin(Math.PI * Math.min(1, share + 0.25));
    line(c, from, to, colours.paper, width + 2);
    line(c, from, to, colours[colour], width);
  }
  c.restore();
}

/** How weapons look: beams hit at once; the others launch shots. */
const FIRE = {
  laser: { colour: "laser", width: 2, isBeam: true },
  flamer: { colour: "flame", width: 5, isBeam: true },
  paint: { colour: "paint", width: 2.5, isBeam: true },
  missile: { colour: "ink", width: 3.5, length: 0.09 },
  gauss: { colour: "ink", width: 3, length: 0.05 },
  autocannon: { colour: "ink", width: 2, length: 0.045 },
};

function drawShots(view, t) {
  const { context: c, game, colours } = view;
  c.save();
  c.lineCap = "round";
  for (const shot of game.flying(t)) {
    const { colour, width, length } = FIRE[shot.weapon] ?? FIRE.gauss;
    const to = view.toCanvas(shot.x, shot.y);
    const from = view.toCanvas(shot.x - shot.vx * length, shot.y - shot.vy * length);
    c.globalAlpha = shot.shows;
    line(c, from, to, colours.paper, width + 2);
    line(c, from, to, colours[colour], width);
    if (shot.weapon === "missile") {
      c.fillStyle = colours[SIDES[game.side(shot.row)]];
      c.beginPath();
      c.arc(...to, 3, 0, 2 * Math.PI);
      c.fill();
    }
  }
  c.restore();
}

/** Clouds that block sight; shells on their way are small circles where they will burst. */
function drawSmoke(view, t) {
  const { context: c, game, colours } = view;
  const frame = Math.floor(t);
  for (const cloud of game.smoke[frame]) {
    const left = cloud.left - (t - frame) * game.decision;
    const [x, y] = view.toCanvas(cloud.x, cloud.y);
    if (left > game.smokeLasts) {
      ring(c, x, y, 5, colours.muted, 1.5, [2, 2]);
      continue;
    }
    const radius = game.smokeRadius * view.scale;
    const age = game.smokeLasts - left;
    const shade = c.createRadialGradient(x, y, 0, x, y, radius);
    shade.addColorStop(0, colours.smoke);
    shade.addColorStop(0.75, colours.smoke);
    shade.addColorStop(1, colours.smokeEdge);
    c.save();
    c.globalAlpha = Math.min(1, 0.4 + age, 0.3 + left);
    c.fillStyle = shade;
    c.beginPath();
    c.arc(x, y, radius, 0, 2 * Math.PI);
    c.fill();
    c.restore();
  }
}

/** Rings where mechs were destroyed, and sparks at those that are hit between these two decisions. */
function drawHits(view, t) {
  const { context: c, game, colours } = view;
  for (const event of game.events) {
    const age = t - event.at;
    if (event.kind !== "kill" || age < 0 || age > BLAST) continue;
    const [x, y] = view.toCanvas(...game.place(event.at, event.whom));
    c.save();
    c.globalAlpha = 1 - age / BLAST;
    ring(c, x, y, radiusOf(view, event.whom) * (1 + 0.5 * age), colours.flame, 4);
    c.restore();
  }
  const frame = Math.floor(t);
  if (frame >= game.last) return;
  for (const row of game.present) {
    const lost = game.at("hp", frame, row) - game.at("hp", frame + 1, row);
    if (lost <= 0) continue;
    const [x, y] = view.toCanvas(...game.place(t, row));
    c.save();
    c.globalAlpha = Math.sin(Math.PI * (t - frame)) * 0.9;
    ring(c, x, y, radiusOf(view, row) * 1.15, colours.flame, Math.min(8, 2 + lost / 8));
    c.restore();
  }
}
