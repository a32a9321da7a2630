// The ground from above: heights as shades with contour lines, obstacles as blocks.

const CELL = 8;
/** Metres between two contour lines. */
const CONTOUR = 0.5;

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** A canvas with the whole map, north up, CELL pixels for each metre, in the colours of the theme. */
function drawGround(terrain) {
  const { side } = terrain;
  terrain.cells ??= decode(terrain.heights);
  terrain.blocked ??= decode(terrain.walls);
  const canvas = h("canvas", { width: side * CELL, height: side * CELL });
  const context = canvas.getContext("2d");
  context.putImageData(shades(terrain), 0, 0);
  const [top, edge, shadow] = ["--wall", "--wall-edge", "--wall-shadow"].map(css);
  const cells = [];
  terrain.blocked.forEach((is, i) => {
    if (is) cells.push([(i % side) * CELL, (side - 1 - Math.floor(i / side)) * CELL]);
  });
  for (const [colour, dx, dy] of [[shadow, 3, 4], [edge, 0, 1], [top, 0, -1]]) {
    context.fillStyle = colour;
    for (const [x, y] of cells) context.fillRect(x + dx, y + dy, CELL, CELL);
  }
  return canvas;
}

/** The image of heights: darker or lighter by height and by slope, with a line at every contour. */
function shades(terrain) {
  const { side } = terrain;
  const size = side * CELL;
  const image = new ImageData(size, size);
  const [low, high, line] = ["--ground-low", "--ground-high", "--contour"].map((name) => channels(css(name)));
  const heightAt = smoothed(terrain);
  const heights = new Float32Array(size * size);
  let most = 1;
  for (let y = 0; y < size; y += 1)
    for (let x = 0; x < size; x += 1) {
      const height = heightAt((x + 0.5) / CELL - 0.5, side - (y + 0.5) / CELL - 0.5);
      heights[y * size + x] = height;
      most = Math.max(most, height);
    }
  for (let y = 0; y < size; y += 1)
    for (let x = 0; x < size; x += 1) {
      const i = y * size + x;
      const [here, left, above] = [heights[i], heights[i - (x > 0)], heights[i - (y > 0) * size]];
      // How near the pixel is to a contour, in pixels.
      const level = here / CONTOUR;
      const steep = Math.hypot(here - left, here - above) / CONTOUR;
      const near = Math.max(0, 1 - Math.abs(level - Math.round(level)) / Math.max(steep, 1e-4));
      const light = (here - left + here - above) * CELL * 26;
      for (let k = 0; k < 3; k += 1) {
        const colour = mix(low[k], high[k], here / most) + light;
        image.data[4 * i + k] = mix(colour, line[k], 0.6 * near);
      }
      image.data[4 * i + 3] = 255;
    }
  return image;
}

/** The height of the ground at any point, in cells from the corner; below obstacles it goes on. */
function smoothed({ side, cells, blocked, wall }) {
  const at = (x, y) => {
    const i = Math.min(side - 1, Math.max(0, y)) * side + Math.min(side - 1, Math.max(0, x));
    return cells[i] - (blocked[i] && cells[i] >= wall ? wall : 0);
  };
  return (x, y) => {
    const [x0, y0] = [Math.floor(x), Math.floor(y)];
    const [dx, dy] = [x - x0, y - y0];
    return mix(mix(at(x0, y0), at(x0 + 1, y0), dx), mix(at(x0, y0 + 1), at(x0 + 1, y0 + 1), dx), dy);
  };
}
