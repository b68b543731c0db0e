// One bar per loaded rank.
import { $, fill, rows, show, text } from "./dom.js";
import { seconds, size } from "./format.js";
import { layout } from "./words.js";

export function mountRanks(live) {
  return () => {
    const { ranks } = live.state;
    text($("#ranks-text"), layout(live.state));
    show($("[data-empty=ranks]"), !ranks.length);
    rows($("#ranks"), ranks, (rank) => rank.rank, "rank-row", drawRank);
  };
}

function drawRank(node, rank) {
  node.dataset.status = rank.status;
  const bar = $("progress", node);
  bar.max = rank.bytes_total || 1;
  bar.value = rank.bytes_done;
  bar.setAttribute("aria-label", `rank ${rank.rank}`);
  fill(node, {
    rank: `rank ${rank.rank}`,
    size: size(rank.bytes_done),
    seconds: rank.seconds ? seconds(rank.seconds) : "",
    status: rank.status,
  });
}
