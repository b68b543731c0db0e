// Bytes per second over the load, from the cumulative points of the stream.
import { $, text } from "./dom.js";
import { rate, seconds } from "./format.js";
import { scaled } from "./heatpaint.js";
import { dirty } from "./paint.js";
import { palette } from "./palette.js";

const WINDOW_S = 0.5; // shorter, and the line shows the ticks rather than the disk
const ROOM = { left: 64, right: 8, top: 10, bottom: 22 };

export function mountThroughput(live) {
  new ResizeObserver(dirty).observe($("#throughput").parentElement);
  return () => {
    const points = rates(live.throughput);
    drawText(live.state, points);
    drawChart(points);
  };
}

/** [[t, bytes], …] -> [[seconds since the start, bytes per second], …] */
export function rates(cumulative) {
  const points = [];
  let from = 0;
  for (let to = 1; to < cumulative.length; to++) {
    while (cumulative[to][0] - cumulative[from + 1]?.[0] >= WINDOW_S) from++;
    const span = cumulative[to][0] - cumulative[from][0];
    if (span > 0)
      points.push([cumulative[to][0] - cumulative[0][0], (cumulative[to][1] - cumulative[from][1]) / span]);
  }
  return points;
}

function drawText(state, points) {
  if (!points.length) return text($("#throughput-text"), "no bytes have moved yet");
  const peak = Math.max(...points.map(([, value]) => value));
  const now = state.rate_bps !== null ? `now ${rate(state.rate_bps)} · ` : "";
  text(
    $("#throughput-text"),
    `${now}mean ${rate(state.mean_bps ?? state.bytes_done / points.at(-1)[0])} · peak ${rate(peak)}`,
  );
}

function drawChart(points) {
  const canvas = $("#throughput");
  const [width, height] = [canvas.parentElement.clientWidth, canvas.parentElement.clientHeight];
  const context = scaled(canvas, width, height);
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const top = ceiling(Math.max(1, ...points.map(([, value]) => value)));
  const end = points.at(-1)?.[0] || 1;
  const x = (t) => ROOM.left + (t / end) * (width - ROOM.left - ROOM.right);
  const y = (value) => height - ROOM.bottom - (value / top) * (height - ROOM.top - ROOM.bottom);
  drawAxes(context, { x, y, top, end: points.length ? end : null, width });
  if (points.length) drawLine(context, points, x, y);
}

function drawAxes(context, { x, y, top, end, width }) {
  const colours = palette();
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const share of [0, 0.5, 1]) {
    context.fillStyle = colours.line;
    context.fillRect(ROOM.left, Math.round(y(top * share)), width - ROOM.left - ROOM.right, 1);
    context.fillStyle = colours.muted;
    if (end !== null) context.fillText(rate(top * share).replace(".0 ", " "), ROOM.left - 8, y(top * share));
  }
  if (end === null) return;
  context.textBaseline = "alphabetic";
  context.fillText(seconds(end), x(end), y(0) + 17);
  context.textAlign = "left";
  context.fillText("0 s", x(0), y(0) + 17);
}

function drawLine(context, points, x, y) {
  context.beginPath();
  points.forEach(([t, value], i) => (i ? context.lineTo(x(t), y(value)) : context.moveTo(x(t), y(value))));
  context.strokeStyle = palette().accent;
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(x(points.at(-1)[0]), y(0));
  context.lineTo(x(points[0][0]), y(0));
  context.globalAlpha = 0.14;
  context.fillStyle = palette().accent;
  context.fill();
  context.globalAlpha = 1;
}

/** The next round number: 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value);
}
