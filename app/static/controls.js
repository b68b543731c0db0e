// Pause, resume and reload.
import { post } from "./api.js";
import { $, show, text } from "./dom.js";
import { isRunning } from "./words.js";

export function mountControls(live) {
  const dialog = $("#reload-dialog");
  $("#pause").addEventListener("click", () => togglePause(live));
  $("#reload").addEventListener("click", () => openReload(dialog, live));
  $("#reload-cancel").addEventListener("click", () => dialog.close());
  $("#reload-form").addEventListener("submit", (event) => {
    event.preventDefault();
    reload(dialog);
  });
  return () => drawControls(live.state);
}

function drawControls(state) {
  show($("#pause"), isRunning(state));
  text($("#pause"), state.paused ? "Resume" : "Pause");
  $("#reload").disabled = isRunning(state);
  text($("#reload"), state.load === null ? "Load…" : "Reload…");
}

async function togglePause(live) {
  const button = $("#pause");
  button.disabled = true;
  await post(live.state.paused ? "/resume" : "/pause").then(clearRefusal, showRefusal);
  button.disabled = false;
}

function showRefusal(problem) {
  text($("#refusal"), problem.message);
  show($("#refusal"), true);
}

function clearRefusal() {
  show($("#refusal"), false);
}

function openReload(dialog, { state }) {
  $("#reload-path").value ||= state.source_path ?? state.source ?? "";
  show($("#reload-error"), false);
  dialog.showModal();
}

async function reload(dialog) {
  const path = $("#reload-path").value.trim();
  try {
    await post("/reload", { source: { type: "disk", path } });
    dialog.close();
  } catch (problem) {
    text($("#reload-error"), reasons(problem));
    show($("#reload-error"), true);
  }
}

/** A refused plan comes with its findings: the first one says more than the title. */
function reasons(problem) {
  const first = problem.body?.findings?.find((finding) => finding.level === "error");
  return first ? `${problem.message} ${first.code}: ${first.message} ${first.fix}` : problem.message;
}
