// One sentence per update: whole or not, equal or not, what it changed; or what went wrong.
import { count, plural } from "./format.js";
import { share } from "./update_words.js";

const DOING = {
  queued: "is queued",
  planning: "is being planned",
  verifying: "is being verified",
  staging: "is being loaded into a second copy",
  quiescing: "is about to take over",
  switching: "is taking over",
  finalizing: "is being finalized",
  checking: "is being read back",
};
const REASONS = {
  open_group: ({ plan }) => `${plural(plan.groups.open.length, "group")} incomplete`,
  missing_tensor: ({ plan }) => `${plural(plan.missing.length, "tensor")} missing`,
  unknown_tensor: ({ failure }) => `${plural(failure.names.length, "unknown tensor")}`,
  checksum_mismatch: ({ verify, failure }) =>
    `${plural(verify.mismatched.length || failure.names.length, "checksum")} differ from the sender's`,
  non_finite: () => "it would bring NaN or Inf",
  shape_mismatch: () => "a shape does not fit",
  dtype_mismatch: () => "a dtype does not fit",
  receive_timeout: () => "no bucket came in time",
  deadline_exceeded: () => "its deadline has passed",
  load_failed: () => "the load failed",
  finalize_failed: () => "it could not be finalized",
  insufficient_memory: () => "not enough memory",
};

/** `served`: what GET /versions/current says; null before the first answer. */
export function sentence(record, served) {
  const { version, state } = record;
  if (state === "receiving") return receiving(record, served);
  if (DOING[state]) return `${version} ${DOING[state]}: ${arrivedWords(record)}${meanwhile(served)}`;
  if (state === "active") return `${version} is active: ${outcome(record)}`;
  if (state === "retired")
    return `${version} was active until another version took its place: ${outcome(record)}`;
  return ended(record, served);
}

function receiving(record, served) {
  const { plan, buckets, version } = record;
  const waiting = plan.groups.open.length;
  const groups = waiting ? `, ${plural(waiting, "group")} ${waiting === 1 ? "waits" : "wait"}` : "";
  return `${version} is receiving: ${tensors(plan)} in ${plural(buckets.received, "bucket")}${groups}${meanwhile(served)}`;
}

function ended(record, served) {
  const { version, state } = record;
  if (state === "rolled_back" && !record.failure)
    return `${version} was rolled back by request${after(record, served, "serves again", "took its place again")}`;
  if (state === "cancelled") return `${version} was cancelled before the switch${stayed(record, served)}`;
  if (state === "interrupted") return `${version} was interrupted: its process ended before it did`;
  if (state === "poisoned")
    return `${version} failed while it was written: ${reason(record)}; ${plural(record.touched.count, "parameter")} hold a mixture, nothing is served`;
  if (state === "rolled_back")
    return `${version} failed while it was written: ${reason(record)}; rolled back${after(record, served, "serves again", "took its place again")}`;
  return `${version} failed before anything was written: ${reason(record)}${stayed(record, served)}`;
}

function stayed(record, served) {
  return after(record, served, "still serves", "stayed in its place");
}

/** What was served after it; in the past tense once that has changed. */
function after({ previous }, served, now, then) {
  if (previous === null) return "; no version was there before";
  return `; ${previous} ${served?.current?.version === previous ? now : then}`;
}

function meanwhile(served) {
  if (!served) return "";
  const isServing = served.current !== null && served.state === "ready";
  return `; ${isServing ? served.current.version : "nothing"} ${isServing ? "serves" : "is served"} meanwhile`;
}

function reason(record) {
  if (!record.failure) return "the reason is not on record";
  const { code } = record.failure;
  return REASONS[code]?.(record) ?? code.replaceAll("_", " ");
}

function outcome(record) {
  return [arrivedWords(record), equalWords(record), changedWords(record)].filter(Boolean).join(", ");
}

function arrivedWords(record) {
  const { plan, buckets, source, scope } = record;
  if (!plan.tensors_expected && !plan.tensors_received) return "not planned yet";
  const how =
    source.type === "upload"
      ? `arrived in ${plural(buckets.received, "bucket")}`
      : `read from ${source.name ?? source.type}`;
  const rest = scope === "partial" ? ", the rest stays" : "";
  return `${tensors(plan, scope)} ${how}${rest}`;
}

function tensors({ tensors_received: came, tensors_expected: expected }, scope = "full") {
  if (scope === "partial") return plural(came, "tensor");
  return `${count(came)} of ${plural(expected, "tensor")}`;
}

function equalWords({ verify, source }) {
  if (verify.mismatched.length)
    return `${plural(verify.mismatched.length, "tensor")} differ from what was sent`;
  if (!verify.checked) return "bytes not verified";
  const back = verify.loaded_equal ? " and read back equal" : "";
  // of a disk no sender's checksums need be known: then there is nothing to agree with
  return source.type === "upload" ? `all checksums agree${back}` : `no checksum differs${back}`;
}

function changedWords({ delta }) {
  if (!delta) return null;
  const broken = delta.nan || delta.inf ? `, ${count(delta.nan + delta.inf)} are NaN or Inf` : "";
  return `${share(delta.elements_changed_pct)} of elements changed${broken}`;
}
