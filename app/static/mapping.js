// The mapping page: the address holds the state, the search fills the list, a name opens its journey.
import { query } from "./api.js";
import { $, show } from "./dom.js";
import { Journey } from "./journey.js";
import { Search } from "./search.js";
import { startShell, watchConnection } from "./shell.js";

const DEBOUNCE_MS = 120;
const FILTERS = { q: "#find", outcome: "#outcome", reason: "#reason" };
const search = new Search(open);
const journey = new Journey($("#journey"), open);
const isChoice = $("#role").options.length > 1;
let timer = null;

startShell();
watchConnection({ finished: () => journey.refresh() });
$("#search").addEventListener("submit", (event) => {
  event.preventDefault();
  typed(0);
});
$("#find").addEventListener("input", () => typed(DEBOUNCE_MS));
$("#find").addEventListener("keydown", (event) => event.key === "ArrowDown" && search.focusFirst(event));
for (const id of ["#outcome", "#reason"]) $(id).addEventListener("change", () => typed(0));
$("#role").addEventListener("change", chooseRole);
$("#clear").addEventListener("click", clear);
addEventListener("popstate", restore);
restore();

function restore() {
  const address = new URLSearchParams(location.search);
  for (const [key, field] of Object.entries(FILTERS)) $(field).value = address.get(key) ?? "";
  $("#role").value = address.get("role") ?? $("#role").options[0].value;
  search.run(filters(), role(), address.get("name"));
  showView(address);
}

function filters() {
  return Object.fromEntries(Object.entries(FILTERS).map(([key, field]) => [key, $(field).value.trim()]));
}

/** The chosen role, where more than one is served; the one of the address otherwise. */
function role() {
  return isChoice ? $("#role").value : new URLSearchParams(location.search).get("role");
}

/** Typing replaces the address: one entry in the history per name, not per letter. */
function typed(delay) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const address = new URLSearchParams(location.search);
    history.replaceState(
      null,
      "",
      `/ui/mapping${query({ ...filters(), role: role(), name: address.get("name"), rank: address.get("rank") })}`,
    );
    search.run(filters(), role(), address.get("name"));
    // a narrow page shows either the list or the journey: who types wants the list
    $("#mapping").dataset.open = "results";
  }, delay);
}

function open(target) {
  history.pushState(null, "", `/ui/mapping${query({ ...filters(), role: role(), ...target })}`);
  showView(new URLSearchParams(location.search));
  $("#journey").focus({ preventScroll: true });
  scrollTo({ top: 0 });
}

function showView(address) {
  const name = address.get("name");
  $("#mapping").dataset.open = name ? "journey" : "results";
  search.mark(name);
  journey.open(
    name && { name, rank: address.get("rank"), role: role(), expert: address.get("expert") },
  );
  document.title = `${name ?? "Mapping"} · loadscope`;
  show($("#clear"), Object.values(filters()).some(Boolean));
}

/** The other model has other names: the list begins anew, the same name is looked up there. */
function chooseRole() {
  const address = new URLSearchParams(location.search);
  history.pushState(null, "", `/ui/mapping${query({ ...filters(), role: role(), name: address.get("name") })}`);
  restore();
}

function clear() {
  for (const field of Object.values(FILTERS)) $(field).value = "";
  typed(0);
  $("#find").focus();
}
