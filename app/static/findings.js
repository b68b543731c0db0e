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
  const wanted = live.loads.map(facts).join();
  if (known.asked === wanted) return;
  known.asked = wanted;
  const answers = await Promise.all(live.loads.filter(hasFindings).map((load) => fetchFindings(live, load)));
  if (known.asked !== wanted) return;
  const items = answers.flat();
  const isRefused = live.state.status === "refused";
  // a refusal says it louder
  drawNoDraft(isRefused ? null : items.find(isNoDraft));
  drawFindings(items, isRefused);
  dirty();
}

function facts({ load, state }) {
  return [load, isBroken(state), ...ORDER.map((level) => state.findings[level])].join(" ");
}

function isBroken({ status }) {
  return status === "refused" || status === "failed";
}

/** A refusal or a failure adds findings that the plan's counts do not know. */
function hasFindings({ state }) {
  return isBroken(state) || ORDER.some((level) => state.findings[level]);
}

async function fetchFindings(live, load) {
  const url = `/findings${query({ load: load.load, limit: 200 })}`;
  const answer = await get(url).catch(() => ({ items: [] }));
  return answer.items.map((item) => ({ ...item, chip: live.chip(load) }));
}

/** The draft layer is announced and not there. */
function isNoDraft({ code, subject }) {
  return code === "LS210" && subject === "num_nextn_predict_layers";
}

function drawNoDraft(found) {
  show($("#no-draft"), Boolean(found));
  if (!found) return;
  text($("#no-draft"), `The config asks for a draft layer, the files have none: ${found.message}`);
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
    chip: item.chip,
    code: `${item.level} ${item.code}`,
    subject: item.subject,
    count: item.count > 1 ? `${count(item.count)} names${item.pattern ? ` like ${item.pattern}` : ""}` : "",
    message: item.message,
    fix: item.fix ? `→ ${item.fix}` : "",
  });
  if (item.example && item.example !== item.subject) example($("[data-f=example]", node), item);
  return node;
}

function example(node, { example: name, chip: role }) {
  node.append("For example ", el("a", { class: "name", href: `/ui/mapping${query({ name, role })}` }, name));
}
