// The live picture: snapshots replace it, deltas write absolute values into it.
import { inGroups } from "./geometry.js";
import { IDLE } from "./words.js";

const MOST_POINTS = 1_200;

export class Live {
  constructor() {
    this.v = 0;
    this.load = null;
    this.t = null;
    this.heardAt = null;
    this.state = null;
    this.grid = null;
    this.throughput = [];
    this.touched = new Map(); // cell index -> when it last changed
  }

  snapshot(message) {
    this.grid = message.grid && inGroups(message.grid);
    this.throughput = message.throughput ?? [];
    this.touched.clear();
    this.#take(message);
  }

  delta(message) {
    if (message.load !== this.load) return; // of a load that a snapshot has not announced yet
    this.#write(message.cells ?? []);
    this.throughput.push(...(message.throughput ?? []));
    // every second point goes, so that a long load keeps its whole course
    if (this.throughput.length > MOST_POINTS)
      this.throughput = this.throughput.filter((_, i, all) => i % 2 === 0 || i === all.length - 1);
    this.#take(message);
  }

  /** Seconds since the last event of the loader, by the server's clock plus our waiting. */
  silence() {
    const last = this.state?.last?.t;
    if (typeof last !== "number" || typeof this.t !== "number") return 0;
    return this.t - last + (performance.now() - this.heardAt) / 1000;
  }

  #take(message) {
    this.v = message.v;
    this.load = message.load;
    this.t = message.t ?? null;
    this.heardAt = performance.now();
    this.state = { ...IDLE, ...message.state };
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
