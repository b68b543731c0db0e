// Draws at most once per frame, however many messages came in it.
const drawers = new Set();
let isScheduled = false;

/** draw() runs in the next frame after each call of dirty(). */
export function onPaint(draw) {
  drawers.add(draw);
}

export function dirty() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    for (const draw of drawers) draw();
  });
}
