"""The loads of an update: one per role, out of one checkpoint; all of them count or none does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadscope.app.roles import Role
from loadscope.loader.events import Recorder
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan

Stores = Mapping[int, ParameterStore]
WORST_FIRST = ("poisoned", "writing", "empty", "ready")


@dataclass(slots=True)
class RoleLoad:
    """One load of an update; it has a plan once that is made, and stores once it may run.

    `stores` are the live ones, `written` those that the load fills: second copies, or the same;
    `epochs` theirs before it began.
    """

    role: Role
    load: int
    recorder: Recorder
    made: Plan | None = None
    stores: dict[int, ParameterStore] = field(default_factory=dict)
    written: dict[int, ParameterStore] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def touched(self) -> dict[int, list[str]]:
        """Live parameters that this load has written, by rank."""
        return {
            rank: [name for name in store.parameters if store.is_new(name)]
            for rank, store in self.written.items()
            if store is self.stores.get(rank) and store.epoch != self.epochs[rank]
        }

    @property
    def plan(self) -> Plan:
        assert self.made is not None, f"load {self.load} has no plan yet"
        return self.made

    def __str__(self) -> str:
        return f"the {self.role} (load {self.load})"


def state_of(stores: Stores) -> dict[str, Any]:
    """The common state of a role's stores: the worst of them counts."""
    states = sorted((store.state for store in stores.values()), key=WORST_FIRST.index)
    return {
        "state": states[0] if states else "empty",
        "epoch": max((store.epoch for store in stores.values()), default=0),
        "touched": sum(len(s.touched) for s in stores.values() if s.state == "poisoned"),
    }


def refuse_others(update: Sequence[RoleLoad], refused: int) -> None:
    """One role was refused, so the others are: nothing of this update has begun."""
    (culprit,) = (one for one in update if one.load == refused)
    for one in update:
        if one is not culprit:
            reason, fix = f"not begun: {culprit} was refused", f"see load {culprit.load}"
            detail = {"fix": fix, "because": culprit.load}
            one.recorder.emit("failed", reason=reason, detail=detail)
            one.recorder.emit("load_finished", detail={"status": "refused"})


def end_update(update: Sequence[RoleLoad], failed: RoleLoad, status: str) -> None:
    """After a load that ended as `status`: later ones do not begin, earlier ones count no more.

    Once a live weight was written the roles hold different ones: none of them may be read, unless
    the old bytes are put back.
    """
    at = update.index(failed)
    done, later = update[:at], update[at + 1 :]
    touched = state_of(failed.written)["state"] == "poisoned"
    if failed.written == failed.stores and (done or touched):
        _mix(update, done)
    for one in later:
        reason, fix = f"not begun: {failed} {_ended(status)}", f"see load {failed.load}"
        detail = {"fix": fix, "because": failed.load}
        one.recorder.emit("failed", reason=reason, detail=detail)
        _finish(one, "interrupted")


def tell_end(update: Sequence[RoleLoad], failed: RoleLoad | None, status: str, why: str) -> None:
    """The loads' own records once it is known what the live weights are now.

    `failed`: the load that ended the update; None if none did, then all of them ended well before.
    """
    for one in update:
        if failed is not None and update.index(one) >= update.index(failed):
            if one is failed:
                _finish(one, status)
            continue
        _spoil(one, failed, status, why)


def _mix(update: Sequence[RoleLoad], done: Sequence[RoleLoad]) -> None:
    for one in update:
        for store in one.stores.values():
            if store.state == "ready":
                store.mix(list(store.parameters) if one in done else [])


def _spoil(one: RoleLoad, failed: RoleLoad | None, status: str, why: str) -> None:
    touched = sum(len(store.touched) for store in one.stores.values())
    reason = why if failed is None else f"does not count: {failed} {_ended(status)}"
    fix = "reload a good checkpoint: the weights are a mixture" if touched else "correct the cause"
    detail = {"because": None if failed is None else failed.load, "touched": touched, "fix": fix}
    one.recorder.emit("failed", reason=reason, detail=detail)
    _finish(one, status)


def _ended(status: str) -> str:
    return "failed" if status == "failed" else f"was {status}"


def _finish(one: RoleLoad, status: str) -> None:
    one.recorder.emit("load_finished", detail={"status": status, "store": state_of(one.stores)})
