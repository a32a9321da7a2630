// A game of the mech arena: its columns by name, moment and mech, and what can be derived from them.

const SIDES = ["blue", "red"];
const EMPTY = 0;
const CONTESTED = 3;

/** The numbers of a column, from base64 of little-endian integers. */
function decode({ data, bytes, scale }) {
  const raw = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const whole = bytes === 2 ? new Int16Array(raw.buffer) : new Int32Array(raw.buffer);
  const lowest = -(2 ** 31); // stands for no number
  return Float64Array.from(whole, (value) => (value === lowest ? NaN : value / scale));
}

/** Groups of ``width`` numbers. */
const chunks = (values, width) =>
  Array.from({ length: values.length / width }, (_, i) => values.slice(i * width, (i + 1) * width));

const mix = (a, b, share) => a + (b - a) * share;

class Game {
  constructor(data) {
    Object.assign(this, data);
    this.rows = 2 * data.mechs;
    this.last = data.frames - 1;
    this.columns = Object.fromEntries(
      Object.entries(data.columns).map(([name, column]) => [name, decode(column)]),
    );
    this.extras = Object.fromEntries(
      Object.entries(data.extras).map(([name, column]) => [name, decode(column)]),
    );
    this.shots = data.shots.map((flat) => this.shotsOf(flat));
    this.smoke = data.smoke.map((flat) =>
      chunks(flat, 5).map(([row, place, x, y, left]) => ({
        key: row * 8 + place,
        row,
        x: x / 100,
        y: y / 100,
        left: left / 100,
      })),
    );
    const rows = Array.from({ length: this.rows }, (_, row) => row);
    this.present = rows.filter((row) => this.isAlive(0, row));
    this.kills = this.countKills();
  }

  /** A number of a mech after ``frame`` decisions; of the whole game, ``row`` is its place in the column. */
  at(name, frame, row = 0) {
    const column = this.columns[name];
    return column[(column.length / this.frames) * frame + row];
  }

  /** The five contacts of a mech, as rows; -1 is an empty slot. */
  contacts(frame, row) {
    const width = this.columns.contacts.length / this.frames / this.rows;
    const start = (frame * this.rows + row) * width;
    return Array.from(this.columns.contacts.slice(start, start + width));
  }

  /** The enemies that a mech sees. */
  seen(frame, row) {
    const mask = this.at("sees", frame, row);
    const first = this.side(row) === 0 ? this.mechs : 0;
    return Array.from({ length: this.mechs }, (_, i) => i)
      .filter((i) => (mask >> i) & 1)
      .map((i) => first + i);
  }

  side(row) {
    return row < this.mechs ? 0 : 1;
  }

  kind(row) {
    return this.classes[this.roster[row % this.mechs]];
  }

  /** The weapons that a mech has fired in the decision that ended at ``frame``. */
  fired(frame, row) {
    const mask = this.at("fired", frame, row);
    return this.kind(row).mounts.filter((_, mount) => (mask >> mount) & 1);
  }

  isAlive(frame, row) {
    return this.at("hp", frame, row) > 0;
  }

  isShutDown(frame, row) {
    return this.at("heat", frame, row) > this.kind(row).cap;
  }

  isDown(frame, row) {
    return this.at("down", frame, row) > 0;
  }

  /** A number at the moment ``t``, between two decisions in proportion. */
  between(name, t, row) {
    const frame = Math.min(Math.floor(t), this.last);
    const next = Math.min(frame + 1, this.last);
    return mix(this.at(name, frame, row), this.at(name, next, row), t - frame);
  }

  place(t, row) {
    return [this.between("x", t, row), this.between("y", t, row)];
  }

  /** The heading in radians, the short way round between two decisions. */
  heading(t, row) {
    const frame = Math.min(Math.floor(t), this.last);
    const from = this.at("heading", frame, row);
    const to = this.at("heading", Math.min(frame + 1, this.last), row);
    const turn = ((to - from + 540) % 360) - 180;
    return ((from + turn * (t - frame)) * Math.PI) / 180;
  }

  /** Seconds at a moment. */
  seconds(t) {
    return t * this.decision;
  }

  shotsOf(flat) {
    return chunks(flat, 6).map(([row, place, x, y, vx, vy]) => ({
      key: row * 8 + place,
      row,
      weapon: this.kind(row).shots[place],
      ...{ x: x / 100, y: y / 100, vx: vx / 100, vy: vy / 100 },
    }));
  }

  /** Shots at the moment ``t``: where they fly, and how visible those are that start or end meanwhile. */
  flying(t) {
    const frame = Math.min(Math.floor(t), this.last);
    const share = t - frame;
    const [now, next] = [this.shots[frame], this.shots[Math.min(frame + 1, this.last)]];
    const found = [];
    for (const shot of now) {
      const then = next.find((other) => other.key === shot.key && isSame(shot, other, this.decision));
      const ahead = share * this.decision;
      const to = then ?? { x: shot.x + shot.vx * this.decision, y: shot.y + shot.vy * this.decision };
      if (frame === this.last) found.push({ ...shot, shows: 1 });
      else if (then || ahead < this.decision / 2) {
        const [x, y] = [mix(shot.x, to.x, share), mix(shot.y, to.y, share)];
        found.push({ ...shot, x, y, shows: then ? 1 : 1 - share });
      }
    }
    for (const shot of frame < this.last ? next : []) {
      if (now.some((other) => other.key === shot.key && isSame(other, shot, this.decision))) continue;
      const back = (1 - share) * this.decision;
      found.push({ ...shot, x: shot.x - shot.vx * back, y: shot.y - shot.vy * back, shows: share });
    }
    return found;
  }

  /** How many enemies each mech has destroyed, as [moments] by row. */
  countKills() {
    const kills = Array.from({ length: this.rows }, () => []);
    for (const event of this.events) if (event.kind === "kill") kills[event.who].push(event.at);
    return kills;
  }

  killsBy(frame, row) {
    return this.kills[row].filter((at) => at <= frame).length;
  }

  /** The numbers of an extra for a mech, one for each decision that it made; null if it has none. */
  extra(name, row) {
    const column = this.extras[name];
    if (!column) return null;
    const values = Array.from({ length: this.last }, (_, t) => column[t * this.rows + row]);
    return values.some(Number.isFinite) ? values : null;
  }

  /** What a mech is doing, in a word. */
  status(frame, row) {
    if (!this.isAlive(frame, row)) return "destroyed";
    if (this.isShutDown(frame, row)) return "shut down";
    if (this.isDown(frame, row)) return "fallen";
    return this.at("inside", frame, row) ? "in the zone" : "active";
  }
}

/** Whether two records are of one shot: it is where the first one was flying to. */
function isSame(before, after, seconds) {
  const way = Math.hypot(before.vx, before.vy) * seconds;
  return Math.abs(Math.hypot(after.x - before.x, after.y - before.y) - way) < way * 0.25 + 0.2;
}
