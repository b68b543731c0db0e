// One bar per loaded rank.
import { $, fill, rows, show, text } from "./dom.js";
import { seconds, size } from "./format.js";
import { layout } from "./words.js";

export function mountRanks(live) {
  return () => {
    const ranks = live.loads.flatMap((load) =>
      load.state.ranks.map((rank) => ({ ...rank, chip: live.chip(load) })),
    );
    text($("#ranks-text"), layout(live.state));
    show($("[data-empty=ranks]"), !ranks.length);
    rows($("#ranks"), ranks, ({ chip, rank }) => `${chip} ${rank}`, "rank-row", drawRank);
  };
}

function drawRank(node, rank) {
  node.dataset.status = rank.status;
  const bar = $("progress", node);
  bar.max = rank.bytes_total || 1;
  bar.value = rank.bytes_done;
  bar.setAttribute("aria-label", `${rank.chip} rank ${rank.rank}`.trim());
  fill(node, {
    chip: rank.chip,
    rank: `rank ${rank.rank}`,
    size: size(rank.bytes_done),
    seconds: rank.seconds ? seconds(rank.seconds) : "",
    status: rank.status,
  });
}
