"""An update in its thread: bytes checked, loads beside or over the live weights, the switch.

Every failure ends in a named state, and says what had been touched by then.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from loadscope.app.live import Live
from loadscope.app.opening import RunLoad
from loadscope.app.roles import Role
from loadscope.app.settings import Settings
from loadscope.app.updates.asked import Asked
from loadscope.app.updates.examine import read_back, verify_bytes
from loadscope.app.updates.log import UpdateLog
from loadscope.app.updates.measure import Measured, measure
from loadscope.app.updates.refusal import Refusal
from loadscope.app.updates.role_loads import RoleLoad, end_update, tell_end
from loadscope.app.updates.standing import Base, Served, Standing
from loadscope.app.updates.update import Update
from loadscope.loader.budget import OverBudget
from loadscope.loader.freshness import check_freshness
from loadscope.loader.keeper import Choice, Keeper, Order
from loadscope.loader.plan import Plan
from loadscope.loader.summary import describe_load
from loadscope.loader.views import rank_row
from loadscope.loader.writing import Writing, written_elements

log = logging.getLogger("loadscope.updates")


class Execution:
    """Carries out one update after another; knows nothing of HTTP."""

    def __init__(
        self,
        settings: Settings,
        live: Live,
        standing: Standing,
        keeper: Keeper,
        journal: UpdateLog,
        load: RunLoad,
    ) -> None:
        self._settings, self._live, self._standing = settings, live, standing
        self._keeper, self._log, self._run_load = keeper, journal, load

    def choose(self, update: Update) -> Choice:
        """How it will be made whole; Refusal if a required way does not fit."""
        orders = [self._order(one, update.writing) for one in update.loads]
        choice = self._choose(update.asked, orders)
        update.record.atomicity = choice.atomicity
        update.record.atomicity_reason = choice.reason
        update.choice = choice
        return choice

    def _choose(self, asked: Asked, orders: Sequence[Order]) -> Choice:
        is_verified = asked.verify.reads_bytes
        try:
            return self._keeper.choose(asked.atomic, orders, is_verified=is_verified)
        except OverBudget as error:
            raise Refusal(
                "insufficient_memory",
                str(error),
                fix="give it more memory (--memory-budget), or ask with atomic: prefer",
            ) from None

    def try_choice(self, asked: Asked, plans: Mapping[Role, Plan]) -> Choice:
        """The same for plans that nothing is done with."""
        stores = self._standing.stores
        orders = []
        for role, plan in plans.items():
            live = stores.get(role, {})
            orders.append(Order(role, plan, live, dict.fromkeys(live)))
        return self._choose(asked, orders)

    def _order(self, one: RoleLoad, writing: Writing) -> Order:
        live = self._standing.stores.get(one.role, {})
        touched = {
            rank: None
            if writing.files is None
            else set(written_elements(one.plan, writing.steps(one.plan, rank)))
            for rank in live
        }
        return Order(one.role, one.plan, live, touched)

    def run(self, update: Update) -> None:
        """From a planned update to its commit. What goes wrong passes through: see `fail`."""
        choice = update.choice or self.choose(update)
        self._standing.stores.allocate(update.loads)
        if self._standing.base.checkpoint is None:
            self._standing.base = Base(update.checkpoint)
        self._verify(update)
        self._keeper.prepare(choice)
        self._write(update, choice)
        self._switch(update, choice)
        self._check(update)
        self._commit(update)

    def _verify(self, update: Update) -> None:
        asked = update.asked
        if asked.verify.reads_bytes:
            update.record.advance("verifying")
            update.checksums = verify_bytes(update)

    def _write(self, update: Update, choice: Choice) -> None:
        """Every role's load, one after another, into second copies or over the live weights."""
        record, is_staged = update.record, choice.atomicity == "staged"
        if not is_staged:
            record.advance("quiescing")
        record.advance("staging" if is_staged else "switching")
        for one in update.loads:
            one.written = self._keeper.open(self._order(one, update.writing))
        writing = Writing(record.version, self._keeper.keeps_old_bytes, update.files)
        for one in update.loads[1:]:
            self._live.expect(one.load, describe_load(one.plan, list(one.stores), writing))
        if is_staged:
            self._load(update, writing)
            self._measure(update, {role: {} for role in record.roles})
            return
        with self._stopped(update):
            self._load(update, writing)
            record.advance("finalizing")
            for one in update.loads:
                for store in one.stores.values():
                    store.plan = one.plan
            self._measure(update, self._old_bytes(update))

    def _load(self, update: Update, writing: Writing) -> None:
        total = self._bytes(update)
        if self._settings.pace_s is not None:
            update.control.pace_bps = total / self._settings.pace_s
        for one in update.loads:
            self._standing.running = one.load
            self._standing.outcome = f"load {one.load} is running"
            with self._progress(update, total):
                assert update.checkpoint is not None, "planned before it is run"
                self._run_load(
                    one.plan, update.checkpoint, one.written, one.recorder.emit,
                    update.control, writing=writing,
                )  # fmt: skip
            self._live.flush()
            state = self._live.view_of(one.load).state
            if state.status != "finished":
                end_update(update.loads, one, state.status)
                self._raise(one, state.status, state.failure)
            self._count(update, one)

    def _raise(self, one: RoleLoad, status: str, failure: Mapping[str, Any] | None) -> None:
        told = failure or {"message": f"load {one.load} {status}"}
        names = [told[key] for key in ("tensor", "param") if told.get(key)]
        code = "cancelled" if status == "interrupted" else "load_failed"
        raise Refusal(
            code, str(told["message"]), fix=str(told.get("fix") or ""), names=names,
            load=one.load, role=one.role,
        )  # fmt: skip

    @contextmanager
    def _progress(self, update: Update, total: int) -> Iterator[None]:
        begun, before = time.perf_counter(), update.control.moved

        def tell(moved: int) -> None:
            seconds = time.perf_counter() - begun
            rate = (moved - before) / seconds / 1e9 if seconds > 0 else 0.0
            facts = {"phase": update.record.state, "bytes": moved, "of": total, "gbps": rate}
            update.record.publish("progress", facts)

        update.control.on_moved = tell
        try:
            yield
        finally:
            update.control.on_moved = None
            update.record.read_bytes = update.control.moved

    def _bytes(self, update: Update) -> int:
        """Bytes that the loads of all roles and ranks read."""
        if update.files is not None:
            chosen = (
                update.writing.steps(one.plan, rank) for one in update.loads for rank in one.stores
            )
            return sum(step.nbytes for steps in chosen for step in steps)
        reads = (rank_row(one.plan, r)["read_bytes"] for one in update.loads for r in one.stores)
        return sum(reads)

    def _count(self, update: Update, one: RoleLoad) -> None:
        """What the load did to its role, in numbers."""
        written = list(one.written.values())
        refreshed = sum(s.is_new(name) for s in written for name in s.derived)
        derived = sum(len(s.derived) for s in one.stores.values()) or refreshed
        state = self._live.view_of(one.load).state
        update.record.roles[one.role] = {
            "load": one.load,
            "tensors": state.tensors_done,
            "parameters": state.parameters_full,
            "derived_refreshed": refreshed,
            "derived_kept": derived - refreshed,
            "post_processed": True,
            "reason": None,
        }

    def _old_bytes(self, update: Update) -> dict[str, dict[int, Any]]:
        return {
            one.role: {
                rank: store.undo.kept
                for rank, store in one.stores.items()
                if store.undo is not None
            }
            for one in update.loads
        }

    def _measure(self, update: Update, old: Mapping[str, Mapping[int, Any]]) -> None:
        """What the update changes; weights that turn out not to be finite are refused."""
        if update.asked.stats == "none":
            return
        found: Measured | None = measure(update.loads, old)
        if found is None:
            return
        update.record.delta = found.document
        if found.broken:
            raise Refusal(
                "non_finite",
                f"{len(found.broken)} parameters would hold NaN or Inf where they held none, the "
                f"first is {found.broken[0]}",
                names=found.broken[:20],
                fix="look at the trainer's step: its weights are not finite",
            )

    def _switch(self, update: Update, choice: Choice) -> None:
        if choice.atomicity != "staged":
            return
        record = update.record
        record.advance("quiescing")
        record.advance("switching")
        with self._stopped(update):
            self._keeper.switch()
        record.switch_bytes = 2 * choice.needs_bytes["staged"]
        record.advance("finalizing")

    @contextmanager
    def _stopped(self, update: Update) -> Iterator[None]:
        """Nobody reads the weights meanwhile; how long, the record says."""
        begun = time.perf_counter()
        self._standing.is_writing = True
        try:
            yield
        finally:
            self._standing.is_writing = False
            update.record.stopped_s += time.perf_counter() - begun

    def _check(self, update: Update) -> None:
        """Derived tensors against their inputs; with `loaded`, what stands there read back."""
        record = update.record
        for one in update.loads:
            for rank, store in one.stores.items():
                for finding in check_freshness(store):
                    facts = {"role": one.role, "rank": rank, "finding": finding.as_json()}
                    record.warn(finding.code, finding.message, **facts)
        if update.asked.verify.level == "loaded":
            record.advance("checking")
            read_back(update, self._standing.stores)

    def _commit(self, update: Update) -> None:
        record, standing = update.record, self._standing
        self._say_kept(update)
        served = Served(record.version, record.number)
        roles = {one.role: served for one in update.loads}
        plans = {one.role: one.plan for one in update.loads}
        standing.before = standing.base
        base = Base(
            update.checkpoint,
            {**standing.base.plans, **plans},
            {**standing.base.served, **roles},
        )
        record.weights = "new"
        record.enter("active")
        document = record.as_json()
        assert record.ended_t is not None, "an active update has ended"
        digest = record.verify["overall"]
        self._log.commit(record.number, record.version, record.ended_t, digest, document)
        standing.base = base
        self._keeper.settle(retain=update.asked.retain_previous)
        record.tell()

    def _say_kept(self, update: Update) -> None:
        """Roles that got no data are not post-processed, and the record says so."""
        for role, stores in self._standing.stores.items():
            if role not in update.record.roles:
                update.record.roles[role] = {
                    "load": None,
                    "tensors": 0,
                    "parameters": 0,
                    "derived_refreshed": 0,
                    "derived_kept": sum(len(store.derived) for store in stores.values()),
                    "post_processed": False,
                    "reason": "no tensor of this role in the update",
                }

    def fail(self, update: Update, refusal: Refusal) -> None:
        """End it: the weights are as they were, put back, or poisoned; the record says which."""
        record = update.record
        if update.stopped is not None and refusal.code == "cancelled":
            # the load only knows that it was asked to end
            update.stopped.load = refusal.load
            refusal = update.stopped
        record.fail(refusal)
        touched = self._touched()
        state, record.weights = self._undo(update, refusal, is_touched=bool(touched))
        if record.weights in ("rolled_back", "poisoned"):
            record.touched = touched
        failed = next((one for one in update.loads if one.load == refusal.load), None)
        status = "interrupted" if refusal.code in ("cancelled", "interrupted") else "failed"
        self._live.flush()
        if any(one.written for one in update.loads):
            tell_end(update.loads, failed, status, f"does not count: {refusal.message}")
        else:
            open_loads = [one for one in update.loads if self._is_open(one)]
            tell_end(open_loads, None, status, f"not begun: {refusal.message}")
        self._live.flush()
        record.advance(state)

    def _is_open(self, one: RoleLoad) -> bool:
        """Whether the load's record has no end yet; a refused one has."""
        return self._live.view_of(one.load).state.finished_t is None

    def _touched(self) -> dict[str, dict[str, list[str]]]:
        """Live parameters that were written, by role and rank."""
        written = {
            role: {str(rank): names for rank, names in ranks.items() if names}
            for role, ranks in self._keeper.written().items()
        }
        return {role: ranks for role, ranks in written.items() if ranks}

    def _undo(self, update: Update, refusal: Refusal, *, is_touched: bool) -> tuple[str, str]:
        """(state of the update, what the weights are)."""
        gentle = {"cancelled": "cancelled", "interrupted": "interrupted"}.get(
            refusal.code, "failed"
        )
        if update.record.state in ("planning", "receiving", "verifying", "queued"):
            return gentle, "unchanged"
        was_switched = self._keeper.is_switched
        if not was_switched and not is_touched:
            return gentle, "unchanged"
        if was_switched or update.asked.rollback == "auto":
            with self._stopped(update):
                is_whole = self._put_back()
            if is_whole:
                return "rolled_back", "rolled_back"
        # no version is served any more
        self._standing.base = replace(self._standing.base, served={})
        self._log.retire_active()
        return "poisoned", "poisoned"

    def _put_back(self) -> bool:
        """Whether the live weights are the old ones again; if not, nobody may read them."""
        try:
            return self._keeper.undo()
        except Exception:
            # the update must end all the same, and the next one be able to repair
            log.exception("the old weights could not be put back")
            for stores in self._standing.stores.values():
                for store in stores.values():
                    if store.state == "ready":
                        store.mix(list(store.parameters))
            return False

    def roll_back(self, update: Update) -> None:
        """The version before again, out of memory. ValueError if it is not kept."""
        record, standing = update.record, self._standing
        with self._stopped(update):
            self._keeper.roll_back()
        standing.base, standing.before = standing.before, Base()
        record.weights = "rolled_back"
        record.enter("rolled_back")
        document = record.as_json()
        assert record.ended_t is not None, "a rolled back update has ended"
        newest = standing.base.newest
        restored = None if newest is None else newest.update
        self._log.roll_back(record.number, document, record.ended_t, restored)
        record.tell()
