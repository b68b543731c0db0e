// The history: one line per load, the newest first; the bar compares mean rates.
import { get, query } from "./api.js";
import { $, $$, clone, fill, show, text } from "./dom.js";
import { count, moment, plural, rate, seconds, size } from "./format.js";
import { startShell, watchConnection } from "./shell.js";
import { WORDS, statusTone } from "./words.js";

const PAGE = 50;
let next = null;

startShell();
watchConnection({ started: refresh, finished: refresh });
$("#more").addEventListener("click", () => fetchPage(next));
refresh();

function refresh() {
  fetchPage(null);
}

async function fetchPage(cursor) {
  try {
    draw(await get(`/loads${query({ limit: PAGE, cursor })}`), cursor !== null);
  } catch (problem) {
    text($("#loads-empty"), problem.message);
  }
}

function draw(answer, isMore) {
  next = answer.next;
  const rows = answer.items.map((load) => row(load, chip(load, answer.items)));
  if (isMore) $("#loads").append(...rows);
  else $("#loads").replaceChildren(...rows);
  const isNone = !$("#loads").childElementCount;
  show($("#loads-table"), !isNone);
  show($("#loads-empty"), isNone);
  show($("#more"), next !== null);
  text($("#loads-empty"), "No load is on record yet. The first one appears here when it starts.");
  text($("#loads-text"), plural(answer.total, "load"));
  scaleBars();
  markSame();
}

/** A target that was loaded alone needs no name. */
function chip(load, all) {
  const isAlone = !all.some((other) => other.update === load.update && other.id !== load.id);
  return isAlone && load.role === "target" ? "" : load.role;
}

function row(load, role) {
  const node = clone("load-row");
  const link = $("[data-f=id]", node);
  link.href = `/ui/loads/${load.id}`;
  const status = $("[data-f=status]", node);
  status.dataset.tone =
    load.status === "finished" && load.verdict === "fail" ? "bad" : statusTone(load.status);
  node.dataset.rate = load.mean_bps ?? 0;
  fill(node, {
    id: load.id,
    status: WORDS[load.status] ?? load.status,
    source: load.source ?? "–",
    chip: role,
    sentence: load.sentence ?? "",
    started: moment(load.started_t),
    seconds: seconds(load.seconds),
    bytes: size(load.bytes ?? 0),
    rate: rate(load.mean_bps),
    parameters: `${count(load.parameters_full ?? 0)} / ${count(load.parameters_total ?? 0)}`,
    skipped: count(load.skipped ?? 0),
    findings: findings(load.findings),
    digest: load.digest?.slice(0, 8) ?? "–",
  });
  return node;
}

/** {"error": 1, "warning": 0, "note": 3} -> "1 error, 3 notes" */
function findings(found) {
  if (!found || typeof found !== "object") return count(found ?? 0);
  const words = ["error", "warning", "note"]
    .filter((level) => found[level])
    .map((level) => plural(found[level], level));
  return words.join(", ") || "none";
}

/** Loads in a row by the same plan show its digest muted: only a change deserves attention. */
function markSame() {
  const digests = $$("#loads code");
  digests.forEach((code, i) =>
    code.toggleAttribute("data-same", code.textContent === digests[i + 1]?.textContent),
  );
}

function scaleBars() {
  const rows = $$("#loads tr");
  const best = Math.max(1, ...rows.map((node) => Number(node.dataset.rate)));
  for (const node of rows) $("meter", node).value = Number(node.dataset.rate) / best;
}
