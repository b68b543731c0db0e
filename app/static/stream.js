// Server-sent events: one stream per visible tab, resumed where it stopped.
const SILENCE_MS = 20_000; // the server ticks each second: after this the line is dead, not idle
const RETRY_MS = 3_000;

/** connect({message(kind, data), connection(word)}) */
export function connect(listener) {
  const stream = new Stream(listener);
  document.addEventListener("visibilitychange", () => (document.hidden ? stream.close() : stream.open()));
  setInterval(() => stream.check(), 1_000);
  if (!document.hidden) stream.open();
  return stream;
}

class Stream {
  constructor(listener) {
    this.listener = listener;
    this.after = "";
    this.source = null;
    this.ended = false;
  }

  open() {
    if (this.source || this.ended) return;
    // a new EventSource cannot set Last-Event-ID, so the position travels in the URL
    const position = this.after ? `?after=${encodeURIComponent(this.after)}` : "";
    this.source = new EventSource(`/events/stream${position}`);
    this.heardAt = Date.now();
    for (const kind of ["snapshot", "delta", "bye"])
      this.source.addEventListener(kind, (event) => this.receive(kind, event));
    this.source.onerror = () => this.lost();
  }

  /** Six connections per host are all a browser has: a hidden tab gives its own back. */
  close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  end() {
    this.ended = true;
    this.close();
  }

  receive(kind, event) {
    this.heardAt = Date.now();
    if (event.lastEventId) this.after = event.lastEventId;
    if (kind !== "bye") this.listener.connection("live");
    this.listener.message(kind, JSON.parse(event.data));
  }

  lost() {
    // CLOSED means an answer that EventSource takes as final, such as 503: ask again ourselves
    const isFinal = this.source?.readyState === EventSource.CLOSED;
    this.listener.connection(isFinal ? "disconnected" : "reconnecting");
    if (isFinal) this.reopen(RETRY_MS);
  }

  check() {
    if (!this.source) return;
    const silent = Date.now() - this.heardAt;
    if (silent > SILENCE_MS) {
      this.listener.connection("disconnected");
      this.reopen(0);
    }
  }

  reopen(delay) {
    this.close();
    this.retry = setTimeout(() => this.open(), delay);
  }
}
