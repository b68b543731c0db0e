"""A thread for what may wait until a load is over: single event rows, the limit in bytes."""

import logging
import sqlite3
import threading

from loadscope.app.store import Store

log = logging.getLogger("loadscope.store")


class Settler:
    """Settles the store once at the start and then after each nudge."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._news = threading.Event()
        self._news.set()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="settle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        self._news.set()

    def _run(self) -> None:
        while self._news.wait() and not self._closed:
            self._news.clear()
            try:
                self._store.settle()
            except sqlite3.Error as error:
                log.error("the event log could not be tidied: %s", error)

    def close(self) -> None:
        self._closed = True
        self._store.stop_settling()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
