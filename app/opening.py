"""Opens an update: its loads on record, a plan for each; nothing is written yet."""

from collections.abc import Callable, Sequence
from pathlib import Path

from loadscope.app.job_errors import Refused
from loadscope.app.live import Live
from loadscope.app.load_start import describe_start
from loadscope.app.role_stores import RoleStores
from loadscope.app.roles import options_of
from loadscope.app.settings import Origin, Settings
from loadscope.app.store import Store
from loadscope.app.update import RoleLoad, state_of
from loadscope.loader.checkpoint import Checkpoint, NotACheckpoint, open_checkpoint
from loadscope.loader.control import Control
from loadscope.loader.findings import Finding
from loadscope.loader.parameters import check_fit
from loadscope.loader.plan import make_plan

# puts a plan with errors on record
Record = Callable[[RoleLoad, Checkpoint], None]


class Opening:
    """From a source to loads with plans that may be executed."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        live: Live,
        stores: RoleStores,
        clock: Callable[[], float],
    ) -> None:
        self._settings, self._store, self._live = settings, store, live
        self._stores, self._clock = stores, clock

    def open(self, path: Path, origin: Origin, control: Control) -> list[RoleLoad]:
        """One load per role, on record and on the page."""
        roles = self._settings.roles
        loads: list[int] = []
        for role in roles:
            first = loads[0] if loads else None
            facts = (origin, path.name, str(path), self._clock())
            loads.append(self._store.create_load(*facts, role=role, update=first))
        recorders = [self._live.begin(loads[0], control, roles[0])]
        recorders += [self._live.beside(*one) for one in zip(loads[1:], roles[1:], strict=True)]
        return [RoleLoad(*one) for one in zip(roles, loads, recorders, strict=True)]

    def plan(
        self, update: Sequence[RoleLoad], source: Path | Checkpoint, record: Record
    ) -> Checkpoint:
        """Make and check every role's plan; raises Refused for the first that must not run."""
        path = source if isinstance(source, Path) else source.path
        try:
            checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
        except NotACheckpoint as error:
            self._emit_started(update, path, None)
            raise _refuse(update[0], str(error)) from None
        self._emit_started(update, path, checkpoint)
        for one in update:
            options = options_of(one.role, self._settings.options)
            one.made = make_plan(checkpoint, self._settings.layout, options)
            self._live.set_plan(one.made, one.load)
            self._check(one, checkpoint, record)
        return checkpoint

    def _emit_started(
        self, update: Sequence[RoleLoad], path: Path, checkpoint: Checkpoint | None
    ) -> None:
        for one in update:
            store = state_of(self._stores.get(one.role, {}))
            detail = describe_start(self._settings, one.role, path, checkpoint, store)
            one.recorder.emit("load_started", detail=detail)

    def _check(self, one: RoleLoad, checkpoint: Checkpoint, record: Record) -> None:
        plan = one.plan
        if plan.verdict == "fail":
            record(one, checkpoint)
            errors = [f for f in plan.findings if f.level == "error"]
            message = f"{len(errors):,} kinds of error in the plan, first: {errors[0].message}"
            raise Refused(one.load, message, plan.findings, one.role)
        if plan.kind == "pack":
            text = f"{plan.label} holds headers without data: it can be planned, not loaded"
            raise _refuse(one, text)
        if misfits := check_fit(plan, self._stores.filled(one.role)):
            raise _refuse(one, misfits[0].message, misfits)


def _refuse(one: RoleLoad, message: str, findings: Sequence[Finding] = ()) -> Refused:
    shown = [each.as_json() for each in findings]
    fix = findings[0].fix if findings else "name a checkpoint directory"
    one.recorder.emit("failed", reason=message, detail={"fix": fix, "findings": shown})
    one.recorder.emit("load_finished", detail={"status": "refused"})
    return Refused(one.load, message, findings, one.role)
