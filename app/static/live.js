// The live picture: snapshots replace it, deltas write absolute values into it.
import { inGroups } from "./geometry.js";
import { IDLE } from "./words.js";

const MOST_POINTS = 1_200;

/** One load of the newest update: its numbers, its heat map, its bytes over time. */
class Load {
  constructor(part) {
    this.load = part.load;
    this.role = part.role ?? null;
    this.grid = part.grid && inGroups(part.grid);
    this.throughput = part.throughput ?? [];
    this.touched = new Map(); // cell index -> when it last changed
    this.take(part);
  }

  take(part) {
    this.state = { ...IDLE, ...part.state };
  }

  news(part) {
    this.#write(part.cells ?? []);
    this.throughput.push(...(part.throughput ?? []));
    // every second point goes, so that a long load keeps its whole course
    if (this.throughput.length > MOST_POINTS)
      this.throughput = this.throughput.filter((_, i, all) => i % 2 === 0 || i === all.length - 1);
    this.take(part);
  }

  #write(cells) {
    const now = performance.now();
    for (let i = 0; i + 1 < cells.length; i += 2) {
      const cell = this.grid?.cells[cells[i]];
      if (!cell) continue;
      cell.written = cells[i + 1];
      this.touched.set(cells[i], now);
    }
  }
}

export class Live {
  constructor() {
    this.v = 0;
    this.t = null;
    this.heardAt = null;
    this.loads = [];
    this.state = null; // of all loads as one
  }

  snapshot(message) {
    this.loads = parts(message).map((part) => new Load(part));
    this.#take(message);
  }

  delta(message) {
    if (message.load !== this.load) return; // of a load that a snapshot has not announced yet
    for (const part of parts(message)) this.loads.find((one) => one.load === part.load)?.news(part);
    this.#take(message);
  }

  #take(message) {
    this.v = message.v;
    this.t = message.t ?? null;
    this.heardAt = performance.now();
    this.state = message.together ? { ...IDLE, ...message.together } : this.loads[0].state;
  }

  /** The first load: the update goes by its number. */
  get load() {
    return this.loads[0]?.load ?? null;
  }

  get isPlanned() {
    return this.loads.some((one) => one.grid);
  }

  /** A lone target needs no name; a draft, or two roles, do. */
  get hasChips() {
    return this.loads.length > 1 || this.loads[0]?.role === "draft";
  }

  chip(load) {
    return this.hasChips ? load.role : "";
  }

  of(role) {
    return this.loads.find((one) => one.role === role) ?? this.loads[0];
  }

  /** Bytes over time of all loads: one begins where the one before it has ended. */
  get throughput() {
    let before = 0;
    return this.loads.flatMap(({ throughput }) => {
      const from = before;
      before += throughput.at(-1)?.[1] ?? 0;
      return from ? throughput.map(([t, bytes]) => [t, from + bytes]) : throughput;
    });
  }

  /** Seconds since the last event of the loader, by the server's clock plus our waiting. */
  silence() {
    const last = this.state?.last?.t;
    if (typeof last !== "number" || typeof this.t !== "number") return 0;
    return this.t - last + (performance.now() - this.heardAt) / 1000;
  }
}

function parts(message) {
  return [message, ...(message.also ?? [])];
}

/** The message as if it were about this load alone; null if it is about others. */
export function only(message, load) {
  const part = parts(message).find((one) => String(one.load) === load);
  return part ? { ...message, ...part, also: [], together: null } : null;
}
