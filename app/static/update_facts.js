// How the update was made, and the raw record behind all of this.
import { $, el, fill, show, text } from "./dom.js";
import { count, moment, seconds, size } from "./format.js";
import { mountCopy } from "./update_copy.js";
import { drawNameLists } from "./update_names.js";
import { sourceWords } from "./update_words.js";

const WAYS = {
  staged: "staged: a second copy, contents exchanged at the end",
  undo_log: "undo log: old bytes kept on the host",
  validated_in_place: "validated in place: a failure while copying poisons",
  none: "in place, nothing kept",
};

export function mountFacts(book) {
  const { origin } = $("#raw").dataset;
  mountCopy($("#raw"));
  return () => {
    if (!book.opened) return;
    drawFacts($("#facts"), facts(book.opened));
    drawNameLists($("#facts-names"), nameLists(book.opened));
    drawWarnings(book.opened.warnings ?? []);
    drawRaw(book.opened, origin);
  };
}

function facts(record) {
  const { gbps, plan, requests } = record;
  return [
    ["source", sourceWords(record)],
    ["scope", record.scope],
    ["atomicity", record.atomicity === null ? "not chosen yet" : WAYS[record.atomicity]],
    ["because", record.atomicity_reason],
    ["in place of", record.previous ?? "nothing"],
    ["only if current", record.expect_current],
    ["opened", moment(record.opened_t)],
    ["ended", record.ended_t === null ? "not yet" : moment(record.ended_t)],
    ["deadline", record.deadline_t === null ? null : moment(record.deadline_t)],
    ["not serving", record.stopped_serving_s ? seconds(record.stopped_serving_s) : "never"],
    ["read", speed(gbps.read)],
    ["switch", speed(gbps.switch)],
    ["tensor bytes", plan.bytes ? size(plan.bytes) : null],
    [
      "requests",
      requests.retracted + requests.aborted
        ? `${count(requests.retracted)} retracted, ${count(requests.aborted)} aborted`
        : null,
    ],
    ["ignored", ignored(plan.ignored)],
  ].filter(([, value]) => value);
}

function speed(gbps) {
  return gbps === null ? null : `${gbps.toPrecision(3)} GB/s`;
}

function ignored(counts) {
  return Object.entries(counts)
    .map(([what, number]) => `${count(number)} ${what}`)
    .join(", ");
}

function drawFacts(list, wanted) {
  const words = JSON.stringify(wanted);
  if (list.dataset.words === words) return;
  list.dataset.words = words;
  list.replaceChildren(
    ...wanted.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value))),
  );
}

/** Those of a failure stand with the failure. */
function nameLists({ failure, plan: { missing, unknown } }) {
  if (failure) return [];
  return [
    { title: `${count(missing.length)} did not come`, names: missing },
    { title: `${count(unknown.length)} that no rule knows`, names: unknown },
  ].filter(({ names }) => names.length);
}

function drawWarnings(warnings) {
  const list = $("#warnings");
  const words = JSON.stringify(warnings);
  show(list.parentElement, warnings.length > 0);
  if (list.dataset.words === words) return;
  list.dataset.words = words;
  list.replaceChildren(
    ...warnings.map(({ code, message }) =>
      el("li", { "data-level": "warning" }, el("span", { class: "badge" }, code), " ", message),
    ),
  );
}

function drawRaw({ id, events }, origin) {
  $("#raw-link").href = `/reloads/${id}`;
  text($("#raw-link"), `/reloads/${id}`);
  fill($("#raw"), { curl: `curl ${origin}/reloads/${id}`, follow: `curl -N ${origin}${events}` });
}
