"""The loads of an update: one per role, out of one checkpoint; all of them count or none does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadscope.app.roles import Role
from loadscope.loader.events import Recorder
from loadscope.loader.parameters import ParameterStore, state_of
from loadscope.loader.plan import Plan


@dataclass(slots=True)
class RoleLoad:
    """One load of an update; it has a plan once that is made, and stores once it may run.

    `stores` are the live ones, `written` those that the load fills: second copies, or the same.
    """

    role: Role
    load: int
    recorder: Recorder
    made: Plan | None = None
    stores: dict[int, ParameterStore] = field(default_factory=dict)
    written: dict[int, ParameterStore] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        assert self.made is not None, f"load {self.load} has no plan yet"
        return self.made

    def __str__(self) -> str:
        return f"the {self.role} (load {self.load})"


def refuse(update: Sequence[RoleLoad], one: RoleLoad, reason: str, detail: dict[str, Any]) -> None:
    """One role is refused, and so are the others: nothing of this update has begun."""
    one.recorder.emit("failed", reason=reason, detail=detail)
    _refused(one)
    refuse_others(update, one)


def refuse_others(update: Sequence[RoleLoad], culprit: RoleLoad) -> None:
    """The same where the record of the one at fault is written already."""
    for one in update:
        if one is not culprit:
            _not_begun(one, culprit, "was refused")
            _refused(one)


def _refused(one: RoleLoad) -> None:
    one.recorder.emit("load_finished", detail={"status": "refused"})


def _not_begun(one: RoleLoad, culprit: RoleLoad, ended: str) -> None:
    detail = {"fix": f"see load {culprit.load}", "because": culprit.load}
    one.recorder.emit("failed", reason=f"not begun: {culprit} {ended}", detail=detail)


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
        _not_begun(one, failed, _ended(status))
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
