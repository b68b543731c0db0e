// Halves that wait for their partner.
import { query } from "./api.js";
import { $, fill, rows, show, text } from "./dom.js";
import { count } from "./format.js";

export function mountPairs(live) {
  return () => {
    const { pairs_closed: closed, pairs_total: total } = live.state;
    const held = live.loads.flatMap((load) =>
      load.state.pairs_held.map((pair) => ({ ...pair, chip: live.chip(load) })),
    );
    text($("#pairs-text"), `${count(closed)} of ${count(total)} closed`);
    $("#pairs-bar").max = total || 1;
    $("#pairs-bar").value = closed;
    show($("[data-empty=pairs]"), !held.length);
    rows($("#pairs"), held, (pair) => `${pair.chip} ${pair.rank} ${pair.param}`, "held-row", drawHeld);
  };
}

function drawHeld(node, pair) {
  $("[data-f=link]", node).href = `/ui/mapping${query({ name: pair.param, rank: pair.rank, role: pair.chip })}`;
  fill(node, {
    chip: pair.chip,
    param: pair.param,
    have: [pair.have].flat().join(", "),
    waits_for: [pair.waits_for].flat().join(", "),
    rank: `on rank ${pair.rank}`,
  });
}
