// The mechs: a shape for each class, health around it, and signs of what is wrong with it.

/** Metres from a mech's middle to its edge, and the least in pixels of a map that is not enlarged. */
const SIZES = { scout: 0.75, light: 0.85, medium: 1, heavy: 1.2 };
const LEAST = 7.5;
/** From this size in pixels on there is room for a number. */
const LEGIBLE = 8.5;

/** Corners [ahead, left] of each class, in sizes. */
const SHAPES = {
  scout: [[1.25, 0], [-0.85, 0.8], [-0.4, 0], [-0.85, -0.8]],
  light: [[1.1, 0], [0, 0.85], [-0.9, 0], [0, -0.85]],
  medium: [[1.05, 0], [0.35, 0.85], [-0.85, 0.7], [-0.85, -0.7], [0.35, -0.85]],
  heavy: [[0.75, 0.55], [0.1, 1], [-0.8, 0.85], [-0.8, -0.85], [0.1, -1], [0.75, -0.55]],
};

/** A path through the corners of a class, around (x, y) and turned to ``heading`` (y points down). */
function shapePath(name, x, y, size, heading) {
  const path = new Path2D();
  const [cos, sin] = [Math.cos(heading), Math.sin(heading)];
  for (const [ahead, left] of SHAPES[name]) {
    const [right, up] = [(ahead * cos - left * sin) * size, (ahead * sin + left * cos) * size];
    path.lineTo(x + right, y - up);
  }
  path.closePath();
  return path;
}

/** The shape of a class as a small picture for lists. */
function shapeIcon(name, side) {
  const at = ([ahead, left]) => `${(8 - left * 6).toFixed(1)},${(8.6 - ahead * 6).toFixed(1)}`;
  const points = SHAPES[name].map(at);
  return s(
    "svg",
    { class: `shape ${SIDES[side]}`, viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" },
    s("polygon", { points: points.join(" ") }),
  );
}

/** Radius of a mech on the canvas, in pixels. */
function radiusOf(view, row) {
  const size = SIZES[view.game.kind(row).name];
  const least = LEAST * Math.min(1, view.size / 520) * Math.min(1.6, Math.sqrt(view.camera.zoom));
  return size * Math.max(view.scale, least);
}

/** Draw a mech at the moment ``t``. */
function drawMech(view, row, t) {
  const { context: c, game, colours } = view;
  const frame = Math.floor(t);
  const [x, y] = view.toCanvas(...game.place(t, row));
  const size = radiusOf(view, row);
  const heading = game.heading(t, row);
  const colour = colours[SIDES[game.side(row)]];
  if (!game.isAlive(frame, row)) return drawWreck(c, x, y, size, colour);
  const { name, hp } = game.kind(row);
  const lift = game.between("above", t, row) * view.scale * 0.25;
  const path = shapePath(name, x, y - lift, size, heading);
  if (lift > 1) {
    c.fillStyle = colours.shade;
    c.fill(shapePath(name, x + lift * 0.3, y + lift * 0.3, size, heading));
  }
  if (game.at("painted", frame, row) > 0) ring(c, x, y - lift, size * 1.75, colours.paint, 2, [4, 3]);
  if (view.selected === row) ring(c, x, y - lift, size * 2.05, colours.ink, 2);
  else if (view.hovered === row) ring(c, x, y - lift, size * 2.05, colours.muted, 1.5);
  drawHealth(c, x, y - lift, size * 1.42, game.between("hp", t, row) / hp, colour, colours);
  c.save();
  c.lineJoin = "round";
  c.lineWidth = 3;
  c.strokeStyle = colours.paper;
  c.stroke(path);
  const isDown = game.isDown(frame, row);
  const isOff = game.isShutDown(frame, row);
  c.fillStyle = isDown ? colours.paper : isOff ? colours.off : colour;
  c.fill(path);
  c.lineWidth = 1.5;
  c.strokeStyle = colour;
  if (isDown) c.setLineDash([3, 2]);
  if (isDown || isOff) c.stroke(path);
  c.restore();
  drawSigns(view, row, frame, x, y - lift, size, { isDown, isOff, heading, colour });
}

/** The number of a mech, its heading, and letters for jamming, shutdown and falls. */
function drawSigns(view, row, frame, x, y, size, { isDown, isOff, heading, colour }) {
  const { context: c, game, colours } = view;
  c.strokeStyle = colour;
  c.lineWidth = 2;
  c.beginPath();
  c.moveTo(x + Math.cos(heading) * size * 1.05, y - Math.sin(heading) * size * 1.05);
  c.lineTo(x + Math.cos(heading) * size * 1.75, y - Math.sin(heading) * size * 1.75);
  c.stroke();
  const isNear = view.selected === row || view.hovered === row;
  if (isNear || (view.shows.names && size >= LEGIBLE)) {
    const back = game.kind(row).name === "scout" ? 0.3 : 0.05;
    c.fillStyle = isDown ? colour : colours.onMech;
    c.font = `650 ${Math.max(8, Math.min(size * 0.95, 15))}px system-ui, sans-serif`;
    c.textAlign = "center";
    c.textBaseline = "middle";
    const [dx, dy] = [Math.cos(heading) * size * back, Math.sin(heading) * size * back];
    c.fillText(row % game.mechs, x - dx, y + dy + 0.5);
  }
  const mode = game.at("ewar", frame, row);
  const signs = [isOff ? "heat" : null, isDown ? "fallen" : null, ["", "jams", "clears"][mode] || null];
  const text = signs.filter(Boolean).join(" · ");
  if (text && (isNear || (view.shows.names && size >= LEGIBLE * 1.5))) {
    c.font = "600 10px system-ui, sans-serif";
    c.textAlign = "center";
    c.lineWidth = 3;
    c.strokeStyle = colours.paper;
    c.fillStyle = isOff || isDown ? colours.bad : colours.muted;
    c.strokeText(text, x, y + size * 1.42 + 9);
    c.fillText(text, x, y + size * 1.42 + 9);
  }
}

/** An arc from the top clockwise: what is left of the health. */
function drawHealth(c, x, y, radius, share, colour, colours) {
  const top = -Math.PI / 2;
  c.lineCap = "butt";
  c.lineWidth = 3;
  c.strokeStyle = colours.empty;
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.stroke();
  c.strokeStyle = share < 0.3 ? colours.bad : colour;
  c.beginPath();
  c.arc(x, y, radius, top, top + 2 * Math.PI * Math.max(0, Math.min(1, share)));
  c.stroke();
}

function drawWreck(c, x, y, size, colour) {
  c.save();
  c.globalAlpha = 0.55;
  c.strokeStyle = colour;
  c.lineWidth = 2.5;
  c.beginPath();
  for (const way of [1, -1]) {
    c.moveTo(x - size * 0.6, y - size * 0.6 * way);
    c.lineTo(x + size * 0.6, y + size * 0.6 * way);
  }
  c.stroke();
  c.restore();
}

function ring(c, x, y, radius, colour, width, dash = []) {
  c.save();
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.setLineDash(dash);
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.stroke();
  c.restore();
}
