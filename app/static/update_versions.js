// Asks GET /versions/current again and again while somebody can see the page.
import { get } from "./api.js";

/** watchVersions({heard(answer), failed(problem)}, everyMs).now() asks at once. */
export function watchVersions(listener, everyMs) {
  let timer = null;
  let isAsking = false;

  async function ask() {
    clearTimeout(timer);
    if (document.hidden || isAsking) return;
    isAsking = true;
    await get("/versions/current").then(listener.heard, listener.failed);
    isAsking = false;
    timer = setTimeout(ask, everyMs);
  }

  document.addEventListener("visibilitychange", ask);
  ask();
  return { now: ask };
}
