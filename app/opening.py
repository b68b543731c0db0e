"""Opens the loads of an update: on record and on the page, a plan for each; nothing is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadscope.app.live import Live
from loadscope.app.load_start import describe_start
from loadscope.app.role_stores import RoleStores
from loadscope.app.roles import Role, options_of
from loadscope.app.settings import Origin, Settings
from loadscope.app.store import Store
from loadscope.app.updates.refusal import Refusal, code_of
from loadscope.app.updates.role_loads import RoleLoad, refuse, refuse_others
from loadscope.loader.checkpoint import Checkpoint, NotACheckpoint, open_checkpoint
from loadscope.loader.control import Control
from loadscope.loader.findings import Finding
from loadscope.loader.parameters import check_fit, state_of
from loadscope.loader.plan import Plan, make_plan

# `run_load`; only `jobs` knows it
RunLoad = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Place:
    """What an update reads; it is shown by its `label`, never by its path."""

    update: int
    origin: Origin
    label: str
    path: Path


class Opening:
    """From a source to loads with plans that may be executed."""

    def __init__(
        self, settings: Settings, store: Store, live: Live, stores: RoleStores, load: RunLoad
    ) -> None:
        self._settings, self._store, self._live = settings, store, live
        self._stores, self._load = stores, load

    def open(self, place: Place, roles: Sequence[Role], control: Control) -> list[RoleLoad]:
        """One load per role, on record and on the page."""
        now = self._live.now()
        facts = (place.origin, place.label, str(place.path), now)
        loads = [self._store.create_load(*facts, role=role, update=place.update) for role in roles]
        recorders = [self._live.begin(loads[0], control, roles[0])]
        recorders += [self._live.beside(*one) for one in zip(loads[1:], roles[1:], strict=True)]
        return [RoleLoad(*one) for one in zip(roles, loads, recorders, strict=True)]

    def plan(
        self, update: Sequence[RoleLoad], place: Place, source: Path | Checkpoint
    ) -> Checkpoint:
        """Make and check every role's plan; raises Refusal for the first that must not run."""
        try:
            checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
        except NotACheckpoint as error:
            self._emit_started(update, place, None)
            raise _refuse(update, update[0], "source_missing", str(error)) from None
        self._emit_started(update, place, checkpoint)
        for one in update:
            one.made = self.make(one.role, checkpoint)
            self._live.set_plan(one.made, one.load)
            self._check(update, one, checkpoint)
        return checkpoint

    def make(self, role: Role, checkpoint: Checkpoint) -> Plan:
        """The plan of one role; nothing of it is kept."""
        options = options_of(role, self._settings.options)
        return make_plan(checkpoint, self._settings.layout, options)

    def faults(self, plan: Plan, role: Role) -> tuple[str, list[Finding]] | None:
        """Why a plan cannot be loaded here: in words, with the findings at fault."""
        if plan.verdict == "fail":
            errors = [f for f in plan.findings if f.level == "error"]
            return f"{len(errors):,} kinds of error in the plan, first: {errors[0].message}", errors
        if plan.kind == "pack":
            return f"{plan.label} holds headers without data: it can be planned, not loaded", []
        misfits = check_fit(plan, self._stores.filled(role))
        return (misfits[0].message, misfits) if misfits else None

    def _emit_started(
        self, update: Sequence[RoleLoad], place: Place, checkpoint: Checkpoint | None
    ) -> None:
        for one in update:
            store = state_of(self._stores.get(one.role, {}))
            detail = describe_start(self._settings, one.role, place.label, checkpoint, store)
            one.recorder.emit("load_started", detail=detail)

    def _check(self, update: Sequence[RoleLoad], one: RoleLoad, checkpoint: Checkpoint) -> None:
        fault = self.faults(one.plan, one.role)
        if fault is None:
            return
        message, findings = fault
        if one.plan.verdict == "fail":
            # a failed plan is put on record with its refusal; no parameter is touched
            self._load(one.plan, checkpoint, self._stores.get(one.role, {}), one.recorder.emit)
            refuse_others(update, one)
            raise _as_refusal(one, message, one.plan.findings, code_of(findings[0]))
        code = code_of(findings[0]) if findings else "unsupported_format"
        raise _refuse(update, one, code, message, findings)


def _refuse(
    update: Sequence[RoleLoad],
    one: RoleLoad,
    code: str,
    message: str,
    findings: Sequence[Finding] = (),
) -> Refusal:
    shown = [each.as_json() for each in findings]
    refusal = _as_refusal(one, message, findings, code)
    refuse(update, one, message, {"fix": refusal.fix, "findings": shown})
    return refusal


def _as_refusal(one: RoleLoad, message: str, findings: Sequence[Finding], code: str) -> Refusal:
    errors = [each for each in findings if each.level == "error"]
    names = [name for each in errors for name in _names_of(each)]
    return Refusal(
        code,
        f"load {one.load} ({one.role}) was refused: {message}",
        fix=errors[0].fix if errors else "name a checkpoint directory",
        names=list(dict.fromkeys(names))[:20],
        findings=findings,
        load=one.load,
        role=one.role,
    )


def _names_of(finding: Finding) -> list[str]:
    names = finding.evidence.get("names", finding.evidence.get("examples"))
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    return [finding.example or finding.subject]
