// Fetches the list and the opened update, one request at a time, so that answers come in order.
import { get, path, query } from "./api.js";

const FEW = 10; // what is open is told below them
const MANY = 50;
const REST_MS = 250; // between two fetches of the same: a fast sender must not keep us busy

export class Refresh {
  /** changed() after every answer; failed(problem, id) if the opened update could not be had. */
  constructor(book, { changed, failed }) {
    Object.assign(this, { book, changed, failed, wanted: new Set(), isBusy: false });
  }

  list() {
    this.#want("list");
  }

  more() {
    this.#want("more");
  }

  opened() {
    this.#want("opened");
  }

  #want(what) {
    this.wanted.add(what);
    if (!this.isBusy) this.#run();
  }

  async #run() {
    this.isBusy = true;
    while (this.wanted.size) {
      const [what] = this.wanted;
      this.wanted.delete(what);
      await this.#fetch(what);
      this.changed();
      await new Promise((resolve) => setTimeout(resolve, REST_MS));
    }
    this.isBusy = false;
  }

  async #fetch(what) {
    const { book } = this;
    const id = book.openedId;
    try {
      if (what !== "opened") await this.#fetchPage(what === "more");
      else if (id !== null) book.take(await get(path("/reloads", id)));
    } catch (problem) {
      this.failed(problem, what === "opened" ? id : null);
    }
  }

  async #fetchPage(isMore) {
    const { book } = this;
    const asked = isMore ? { limit: MANY, cursor: book.next } : { limit: FEW };
    book.takeList(await get(`/reloads${query(asked)}`), isMore);
    // the newest is open unless another one was asked for
    if (!book.isPinned) book.open(book.newest?.id ?? null);
    if (book.isOutdated) this.opened();
  }
}
