// The events of one update, resumed where they stopped; another one takes its place at will.
const KINDS = ["state", "progress", "group", "bucket", "warning", "mismatch", "done"];
const RETRY_MS = 3_000;

export class Feed {
  /** listener: {event(kind, data), lost()} */
  constructor(listener) {
    Object.assign(this, { listener, url: null, after: "", source: null, retry: null });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
  }

  /** The address of an update's events, or null: there is nothing to wait for. */
  follow(url) {
    if (url === this.url) return;
    this.#close();
    Object.assign(this, { url, after: "" });
    this.#open();
  }

  #open() {
    if (this.url === null || this.source || document.hidden) return;
    // a new EventSource cannot set Last-Event-ID, so the position travels in the URL
    this.source = new EventSource(this.url + (this.after ? `?after=${encodeURIComponent(this.after)}` : ""));
    for (const kind of KINDS) this.source.addEventListener(kind, (event) => this.#receive(kind, event));
    this.source.onerror = () => this.#lost();
  }

  #receive(kind, event) {
    if (event.lastEventId) this.after = event.lastEventId;
    this.listener.event(kind, JSON.parse(event.data));
  }

  #lost() {
    this.listener.lost();
    // CLOSED means an answer that EventSource takes as final, such as 503: ask again ourselves
    if (this.source?.readyState !== EventSource.CLOSED) return;
    this.#close();
    this.retry = setTimeout(() => this.#open(), RETRY_MS);
  }

  #close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }
}
