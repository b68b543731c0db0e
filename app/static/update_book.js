// All updates that the page knows, and which of them is open: answers go in, drawings read it.
import { isFailure, isOpen, numberOf } from "./update_words.js";

// of updates of long ago, and of those that have just begun, the server knows only this and that
const UNKNOWN = {
  weights: "pending",
  previous: null,
  scope: "full",
  atomicity: null,
  atomicity_reason: "",
  can_roll_back: false,
  expect_current: null,
  deadline_t: null,
  roles: {},
  plan: {
    tensors_expected: 0,
    tensors_received: 0,
    unknown: [],
    missing: [],
    ignored: {},
    groups: { total: 0, complete: 0, split_across_buckets: 0, open: [] },
    bytes: 0,
  },
  buckets: { received: 0, repeated: 0, bytes: 0, last: null, last_t: null },
  delta: null,
  verify: {
    level: "none",
    algorithm: "–",
    checked: 0,
    mismatched: [],
    overall: null,
    loaded_equal: null,
    not_comparable: 0,
  },
  phases_s: {},
  phases: [],
  gbps: { read: null, switch: null },
  requests: { retracted: 0, aborted: 0 },
  stopped_serving_s: 0,
  touched: { count: 0, names: {} },
  warnings: [],
  failure: null,
};

export class Book {
  constructor() {
    this.records = new Map(); // id -> record; only the opened one is sure to have its cells
    Object.assign(this, { openedId: null, isPinned: false, missing: null, progress: null });
    Object.assign(this, { served: null, next: null, total: null });
  }

  get opened() {
    return this.records.get(this.openedId) ?? null;
  }

  /** Newest first. */
  get list() {
    return [...this.records.values()].sort((a, b) => numberOf(b.id) - numberOf(a.id));
  }

  get newest() {
    return this.list[0] ?? null;
  }

  /** Failures that no later success has answered, and those before. */
  get failures() {
    const good = this.list.find((record) => ["active", "retired"].includes(record.state));
    const all = this.list.filter(isFailure);
    const isFresh = (record) =>
      !good || numberOf(record.id) > numberOf(good.id) || record.id === this.openedId;
    return { fresh: all.filter(isFresh), earlier: all.filter((record) => !isFresh(record)) };
  }

  open(id) {
    if (id !== this.openedId) Object.assign(this, { progress: null, missing: null });
    this.openedId = id;
  }

  takeList(answer, isMore) {
    for (const record of answer.items) this.take(record);
    if (isMore || this.next === null) this.next = answer.next;
    this.total = answer.total;
  }

  /** A record of the list has no cells: those that are known already stay. */
  take(record) {
    const known = this.records.get(record.id);
    const delta = record.delta && { cells: known?.delta?.cells, ...record.delta };
    const version = record.version ?? record.id;
    const events = `/reloads/${record.id}/events`;
    const heardAt = performance.now();
    this.records.set(record.id, { ...UNKNOWN, events, ...record, version, delta: delta ?? null, heardAt });
  }

  /** The opened record must be fetched: it is new, or its line in the list says something else. */
  get isOutdated() {
    const { opened } = this;
    return opened === null || isOpen(opened) || (opened.delta !== null && !opened.delta.cells);
  }
}

/** Seconds that a phase has lasted by now, by the server's clock and our waiting. */
export function spent(record, phase) {
  const told = record.phases_s[phase] ?? 0;
  return phase === record.state ? told + (performance.now() - record.heardAt) / 1000 : told;
}

/** Seconds from the first to the last phase; of an open update, until now. */
export function duration(record) {
  const last = record.phases.at(-1);
  if (!last) return 0;
  if (last.ended_t !== null) return last.ended_t - record.opened_t;
  return last.begun_t - record.opened_t + currentSpan(record);
}

/** Of the phase that goes on: a phase may have been there before. */
function currentSpan(record) {
  const { phase } = record.phases.at(-1);
  const before = record.phases.filter((one) => one.phase === phase && one.ended_t !== null);
  return spent(record, phase) - before.reduce((sum, one) => sum + one.ended_t - one.begun_t, 0);
}

/** [{phase, from, to}] in seconds since the update was opened, in the order of time. */
export function spans(record) {
  return record.phases.map(({ phase, begun_t: begun, ended_t: end }) => {
    const from = begun - record.opened_t;
    return { phase, from, to: end === null ? from + currentSpan(record) : end - record.opened_t };
  });
}
