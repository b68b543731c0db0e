"""Steering a load from another thread, and how a load says that it stopped."""

import threading
import time


class LoadError(Exception):
    """A load that stopped: what, at which tensor, file, rule and parameter."""

    def __init__(
        self, message: str, *, tensor: str | None = None, file: str | None = None,
        rule: str | None = None, param: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.tensor = tensor
        self.file = file
        self.rule = rule
        self.param = param


class Cancelled(LoadError):
    """A load that was asked to stop, by its user or because the server shuts down."""


class Control:
    """Pause, resume, cancel and pace a load from another thread."""

    def __init__(self, pace_bps: float | None = None) -> None:
        self.pace_bps = pace_bps
        self._go = threading.Event()
        self._go.set()
        self._cancelled = threading.Event()
        self._started = time.monotonic()
        self._bytes = 0

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def pause(self) -> None:
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    def cancel(self) -> None:
        self._cancelled.set()
        self._go.set()

    def gate(self, nbytes: int) -> None:
        """Wait for the pace, then while paused; Cancelled when asked to stop."""
        self._bytes += nbytes
        if self.pace_bps is not None:
            ahead = self._bytes / self.pace_bps - (time.monotonic() - self._started)
            self._cancelled.wait(max(0.0, ahead))
        if not self._go.is_set():
            begun = time.monotonic()
            self._go.wait()
            self._started += time.monotonic() - begun
        if self._cancelled.is_set():
            raise Cancelled("the load was cancelled")
