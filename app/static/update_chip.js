// The served version in the header of every page that is wide enough; it leads to the updates.
import { $, show, text } from "./dom.js";
import { watchVersions } from "./update_versions.js";

const EVERY_MS = 3_000;
const room = matchMedia("(width >= 1120px)");
const chip = $("#served");
let words = "";

watchVersions({ heard: draw, failed: () => {} }, EVERY_MS);
room.addEventListener("change", place);

function draw({ current, pending, state }) {
  if (pending) words = `${current?.version ?? "nothing"} → ${pending.version} ${pending.state}`;
  else if (state === "poisoned") words = "weights poisoned";
  else words = current === null ? "" : `weights ${current.version}`;
  chip.dataset.tone = pending ? "busy" : state === "poisoned" ? "bad" : "calm";
  place();
}

function place() {
  text(chip, words.length > 40 ? `${words.slice(0, 39)}…` : words);
  show(chip, room.matches && words !== "");
}
