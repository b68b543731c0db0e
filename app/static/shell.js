// What every page has: theme, keys, and the connection's state.
import { $, store, text } from "./dom.js";
import { connect } from "./stream.js";

const THEMES = ["system", "light", "dark"];
const PAGES = { o: "/ui/", m: "/ui/mapping", l: "/ui/loads", u: "/ui/updates" };

export function startShell() {
  startTheme();
  startKeys();
}

const CONNECTIONS = {
  connecting: "connecting",
  live: "live",
  reconnecting: "reconnecting",
  disconnected: "disconnected",
  restarting: "server restarting",
  stored: "stored load",
};

/** live, reconnecting, disconnected, or stored (a finished load, no stream). */
export function showConnection(word, note = "") {
  const shown = $("#conn");
  shown.dataset.s = word === "restarting" ? "reconnecting" : word;
  text($("[data-f=word]", shown), CONNECTIONS[word] + note);
}

/** For pages that need no numbers: the connection, and word when a load starts or ends. */
export function watchConnection({ started = () => {}, finished = () => {} }) {
  let [load, isOver] = [undefined, true];
  connect({
    connection: showConnection,
    message(kind, message) {
      if (kind === "bye") return showConnection("restarting");
      const isNow = (message.together ?? message.state).finished_t != null;
      if (load !== undefined && message.load !== load) started();
      if (isNow && !isOver) finished();
      [load, isOver] = [message.load, isNow];
    },
  });
}

function startTheme() {
  const button = $("#theme");
  const say = () => {
    const words = `Colours: ${document.documentElement.dataset.theme}`;
    button.title = words;
    button.setAttribute("aria-label", words);
  };
  button.addEventListener("click", () => {
    nextTheme();
    say();
  });
  say();
}

function nextTheme() {
  const root = document.documentElement;
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  store("theme", root.dataset.theme);
  document.dispatchEvent(new Event("themechange"));
}

function startKeys() {
  const dialog = $("#keys");
  const isOn = $("#keys-on");
  isOn.checked = store("keys") !== "off";
  isOn.addEventListener("change", () => store("keys", isOn.checked ? "on" : "off"));
  $("#keys-open").addEventListener("click", () => dialog.showModal());
  let waitsForPage = false;
  document.addEventListener("keydown", (event) => {
    if (!isOn.checked || isTyping(event)) return;
    if (waitsForPage && PAGES[event.key]) location.href = PAGES[event.key];
    waitsForPage = event.key === "g";
    act(event, dialog);
  });
}

function act(event, dialog) {
  if (event.key === "/") {
    event.preventDefault();
    focusSearch();
  } else if (event.key === "?") dialog.showModal();
  else if (event.key === "t") $("#theme").click();
}

/** A narrow header has no search field; the mapping page always has. */
function focusSearch() {
  const field = $("#find");
  if (!field.offsetParent) location.href = "/ui/mapping";
  field.focus();
  field.select();
}

/** Letters belong to a field or an open dialog first. */
function isTyping(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return true;
  return event.target.closest("input:not([type=checkbox]), textarea, select, dialog[open]") !== null;
}
