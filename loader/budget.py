"""One memory budget for all that stands beside the weights: who holds how much, and no more."""

import threading
from types import TracebackType
from typing import Self

FIX = "give it more memory (a larger budget), or let go of what is held"


class OverBudget(MemoryError):
    """So many bytes do not fit: the text says how many would, `fix` what to do."""

    def __init__(
        self, what: str, needed_bytes: int, free_bytes: int, limit_bytes: int | None
    ) -> None:
        of_what = "" if limit_bytes is None else f" of a budget of {in_words(limit_bytes)}"
        needed, free = in_words(needed_bytes), in_words(max(0, free_bytes))
        super().__init__(f"{what} needs {needed}, {free} are free{of_what}")
        self.what, self.fix = what, FIX
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes
        self.limit_bytes = limit_bytes


class Budget:
    """At most `limit_bytes` at any time (None: no limit), whichever threads take them.

    It counts what it is told and allocates nothing: take first, then allocate.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"found a budget of {limit_bytes} bytes; expected 0 or more")
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._held_bytes = 0
        self._peak_bytes = 0

    def take(self, nbytes: int, what: str) -> "Lease":
        """Bytes for `what` until they are released; raises OverBudget, and then nothing is taken.

        `with budget.take(n, "uploads"): …` gives them back however the block ends.
        """
        lease = Lease(self, what)
        lease.grow(nbytes)
        return lease

    def held(self) -> dict[str, int]:
        """Bytes that are held now, by what holds them."""
        with self._lock:
            return dict(self._held)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def free_bytes(self) -> int | None:
        """None without a limit."""
        return None if self.limit_bytes is None else self.limit_bytes - self._held_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was ever held at a time."""
        return self._peak_bytes

    def _add(self, nbytes: int, what: str) -> None:
        with self._lock:
            free = self.free_bytes
            if free is not None and nbytes > free:
                raise OverBudget(what, nbytes, free, self.limit_bytes)
            self._count(nbytes, what)
            self._peak_bytes = max(self._peak_bytes, self._held_bytes)

    def _give_back(self, nbytes: int, what: str) -> None:
        with self._lock:
            self._count(-nbytes, what)

    def _count(self, nbytes: int, what: str) -> None:
        self._held_bytes += nbytes
        held = self._held.pop(what, 0) + nbytes
        if held:
            self._held[what] = held


class Lease:
    """Bytes that are taken from a budget until `release`, or the end of a `with`."""

    def __init__(self, budget: Budget, what: str) -> None:
        self.what = what
        self._budget = budget
        self._lock = threading.Lock()
        self._nbytes = 0
        self._is_released = False

    @property
    def nbytes(self) -> int:
        """What it holds now; 0 once it is released."""
        return self._nbytes

    def grow(self, nbytes: int) -> None:
        """Take so many bytes more; raises OverBudget, and then it is as large as before."""
        if nbytes < 0:
            raise ValueError(f"found {nbytes} bytes for {self.what}; expected 0 or more")
        with self._lock:
            assert not self._is_released, f"the lease for {self.what} is released"
            self._budget._add(nbytes, self.what)
            self._nbytes += nbytes

    def release(self) -> None:
        """Give it all back; once more does nothing."""
        with self._lock:
            self._budget._give_back(self._nbytes, self.what)
            self._nbytes, self._is_released = 0, True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def in_words(nbytes: int) -> str:
    """1536 → "1.5 KiB"."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
