// Before the first paint: the stored colours, and the mark that scripts run at all.
const root = document.documentElement;
root.dataset.js = "";
try {
  root.dataset.theme = localStorage.getItem("theme") || "system";
} catch {
  root.dataset.theme = "system"; // storage may be forbidden
}
