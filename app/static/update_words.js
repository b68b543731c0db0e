// What states, phases and numbers of updates are called, the same on the whole page.
import { count } from "./format.js";

export const PHASES = [
  "planning",
  "receiving",
  "verifying",
  "staging",
  "quiescing",
  "switching",
  "finalizing",
  "checking",
];
export const STATES = {
  queued: "Queued",
  planning: "Planning",
  receiving: "Receiving",
  verifying: "Verifying",
  staging: "Staging",
  quiescing: "Quiescing",
  switching: "Switching",
  finalizing: "Finalizing",
  checking: "Checking",
  active: "Active",
  failed: "Failed",
  rolled_back: "Rolled back",
  cancelled: "Cancelled",
  poisoned: "Poisoned",
  interrupted: "Interrupted",
  retired: "Retired",
};
const ENDED = ["active", "failed", "rolled_back", "cancelled", "poisoned", "interrupted", "retired"];
const STOPPABLE = ["queued", "planning", "receiving", "verifying", "staging"];
const TONES = { failed: "bad", poisoned: "bad", cancelled: "warn", interrupted: "warn", retired: "calm" };

export function isOpen(record) {
  return !ENDED.includes(record.state);
}

/** Taken back or cancelled by somebody is no failure: nothing went wrong. */
export function isFailure({ state, failure }) {
  if (["failed", "poisoned"].includes(state)) return true;
  return ["rolled_back", "interrupted"].includes(state) && failure !== null;
}

export function isStoppable(record) {
  return STOPPABLE.includes(record.state);
}

export function tone(record) {
  if (record.state === "rolled_back") return record.failure ? "bad" : "warn";
  if (record.state === "active") return isSuspect(record) ? "warn" : "good";
  return TONES[record.state] ?? "busy";
}

/** Served, and yet something in it deserves a look. */
function isSuspect({ delta, verify, warnings }) {
  return Boolean(delta?.nan || delta?.inf || verify.mismatched.length || warnings?.length);
}

export function numberOf(id) {
  return Number(id.slice(2));
}

/** 3.1e-6, 0.0156, 1.56, 192: three digits, and no long row of zeros */
export function small(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

/** Never "0 %" of something, never "100 %" of less than all; the space does not break. */
export function share(percent) {
  if (percent === 0 || percent === 100) return `${percent}\u00a0%`;
  if (percent < 0.01) return "<\u00a00.01\u00a0%";
  return `${percent < 1 ? percent.toFixed(2) : Math.min(99.9, percent).toFixed(1)}\u00a0%`;
}

/** "no NaN, no Inf" or "3 NaN, 1 Inf" */
export function brokenWords({ nan, inf }) {
  if (!nan && !inf) return "no NaN, no Inf";
  return [nan && `${count(nan)} NaN`, inf && `${count(inf)} Inf`].filter(Boolean).join(", ");
}

/** From an upload, from a folder on disk, from differences. */
export function sourceWords({ source, origin }) {
  const name = source.name ? ` ${source.name}` : "";
  const first = origin === "native" ? "" : `, ${origin}`;
  return `${source.type}${name}${first}`;
}
