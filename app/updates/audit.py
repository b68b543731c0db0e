"""Who changed what: one JSON line per mutation, beside the event log."""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from loadscope.app.encoding import dumps

log = logging.getLogger("loadscope.audit")

FILE = "audit.jsonl"
MAX_BYTES = 16 * 2**20
# what a client chooses freely must not fill the file
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Who:
    """The client that asked: its address, its User-Agent and the mark of its key."""

    address: str | None = None
    agent: str | None = None
    key: str | None = None


def key_mark(key: str | None) -> str | None:
    """Tells keys apart and gives none away: how the key's SHA-256 begins."""
    return None if key is None else f"{hashlib.sha256(key.encode()).hexdigest()[:4]}…"


class Audit:
    """Appends to `audit.jsonl`; above 16 MiB it becomes `audit.jsonl.1`. Any thread may call it.

    A line that cannot be written is logged as an error; the mutation goes on.
    """

    def __init__(
        self, directory: Path, clock: Callable[[], float] = time.time, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = directory / FILE
        self._clock, self._max_bytes = clock, max_bytes
        self._lock = threading.Lock()

    def record(
        self,
        what: str,
        outcome: str,
        who: Who,
        *,
        update: str | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> None:
        """`what` was asked for, `outcome` came of it; `update` is its outer name, `u-7`."""
        line = {
            "t": self._clock(),
            "who": {name: _short(text) for name, text in asdict(who).items()},
            "what": what,
            "update": update,
            "version": _short(version),
            "digest": digest,
            "outcome": _short(outcome),
        }
        text = dumps(line)
        log.info("%s", text.decode())
        try:
            self._append(text + b"\n")
        except OSError as error:
            log.error("%s has no line for this %s: %s", FILE, what, error.strerror)

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._size() > self._max_bytes:
                self.path.replace(self.path.with_name(FILE + ".1"))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                # one write per line: lines of two processes do not mix
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
