// Findings: errors first, notes folded away; of a refused load the errors stand above everything.
import { get, query } from "./api.js";
import { $, clone, el, fill, show, text } from "./dom.js";
import { count, plural } from "./format.js";
import { dirty } from "./paint.js";

const ORDER = ["error", "warning", "note"];
const TONES = { error: "bad", warning: "warn", note: "calm" };

export function mountFindings(live) {
  const known = { asked: "" };
  return () => {
    ask(known, live);
  };
}

/** The stream carries counts; the texts are asked for when a count changes. */
async function ask(known, live) {
  const { findings, status } = live.state;
  const isBroken = status === "refused" || status === "failed";
  const wanted = [live.load, isBroken, ...ORDER.map((level) => findings[level])].join(" ");
  if (known.asked === wanted) return;
  known.asked = wanted;
  // a refusal or a failure adds findings that the plan's counts do not know
  const isNone = !isBroken && ORDER.every((level) => !findings[level]);
  const answer = isNone
    ? { items: [] }
    : await get(`/findings${query({ load: live.load, limit: 200 })}`).catch(() => ({ items: [] }));
  if (known.asked !== wanted) return;
  drawFindings(answer.items, status === "refused");
  dirty();
}

function drawFindings(items, isRefused) {
  text(
    $("#findings-text"),
    ORDER.map((level) => plural(items.filter((item) => item.level === level).length, level)).join(", "),
  );
  const of = (level) => items.filter((item) => item.level === level).map(row);
  const [errors, warnings, notes] = ORDER.map(of);
  const blockers = isRefused ? errors : [];
  show($("#blockers"), blockers.length > 0);
  $("#blockers").replaceChildren(
    el(
      "section",
      { class: "failure" },
      el("p", { class: "message" }, `Refused before a byte was read: ${plural(blockers.length, "error")}`),
      el("ul", { class: "findings" }, ...blockers),
    ),
  );
  $("#findings").replaceChildren(...(isRefused ? [] : errors), ...warnings);
  $("#notes ul").replaceChildren(...notes);
  fill($("#notes"), { count: plural(notes.length, "note") });
  show($("#notes"), notes.length > 0);
  show($("[data-empty=findings]"), !items.length);
}

function row(item) {
  const node = clone("finding-row");
  node.dataset.level = item.level;
  $("[data-f=code]", node).dataset.tone = TONES[item.level];
  fill(node, {
    code: `${item.level} ${item.code}`,
    subject: item.subject,
    count: item.count > 1 ? `${count(item.count)} names${item.pattern ? ` like ${item.pattern}` : ""}` : "",
    message: item.message,
    fix: item.fix ? `→ ${item.fix}` : "",
  });
  if (item.example && item.example !== item.subject) example($("[data-f=example]", node), item.example);
  return node;
}

function example(node, name) {
  node.append("For example ", el("a", { class: "name", href: `/ui/mapping${query({ name })}` }, name));
}
