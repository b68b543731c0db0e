// The words and colour families of states and outcomes, the same on every page.
export const WORDS = {
  idle: "Idle",
  planning: "Planning",
  waiting: "Waiting",
  loading: "Loading",
  paused: "Paused",
  finished: "Finished",
  refused: "Refused",
  failed: "Failed",
  interrupted: "Interrupted",
  poisoned: "Poisoned",
};

const TONES = {
  paused: "warn",
  interrupted: "warn",
  idle: "calm",
  failed: "bad",
  refused: "bad",
  poisoned: "bad",
  finished: "good",
};
const OUTCOMES = { loaded: "good", fused: "good", held: "warn", skipped: "calm", failed: "bad" };

/** A state before the first load is short: what it lacks. */
export const IDLE = {
  load: null,
  role: null,
  because: null,
  status: "idle",
  model: null,
  source: null,
  paced: false,
  paused: false,
  elapsed_s: 0,
  finished_t: null,
  bytes_done: 0,
  bytes_total: 0,
  rate_bps: null,
  mean_bps: null,
  eta_s: null,
  parameters_total: 0,
  parameters_full: 0,
  elements_total: 0,
  elements_written: 0,
  tensors_total: 0,
  tensors_done: 0,
  derived_total: 0,
  derived_done: 0,
  pairs_total: 0,
  pairs_closed: 0,
  pairs_held: [],
  skips: {},
  skipped: 0,
  skips_unexpected: 0,
  findings: { error: 0, warning: 0, note: 0 },
  verdict: "pending",
  sentence: "",
  kernels: {},
  ranks: [],
  last: null,
  failure: null,
  store: { state: "empty", epoch: 0 },
};

/** A poisoned store outranks the failure that poisoned it; a held loader outranks its phase. */
export function shownStatus(state) {
  if (state.store.state === "poisoned") return "poisoned";
  if (state.paused && isRunning(state)) return "paused";
  return state.status;
}

export function isRunning(state) {
  return ["planning", "waiting", "loading", "paused"].includes(state.status);
}

export function tone(state) {
  const status = shownStatus(state);
  if (status !== "finished") return statusTone(status);
  if (state.verdict === "fail") return "bad";
  return state.skips_unexpected || state.findings.warning ? "warn" : "good";
}

export function statusTone(status) {
  return TONES[status] ?? "busy";
}

export function outcomeTone(outcome) {
  return OUTCOMES[outcome] ?? "calm";
}

/** "tp 8 · ep 8 · 8 ranks planned, 1 loaded"; sizes of one are left out. */
export function layout(state) {
  const axes = Object.entries(state.layout ?? {})
    .filter(([key, size]) => key.endsWith("_size") && size > 1)
    .map(([key, size]) => `${key.slice(0, 2)} ${size}`);
  const planned = state.layout?.ranks ?? state.ranks.length;
  if (!planned) return "";
  return [
    ...axes,
    `${planned} ${planned === 1 ? "rank" : "ranks"} planned, ${state.ranks.length} loaded`,
  ].join(" · ");
}
