// The page of updates: the newest one opened, or the one in the address; all of them on one scale.
import { $, show } from "./dom.js";
import { showConnection, startShell } from "./shell.js";
import { mountActions } from "./update_actions.js";
import { mountArrivals } from "./update_arrivals.js";
import { Book } from "./update_book.js";
import { mountChange } from "./update_change.js";
import { mountFacts } from "./update_facts.js";
import { mountFailures } from "./update_failures.js";
import { Feed } from "./update_feed.js";
import { Refresh } from "./update_refresh.js";
import { mountRoles } from "./update_roles.js";
import { mountTimeline } from "./update_timeline.js";
import { mountVerdict } from "./update_verdict.js";
import { mountVerify } from "./update_verify.js";
import { watchVersions } from "./update_versions.js";
import { isOpen } from "./update_words.js";

const POLL_MS = 1_000;
const DRAW_MS = 250; // at most four times a second
const main = $("main");
const book = new Book();
let [seen, heardAt, isHeard, drawing, drawnAt] = ["", null, null, null, 0];

startShell();
const refresh = new Refresh(book, { changed, failed });
const feed = new Feed({ event: told, lost: () => refresh.opened() });
const versions = watchVersions({ heard, failed: silent }, POLL_MS);
const panels = [
  mountVerdict(book),
  mountFailures(book),
  mountTimeline(book, { open: openFromLink, more: () => refresh.more() }),
  mountArrivals(book),
  mountChange(book),
  mountVerify(book),
  mountRoles(book),
  mountFacts(book),
  mountActions(book, { acted }),
];
addEventListener("popstate", openFromAddress);
setInterval(passTime, DRAW_MS);
openFromAddress();

/** Draws soon, and not too often, however much has come. */
function soon() {
  drawing ??= setTimeout(draw, Math.max(0, DRAW_MS - (performance.now() - drawnAt)));
}

function draw() {
  [drawing, drawnAt] = [null, performance.now()];
  for (const panel of panels) panel();
  show($("#push"), book.total !== null && !book.list.some((record) => record.origin === "native"));
  main.toggleAttribute("data-bare", book.opened === null);
}

/** What is open grows while nothing comes; old data says how old it is. */
function passTime() {
  if (document.hidden) return;
  if (isHeard === false) sayConnection();
  if (book.list.some(isOpen)) soon();
}

function heard(answer) {
  [isHeard, heardAt, book.served] = [true, performance.now(), answer];
  sayConnection();
  const now = JSON.stringify([answer.current, answer.pending, answer.state]);
  if (now !== seen) refresh.list();
  seen = now;
  soon();
}

function silent() {
  isHeard = false;
  seen = ""; // whatever has happened meanwhile
  sayConnection();
}

function sayConnection() {
  main.toggleAttribute("data-stale", !isHeard);
  const age = heardAt === null ? "" : `, data ${Math.round((performance.now() - heardAt) / 1000)} s old`;
  showConnection(isHeard ? "live" : "disconnected", isHeard ? "" : age);
}

function told(kind, data) {
  if (kind === "progress") book.progress = data;
  else refresh.opened();
  soon();
}

function changed() {
  const { opened } = book;
  feed.follow(opened && isOpen(opened) ? opened.events : null);
  soon();
}

/** An update that is not there is said where its verdict would stand. */
function failed(problem, id) {
  if (id === null || id !== book.openedId || book.opened) return;
  book.missing = problem.message;
  soon();
}

function acted(record) {
  book.take(record);
  versions.now();
  changed();
}

function openFromAddress() {
  const [, id] = location.pathname.match(/^\/ui\/updates\/(.+)$/) ?? [null, null];
  book.isPinned = id !== null;
  book.open(id === null ? (book.newest?.id ?? null) : decodeURIComponent(id));
  if (book.openedId !== null) refresh.opened();
  else refresh.list();
  changed();
}

function openFromLink(event) {
  const link = event.target.closest("a[data-update]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  openFromAddress();
  draw();
  scrollTo({ top: 0 });
  $("#verdict").focus({ preventScroll: true });
}
