// The style sheet's colours for canvases, read again when the theme changes.
import { dirty } from "./paint.js";

const NAMES = [
  "ink",
  "muted",
  "line",
  "line-strong",
  "surface",
  "accent",
  "fault",
  "none",
  "bad",
  "ramp-0",
  "ramp-1",
  "ramp-2",
  "ramp-3",
  "ramp-4",
];
const SHADES = 64;
let cached = null;

export function palette() {
  cached ??= read();
  return cached;
}

export function forgetPalette() {
  cached = null;
  dirty();
}

/** Colour of a written share; only a full cell gets the last shade, only an empty one the first. */
export function shade(written, total) {
  const { ramp } = palette();
  if (written <= 0) return ramp[0];
  if (written >= total) return ramp[SHADES - 1];
  return ramp[1 + Math.floor((written / total) * (SHADES - 3))];
}

function read() {
  const probe = document.body.appendChild(document.createElement("i"));
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = Object.fromEntries(NAMES.map((name) => [name, colour(name)]));
  probe.remove();
  return { ...colours, ramp: blend([0, 1, 2, 3, 4].map((i) => colours[`ramp-${i}`])) };
}

function blend(stops) {
  const points = stops.map((stop) =>
    stop
      .match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number),
  );
  return Array.from({ length: SHADES }, (_, i) => {
    const at = (i / (SHADES - 1)) * (points.length - 1);
    const left = Math.min(Math.floor(at), points.length - 2);
    const mixed = points[left].map((value, c) =>
      Math.round(value + (points[left + 1][c] - value) * (at - left)),
    );
    return `rgb(${mixed.join(" ")})`;
  });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forgetPalette);
document.addEventListener("themechange", forgetPalette);
