// Timings per kind of step.
import { $, fill, rows, show } from "./dom.js";
import { count, rate, seconds } from "./format.js";

const FIRST = ["read", "copy"];

export function mountKernels(live) {
  return () => {
    const kernels = live.loads.flatMap((load) => timings(load, live.chip(load)));
    const whole = kernels.reduce((sum, { timing }) => sum + timing.seconds, 0);
    show($("[data-empty=kernels]"), !kernels.length);
    rows(
      $("#kernels"),
      kernels,
      ({ chip, name }) => `${chip} ${name}`,
      "kernel-row",
      (node, kernel) => drawKernel(node, kernel, whole),
    );
  };
}

function timings({ state }, chip) {
  return Object.entries(state.kernels)
    .sort(([a], [b]) => place(a) - place(b))
    .map(([name, timing]) => ({ chip, name, timing }));
}

function drawKernel(node, { chip, name, timing }, whole) {
  $("meter", node).value = whole ? timing.seconds / whole : 0;
  fill(node, {
    name,
    chip,
    count: count(timing.count),
    p50: seconds(timing.p50_s),
    p90: seconds(timing.p90_s),
    p99: seconds(timing.p99_s),
    max: seconds(timing.max_s),
    rate: timing.seconds ? rate(timing.bytes / timing.seconds) : "–",
  });
}

/** Reads and copies lead; the kernels follow in the order of the state. */
function place(name) {
  return (FIRST.indexOf(name) + FIRST.length + 1) % (FIRST.length + 1);
}
