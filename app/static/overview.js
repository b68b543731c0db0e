// The overview, and one stored load: the same panels, fed by the stream or by GET /loads/{id}.
import { get } from "./api.js";
import { mountControls } from "./controls.js";
import { mountCoverage } from "./coverage.js";
import { $ } from "./dom.js";
import { mountDrill } from "./drill.js";
import { mountFindings } from "./findings.js";
import { mountKernels } from "./kernels.js";
import { Live, only } from "./live.js";
import { mountPairs } from "./pairs.js";
import { dirty, onPaint } from "./paint.js";
import { mountProgress } from "./progress.js";
import { mountQuant } from "./quant.js";
import { mountRanks } from "./ranks.js";
import { showConnection, startShell } from "./shell.js";
import { mountSkips } from "./skips.js";
import { connect } from "./stream.js";
import { mountThroughput } from "./throughput.js";
import { mountVerdict } from "./verdict.js";
import { isRunning } from "./words.js";

const main = $("main");
const pinned = main.dataset.pinned;
const live = new Live();
let connection = "connecting";

startShell();
const openCell = mountDrill(live);
const panels = [
  mountVerdict(live),
  mountProgress(live),
  mountCoverage(live, openCell),
  mountThroughput(live),
  mountKernels(live),
  mountRanks(live),
  mountSkips(live),
  mountPairs(live),
  mountFindings(live),
  mountQuant(live),
  mountControls(live),
];
onPaint(() => live.state && panels.forEach((draw) => draw()));
document.addEventListener("viewchange", dirty);
setInterval(sayAge, 1_000);
if (pinned) openStored();
else follow();

function follow() {
  const stream = connect({
    connection(word) {
      connection = word;
      sayAge();
    },
    message(kind, message) {
      if (kind === "bye") return this.connection("restarting");
      const shown = pinned ? only(message, pinned) : message;
      if (!shown) return leave(stream);
      live[kind](shown);
      dirty();
    },
  });
}

async function openStored() {
  try {
    const stored = await get(`/loads/${pinned}`);
    if (isRunning(stored.state)) return follow();
    live.snapshot({ v: stored.v ?? 0, load: Number(pinned), ...stored });
    connection = "stored";
  } catch (problem) {
    connection = "disconnected";
    $("#verdict").textContent = problem.message;
  }
  sayAge();
  dirty();
}

/** The page is about one load; when the next one starts, its stored form is the last word. */
function leave(stream) {
  stream.end();
  openStored();
}

/** Old data looks old: greyed, with its age. */
function sayAge() {
  const isOld = connection === "disconnected" || connection === "reconnecting" || connection === "restarting";
  main.toggleAttribute("data-stale", isOld);
  const age =
    isOld && live.heardAt !== null
      ? `, data ${Math.round((performance.now() - live.heardAt) / 1000)} s old`
      : "";
  showConnection(connection, age);
  if (!isOld && live.state?.status === "loading") dirty(); // a stall shows while no message comes
}
