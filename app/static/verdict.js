// The word, the sentence and the first error: what a reader sees before anything else.
import { query } from "./api.js";
import { $, el, fill, show, text } from "./dom.js";
import { percent, seconds } from "./format.js";
import { WORDS, isRunning, layout, shownStatus, tone } from "./words.js";

const STALL_S = 5;
const IDLE_SENTENCE = "No load has started.";

export function mountVerdict(live) {
  return () => {
    drawVerdict(live);
    drawFailure(live.state.failure, live.state.failure?.role ?? live.chip(live.loads[0]));
    drawStall(live);
  };
}

function drawVerdict(live) {
  const { state } = live;
  const root = $("#status");
  const status = shownStatus(state);
  Object.assign(root.dataset, { status, tone: tone(state) });
  text($("#verdict"), state.sentence || IDLE_SENTENCE);
  fill(root, {
    word: WORDS[status],
    model: state.model ?? "",
    source: state.source ?? "",
    layout: layout(state),
  });
  drawLoads($("[data-f=loads]", root), live);
  show($("[data-f=paced]", root), state.paced);
  const share = isRunning(state) ? `${percent(state.bytes_done, state.bytes_total)} ` : "";
  $("main").toggleAttribute("data-bare", !live.isPlanned);
  document.title = `${share}${WORDS[status]} · loadscope`;
}

/** "load 3"; with roles "target · load 3" and "draft · load 4". */
function drawLoads(root, live) {
  const words = live.loads
    .filter((one) => one.load !== null)
    .map((one) => [live.chip(one), `load ${one.load}`].filter(Boolean).join(" · "));
  if (root.dataset.words === words.join()) return;
  root.dataset.words = words.join();
  root.replaceChildren(...words.flatMap((word) => [el("span", { class: "badge" }, word), " "]));
}

function drawFailure(failure, role) {
  const root = $("#failure");
  // the findings of a refusal say more than its message
  show(root, Boolean(failure) && $("#blockers").hidden);
  if (!failure) return;
  fill(root, { message: failure.message, fix: failure.fix ?? "" });
  show($(".fix", root), Boolean(failure.fix));
  const facts = ["tensor", "file", "param", "rule"].filter((key) => failure[key]);
  $("[data-f=facts]", root).replaceChildren(...facts.map((key) => fact(key, failure[key], role)));
}

function fact(key, value, role) {
  const isName = key === "tensor" || key === "param";
  const shown = isName ? el("a", { href: `/ui/mapping${query({ name: value, role })}` }, value) : value;
  return el("div", {}, el("dt", {}, key === "param" ? "parameter" : key), el("dd", { class: "name" }, shown));
}

function drawStall(live) {
  const { state } = live;
  const silence = live.silence();
  const isStalled = state.status === "loading" && !state.paused && silence > STALL_S;
  show($("#stall"), isStalled);
  if (isStalled)
    text(
      $("#stall"),
      `No event for ${seconds(Math.floor(silence)).replace(".0", "")}, last: ${state.last.what}`,
    );
}
