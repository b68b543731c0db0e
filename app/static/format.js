// Numbers as the pages write them; app/panels/format.py says the same on the server.
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** 1564 -> "1,564" */
export function count(number) {
  return Math.round(number)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

/** 14680064 -> "14.7 MB" */
export function size(number) {
  let unit = 0;
  let value = number;
  while (value >= 999.95 && unit < UNITS.length - 1) [value, unit] = [value / 1000, unit + 1];
  return unit ? `${value.toFixed(1)} ${UNITS[unit]}` : `${value.toFixed(0)} B`;
}

/** 26.6e9 -> "26.6 GB/s" */
export function rate(bytesPerSecond) {
  return isNumber(bytesPerSecond) ? `${size(bytesPerSecond)}/s` : "–";
}

/** 0.000655 -> "655 µs", 11.84 -> "11.8 s", 125 -> "2 min 05 s" */
export function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.1 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(value / 60);
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  return minutes < 60
    ? `${minutes} min ${two(value % 60)} s`
    : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

/** Never "100 %" before the last element, never "0 %" after the first. */
export function percent(part, whole) {
  if (!whole) return "–";
  if (part <= 0) return "0 %";
  if (part >= whole) return "100 %";
  return `${Math.min(99.9, Math.max(0.1, Math.floor((part / whole) * 1000) / 10)).toFixed(1)} %`;
}

/** [7168, 2048] -> "7,168 × 2,048" */
export function shape(sizes) {
  return sizes.length ? sizes.map(count).join(" × ") : "scalar";
}

/** 1, "error" -> "1 error"; 2, "error" -> "2 errors" */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** "the layer has no indexer" -> "The layer has no indexer." */
export function sentence(words) {
  return words ? words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".") : "";
}

/** Seconds since 1970 -> local "2026-12-01 00:23:28" */
export function moment(value) {
  if (!isNumber(value)) return "–";
  const local = new Date(value * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = [local.getFullYear(), two(local.getMonth() + 1), two(local.getDate())].join("-");
  return `${day} ${[local.getHours(), local.getMinutes(), local.getSeconds()].map(two).join(":")}`;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
