// The bar by bytes, the rate and the totals; each total carries its raw number in data-value.
import { $, fill, text } from "./dom.js";
import { count, percent, rate, seconds, size } from "./format.js";

const HONEST_AFTER_S = 2; // an estimate from less is a lie
const PARTS = [
  ["parameters_full", "parameters_total"],
  ["elements_written", "elements_total"],
  ["tensors_done", "tensors_total"],
  ["pairs_closed", "pairs_total"],
  ["derived_done", "derived_total"],
];

export function mountProgress(live) {
  return () => {
    const { state } = live;
    drawBar(state);
    drawTimes(state);
    drawTotals(state);
    $("main").dataset.v = live.v;
    $("main").dataset.load = live.load ?? "";
  };
}

function drawBar(state) {
  const bar = $("#bytes");
  bar.max = state.bytes_total || 1;
  bar.value = state.bytes_done;
  fill($(".strip"), { percent: percent(state.bytes_done, state.bytes_total) });
  total("bytes_done", state.bytes_done, `${size(state.bytes_done)} of ${size(state.bytes_total)}`);
}

function drawTimes(state) {
  const isOver = state.finished_t !== null;
  fill($(".strip"), {
    "rate-label": isOver ? "mean rate" : "rate",
    rate: rate(isOver ? state.mean_bps : state.rate_bps),
    eta: timeLeft(state),
    elapsed: seconds(state.elapsed_s),
  });
}

function timeLeft(state) {
  if (state.finished_t !== null) return state.status === "finished" ? "done" : "–";
  if (state.paused) return "held";
  return state.elapsed_s < HONEST_AFTER_S ? "–" : seconds(state.eta_s);
}

function drawTotals(state) {
  for (const [key, whole] of PARTS) {
    total(key, state[key], count(state[key]));
    text($(`[data-of=${key}]`), `of ${count(state[whole])}`);
  }
  total("skipped", state.skipped, count(state.skipped));
  const unexpected = state.skips_unexpected;
  text($("[data-of=skipped]"), unexpected ? `${count(unexpected)} unexpected` : "all expected");
}

function total(key, raw, words) {
  const node = $(`[data-total=${key}]`);
  node.dataset.value = raw;
  text(node, words);
}
