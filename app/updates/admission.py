"""What must hold before an update may write: versions, names, a plan that passes, memory."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from loadscope.app.opening import Opening, Place
from loadscope.app.roles import Role
from loadscope.app.settings import Settings
from loadscope.app.updates.asked import Asked
from loadscope.app.updates.execution import Execution
from loadscope.app.updates.feeds import Feeds
from loadscope.app.updates.log import KeyTaken, UpdateLog
from loadscope.app.updates.names import name_of
from loadscope.app.updates.receiving import Receiving
from loadscope.app.updates.record import Record, empty_plan
from loadscope.app.updates.refusal import Refusal
from loadscope.app.updates.role_loads import refuse
from loadscope.app.updates.spool import Spool
from loadscope.app.updates.standing import Standing
from loadscope.app.updates.update import Update
from loadscope.loader.arrivals import Arrivals, Expected
from loadscope.loader.census import census
from loadscope.loader.checkpoint import Checkpoint, NotACheckpoint, open_checkpoint
from loadscope.loader.merge import arrived_files, merged, open_spool
from loadscope.loader.outcomes import global_skip_masks
from loadscope.loader.plan import Plan
from loadscope.loader.topology import layers_in

MAX_NAMES = 20


class Admission:
    """Opens updates and plans them; starts nothing."""

    def __init__(
        self,
        settings: Settings,
        opening: Opening,
        standing: Standing,
        execution: Execution,
        journal: UpdateLog,
        feeds: Feeds,
        clock: Callable[[], float],
    ) -> None:
        self._settings, self._opening, self._standing = settings, opening, standing
        self._execution, self._log, self._feeds = execution, journal, feeds
        self._clock = clock
        self._expected: Expected | None = None

    def known(self, key: str, digest: str | None) -> int | None:
        """The update that this idempotency key opened; Refusal if another request did."""
        found = self._log.by_key(key)
        if found is None:
            return None
        if found.request_digest != digest:
            raise Refusal(
                "idempotency_conflict",
                f"this Idempotency-Key belongs to {name_of(found.update)}, which was asked for "
                "something else",
                fix="use a new key for a new request",
            )
        return found.update

    def check_version(self, asked: Asked) -> None:
        """Compare and set: the version that is there now, and a new one for the new weights."""
        newest = self._standing.base.newest
        current = None if newest is None else newest.version
        if asked.expect_current is not None and asked.expect_current != current:
            raise Refusal(
                "version_conflict",
                f"expected version {asked.expect_current}, found {current or 'none'}",
                expected=asked.expect_current,
                got=current,
                fix="look at GET /versions/current, then send what belongs on top of it",
            )
        if asked.version is not None and asked.version == current and not asked.force:
            raise Refusal(
                "version_conflict",
                f"version {current} is there already",
                expected="another version",
                got=current,
                fix="give the new weights a new version, or say force: true",
            )

    def open(self, asked: Asked, key: str | None, digest: str | None) -> Update:
        """The update on record; nothing is read yet."""
        newest = self._standing.base.newest
        try:
            number = self._log.open(
                origin=asked.origin, source_type=asked.source, source=asked.label or asked.source,
                version=asked.version, opened_t=self._clock(), key=key, request_digest=digest,
            )  # fmt: skip
        except KeyTaken as taken:
            raise Refusal(
                "reload_in_progress", f"{taken}; it is being opened", fix="ask for it again"
            ) from None
        feed = self._feeds.open(number)
        record = Record(
            number, asked, journal=self._log, publish=feed.publish, clock=self._clock,
            previous=None if newest is None else newest.version,
        )  # fmt: skip
        return Update(asked, record)

    def prepare(self, update: Update) -> None:
        """Plan what is on disk; of an upload, say what is expected. Refusal if it must not be."""
        if update.asked.source == "upload":
            self._expect(update)
            update.record.advance("receiving")
            return
        update.record.advance("planning")
        if update.asked.source == "disk":
            self._plan_disk(update)

    def _expect(self, update: Update) -> None:
        base = self._standing.base
        if base.checkpoint is None or not base.plans:
            raise Refusal(
                "no_checkpoint",
                "nothing is loaded, so nothing says which tensors to expect",
                fix="start the server with a MODEL, or reload one from disk first",
            )
        asked, record = update.asked, update.record
        expected = self._expected_of([base.plans[role] for role in self._settings.roles])
        arrivals = Arrivals(expected, scope=asked.scope, ignore=asked.ignore or ())
        record.plan["tensors_expected"] = expected.count
        try:
            spool = Spool(self._settings.spool_root, record.id, self._settings.max_update_bytes)
        except (OSError, ValueError) as error:
            told = error.strerror if isinstance(error, OSError) else str(error)
            raise Refusal(
                "insufficient_memory",
                f"no place for the buckets: {told}",
                fix="make room, or start the server with --spool-dir",
            ) from None
        update.receiving = Receiving(record, arrivals, spool, self._clock)

    def _expected_of(self, plans: list[Plan]) -> Expected:
        """What these plans expect; kept, for one step after another expects the same."""
        if self._expected is None or not self._expected.fits(plans):
            self._expected = Expected(plans)
        return self._expected

    def plan_upload(self, update: Update) -> None:
        """Everything that came, as a checkpoint: whole groups, a plan that passes."""
        receiving, base = update.receiving, self._standing.base.checkpoint
        assert receiving is not None, "an upload receives"
        assert base is not None, "an upload has something to be compared with"
        receiving.check_whole()
        spool, arrivals = receiving.spool, receiving.arrivals
        came = open_spool(spool.folder, spool.names, base.config)
        if update.asked.scope == "partial":
            update.checkpoint = merged(base, came, arrivals.covers)
            update.files = arrived_files(update.checkpoint, came)
        else:
            update.checkpoint = came
        roles = [role for role in self._settings.roles if role in arrivals.roles_touched]
        self._open_loads(update, spool.folder, roles, update.checkpoint)

    def _plan_disk(self, update: Update) -> None:
        asked = update.asked
        assert asked.path is not None, "a disk source has a path"
        source = asked.checkpoint if asked.checkpoint is not None else asked.path
        self._open_loads(update, asked.path, self._settings.roles, source)
        update.record.plan.update(_counts([one.plan for one in update.loads]))
        self._check_unknown(update)

    def _open_loads(
        self, update: Update, path: Path, roles: Sequence[Role], source: Path | Checkpoint
    ) -> None:
        record, asked = update.record, update.asked
        place = Place(record.number, asked.origin, asked.label or record.id, path)
        update.loads = self._opening.open(place, roles, update.control)
        record.loads = [one.load for one in update.loads]
        self._standing.running = record.loads[0]
        self._standing.outcome = f"load {record.loads[0]} is being planned"
        update.checkpoint = self._opening.plan(update.loads, place, source)

    def _check_unknown(self, update: Update) -> None:
        """Names that no role knows, unless they may be ignored."""
        ignore = update.asked.ignore
        if ignore is None:
            return
        kept = self._unknown([one.plan for one in update.loads], ignore)
        if not kept:
            return
        update.record.plan["unknown"] = kept[:MAX_NAMES]
        one = update.loads[0]
        refusal = _unknown_names(kept)
        refuse(update.loads, one, refusal.message, {"fix": refusal.fix})
        refusal.load, refusal.role = one.load, one.role
        raise refusal

    def _unknown(self, plans: Sequence[Plan], ignore: Sequence[str]) -> list[str]:
        """Names that have no destination in any role, and that the weights before did not have."""
        base = self._standing.base.checkpoint
        known = base.tensors if base is not None else {}
        names = set.intersection(*map(_without_destination, plans))
        return sorted(
            name
            for name in names
            if name not in known and not any(fnmatchcase(name, glob) for glob in ignore)
        )

    def try_out(self, asked: Asked) -> dict[str, Any]:
        """A dry run: nothing is recorded, nothing is written."""
        self.check_version(asked)
        if asked.source != "disk":
            raise Refusal(
                "invalid_request",
                f"a dry run of a source of type {asked.source} would have nothing to look at",
                fix="dry_run goes with a source of type disk",
            )
        assert asked.path is not None, "a disk source has a path"
        try:
            checkpoint = open_checkpoint(asked.path)
        except NotACheckpoint as error:
            raise Refusal("source_missing", str(error), fix="name a checkpoint") from None
        plans = {role: self._opening.make(role, checkpoint) for role in self._settings.roles}
        problems: list[dict[str, Any]] = []
        for role, plan in plans.items():
            fault = self._opening.faults(plan, role)
            if fault is not None:
                shown = [each.as_json() for each in fault[1]]
                problems.append({"role": role, "message": fault[0], "findings": shown})
        kept = self._unknown(list(plans.values()), asked.ignore or ())
        if kept:
            told = _unknown_names(kept)
            problems.append({"role": None, "message": told.message, "findings": []})
        choice = None if problems else self._execution.try_choice(asked, plans)
        return {
            "plan": _counts(list(plans.values())) | {"unknown": kept[:MAX_NAMES]},
            "would_switch": not problems,
            "needs_bytes": None if choice is None else dict(choice.needs_bytes),
            "atomicity": None if choice is None else choice.atomicity,
            "atomicity_reason": None if choice is None else choice.reason,
            "problems": problems,
        }


def _counts(plans: Sequence[Plan]) -> dict[str, Any]:
    """The plan block of a checkpoint on disk: all that it has of its own plan has come."""
    if any(plan.verdict == "fail" for plan in plans):
        return empty_plan()
    found = census(plans)
    groups = {"total": found["groups"], "complete": found["groups"]}
    return {
        **empty_plan(),
        "tensors_expected": found["tensors"],
        "tensors_received": found["tensors"],
        "ignored": found["ignored"],
        "groups": {**empty_plan()["groups"], **groups},
        "bytes": found["bytes"],
    }


def _without_destination(plan: Plan) -> set[str]:
    return {
        tail.name(layer)
        for tail in plan.tails
        for mask, reason in global_skip_masks(plan, tail)
        if reason == "no_destination"
        for layer in layers_in(mask)
    }


def _unknown_names(names: list[str]) -> Refusal:
    return Refusal(
        "unknown_tensor",
        f"{len(names):,} tensors have names that no rule knows, the first is {names[0]}",
        names=names[:MAX_NAMES],
        fix='leave them out, or name them in unknown: "ignore:<globs>"',
    )
