"""May the weights in this process be read? If not: why, in words."""

from collections.abc import Mapping, Sequence
from typing import Protocol

MAX_NAMED = 3


class Readable(Protocol):
    """What readiness asks of one rank's parameters."""

    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def touched(self) -> Sequence[str]: ...


def reasons_against(
    stores: Mapping[int, Readable], outcome: str | None, *, is_writing: bool
) -> list[str]:
    """Empty when every rank's parameters are whole; `outcome` tells of the newest load."""
    if is_writing:
        return [f"weights are being written: {outcome}"]
    if not stores:
        return [f"no load has finished: {outcome}" if outcome else "no load has finished"]
    found = [_reason(rank, store) for rank, store in sorted(stores.items())]
    return [reason for reason in found if reason is not None]


def _reason(rank: int, store: Readable) -> str | None:
    if store.state == "poisoned":
        names = list(store.touched)
        if not names:
            return f"rank {rank}: a failed load changed other ranks, not this one; reload to repair"
        shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        return (
            f"rank {rank}: a load failed after {len(names):,} parameters were written ({shown}); "
            "reload to repair"
        )
    is_whole = store.state == "ready" and store.epoch % 2 == 0
    return None if is_whole else f"rank {rank}: no load has finished"
