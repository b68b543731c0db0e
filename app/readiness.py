"""May the weights in this process be read? If not: why, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from loadscope.app.roles import Role

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
    stores: Mapping[Role, Mapping[int, Readable]], outcome: str | None, *, is_writing: bool
) -> list[str]:
    """Empty when the parameters of all roles and ranks are whole; `outcome`: of the newest load."""
    if is_writing:
        return [f"weights are being written: {outcome}"]
    if not any(stores.values()):
        return [f"no load has finished: {outcome}" if outcome else "no load has finished"]
    return list(_reasons(stores))


def _reasons(stores: Mapping[Role, Mapping[int, Readable]]) -> Iterator[str]:
    for role, ranks in stores.items():
        for rank, store in sorted(ranks.items()):
            place = f"rank {rank}" if len(stores) == 1 else f"{role}, rank {rank}"
            reason = _reason(store)
            if reason is not None:
                yield f"{place}: {reason}"


def _reason(store: Readable) -> str | None:
    if store.state == "poisoned":
        names = list(store.touched)
        if not names:
            return "a failed load changed what belongs to it, not this; reload to repair"
        shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        return (
            f"a load failed after {len(names):,} parameters were written ({shown}); "
            "reload to repair"
        )
    is_whole = store.state == "ready" and store.epoch % 2 == 0
    return None if is_whole else "no load has finished"
