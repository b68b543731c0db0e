"""Starts loads, one update at a time: plans first, then the bytes in a thread. Nothing else may."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadscope.app.live import Live
from loadscope.app.memory import available_bytes
from loadscope.app.opening import Opening
from loadscope.app.role_stores import RoleStores
from loadscope.app.settings import Origin, Settings
from loadscope.app.store import Store
from loadscope.app.updates.admission import Admission
from loadscope.app.updates.asked import Asked, Verify
from loadscope.app.updates.audit import Audit, Who
from loadscope.app.updates.execution import Execution
from loadscope.app.updates.feeds import Feeds
from loadscope.app.updates.log import UpdateLog
from loadscope.app.updates.names import name_of, number_of
from loadscope.app.updates.receiving import not_receiving
from loadscope.app.updates.record import Record
from loadscope.app.updates.refusal import Refusal
from loadscope.app.updates.standing import Standing
from loadscope.app.updates.update import Update
from loadscope.loader.budget import Budget
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.control import Cancelled
from loadscope.loader.execute import run_load
from loadscope.loader.fingerprints import fingerprint
from loadscope.loader.keeper import Keeper

log = logging.getLogger("loadscope.jobs")

STOP_WAIT_S = 1.0
CANCEL_WAIT_S = 30.0
LONG_S = 3600.0
NOBODY = Who()
KEPT_UPDATES = 64
CAN_STOP = frozenset({"queued", "planning", "receiving", "verifying", "staging"})


class Jobs:
    """The open update, the parameters that its loads fill, and the checkpoint they came from.

    Methods raise Refusal, with the code that says why; the weights are then as they were.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        live: Live,
        clock: Callable[[], float] = time.time,
        audit: Audit | None = None,
    ) -> None:
        self.standing = Standing(RoleStores(settings))
        self.log = UpdateLog(store)
        self.feeds = Feeds(self.log, clock=clock)
        self.keeper = Keeper(Budget(settings.memory_budget_bytes), available_bytes)
        self._settings, self._live, self._clock = settings, live, clock
        self._audit = audit
        opening = Opening(settings, store, live, self.standing.stores, run_load)
        self._execution = Execution(settings, live, self.standing, self.keeper, self.log, run_load)
        self._admission = Admission(
            settings, opening, self.standing, self._execution, self.log, self.feeds, clock
        )
        self._slot = threading.Lock()
        self._worker: threading.Thread | None = None
        self._open: Update | None = None
        self._updates: dict[int, Update] = {}
        self._closing = False

    @property
    def stores(self) -> RoleStores:
        return self.standing.stores

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.standing.base.checkpoint

    @property
    def running(self) -> int | None:
        return self.standing.running

    @property
    def is_writing(self) -> bool:
        return self.standing.is_writing

    @property
    def outcome(self) -> str | None:
        return self.standing.outcome

    @property
    def pending(self) -> Record | None:
        """The update that is open."""
        update = self._open
        return None if update is None else update.record

    def start(self, model: Checkpoint, origin: Origin) -> list[int]:
        """The first weights: plan all roles in this thread, load in another; the loads' ids.

        Nothing is verified before: there are no weights to lose.
        """
        asked = Asked(
            origin,
            "disk",
            path=model.path,
            checkpoint=model,
            label=model.path.name,
            ignore=None,
            verify=Verify("headers"),
        )
        return self._updates[self.open(asked)].record.loads

    def start_first(self, model: Checkpoint) -> None:
        """The load that a server begins with; a refusal is recorded and shown on the page."""
        try:
            self.start(model, self._settings.origin)
        except Refusal as refused:
            log.error("load refused: %s", refused)

    def open(
        self,
        asked: Asked,
        key: str | None = None,
        digest: str | None = None,
        who: Who = NOBODY,
    ) -> int:
        """Open an update; one from disk is planned when this returns, and then loads.

        `key` makes it idempotent: the same key and request `digest` give the same update.
        """
        known = self._admission.known(key, digest) if key is not None else None
        if known is not None:
            return known
        self._take_slot()
        try:
            self._admission.check_version(asked)
            update = self._admission.open(asked, key, digest)
        except BaseException:
            self._slot.release()
            raise
        update.who = who
        self._remember(update)
        try:
            self._admission.prepare(update)
            if update.loads:
                self._execution.choose(update)
        except BaseException as error:
            self._fail(update, error)
            raise
        if update.receiving is None:
            self._begin(update)
        watch = threading.Thread(target=self._watch, args=(update,), daemon=True)
        watch.start()
        return update.record.number

    def try_out(self, asked: Asked) -> dict[str, Any]:
        """What `open` would do, without doing it: the plan block, what it needs, what is wrong."""
        self._take_slot()
        try:
            return self._admission.try_out(asked)
        finally:
            self._slot.release()

    def commit(self, number: int, verify: Verify | None = None) -> None:
        """No more buckets come: check that all is there, plan it, then load it in a thread."""
        update = self._find(number)
        with update.record.lock:
            if update.record.state != "receiving":
                if update.committed and update.record.failure is None:
                    return
                raise not_receiving(update.record)
            update.committed = True
            update.record.advance("planning")
        if verify is not None:
            update.asked = replace(update.asked, verify=verify)
            update.record.ask(update.asked)
        try:
            self._admission.plan_upload(update)
            self._execution.choose(update)
        except BaseException as error:
            self._fail(update, error)
            raise
        self._begin(update)

    def cancel(self, number: int) -> None:
        """End an open update before the switch; the weights are as they were."""
        update = self._find(number)
        if update.record.state in CAN_STOP:
            self._stop(update, Refusal("cancelled", "cancelled by request"))
            update.record.done.wait(CANCEL_WAIT_S)
        if update.record.state != "cancelled":
            raise Refusal(
                "not_idle",
                f"update {update.record.id} is {update.record.state}: it cannot be cancelled",
                fix="roll it back with POST /reloads/{id}/rollback, if its old version is kept",
            )

    def wait_for(self, number: int, timeout_s: float) -> bool:
        """Whether an update has ended, after at most so long."""
        update = self._updates.get(number)
        return update is None or update.record.done.wait(timeout_s)

    def roll_back(self, number: int) -> None:
        """The version before this update again, out of memory."""
        self._take_slot()
        try:
            update = self._updates.get(number)
            if update is None or not self._can_roll_back(number):
                raise Refusal(
                    "nothing_to_roll_back",
                    f"the version before {name_of(number)} is not kept",
                    fix="only the newest update can be rolled back, while its old bytes are kept; "
                    "reload the version that you want",
                )
            self._execution.roll_back(update)
            newest = self.standing.base.newest
            restored = None if newest is None else self._updates.get(newest.update)
            if restored is not None:
                restored.record.state = "active"
        finally:
            self._slot.release()
        update.record.finish()

    def _can_roll_back(self, number: int) -> bool:
        newest = self.standing.base.newest
        return newest is not None and newest.update == number and self.keeper.can_roll_back

    async def put(self, number: int, bucket: int, chunks: Any, digest: Any) -> dict[str, Any]:
        """One bucket of an upload, from the event loop."""
        update = self._find(number)
        if update.receiving is None or update.record.state != "receiving":
            raise not_receiving(update.record)
        return await update.receiving.put(bucket, chunks, digest)

    def document(self, number: int) -> dict[str, Any] | None:
        """The record of any update, live or out of the log."""
        update = self._updates.get(number)
        document = self.log.record(number) if update is None else update.record.as_json()
        return None if document is None else self._shown(number, document)

    def documents(self, limit: int, before: int | None) -> list[dict[str, Any]]:
        """Records, newest first; `before` is the number of the last one seen."""
        found = []
        for row in self.log.rows(limit, before):
            number = number_of(row["id"])
            update = self._updates.get(number)
            found.append(self._shown(number, row if update is None else update.record.as_json()))
        return found

    def _shown(self, number: int, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "can_roll_back": self._can_roll_back(number)}

    def _find(self, number: int) -> Update:
        update = self._updates.get(number)
        if update is None:
            raise Refusal(
                "unknown_reload",
                f"no update {name_of(number)} is open here",
                fix="see GET /reloads",
            )
        return update

    def _take_slot(self) -> None:
        if self._closing or not self._slot.acquire(blocking=False):
            pending = self.pending
            named = "another update is being prepared"
            if pending is not None:
                named = f"update {pending.id} is open ({pending.state})"
            raise Refusal(
                "reload_in_progress",
                f"{named}; one writer at a time",
                fix="wait until it has ended, or cancel it with DELETE /reloads/{id}",
                load=self.running,
                update=None if pending is None else pending.id,
            )

    def _remember(self, update: Update) -> None:
        self._open = update
        self._updates[update.record.number] = update
        for number in sorted(self._updates)[:-KEPT_UPDATES]:
            del self._updates[number]

    def _begin(self, update: Update) -> None:
        name = f"update-{update.record.id}"
        self._worker = threading.Thread(target=self._work, args=(update,), name=name, daemon=True)
        self._worker.start()

    def _work(self, update: Update) -> None:
        try:
            self._execution.run(update)
        except Exception as error:  # noqa: BLE001  edge of the thread: the update must end
            self._fail(update, error)
            return
        self._end(update)

    def _fail(self, update: Update, error: BaseException) -> None:
        """End an update in a named state, whatever it was that went wrong."""
        try:
            self._execution.fail(update, _as_refusal(update, error))
        finally:
            self._end(update)

    def _end(self, update: Update) -> None:
        """Let the next one in; what was spooled is not needed any more."""
        if update.receiving is not None:
            update.receiving.spool.remove()
        self._retire(update)
        self._say_outcome()
        self._tell_audit(update)
        self.standing.running = None
        self._open = None
        self._slot.release()
        update.record.finish()

    def _tell_audit(self, update: Update) -> None:
        record = update.record
        if self._audit is not None:
            self._audit.record(
                "ended", record.state, update.who, update=record.id, version=record.version,
                digest=record.verify["overall"],
            )  # fmt: skip

    def _retire(self, update: Update) -> None:
        """The record in memory agrees with the one on disk."""
        if update.record.state == "active":
            for number, other in self._updates.items():
                if number != update.record.number and other.record.state == "active":
                    other.record.state = "retired"

    def _say_outcome(self) -> None:
        self._live.flush()
        ended = [(view.load, view.state.status) for view in self._live.views]
        # the one that did not finish says more than those before and after it
        worst = next((one for one in ended if one[1] != "finished"), ended[-1] if ended else None)
        if worst is not None:
            self.standing.outcome = f"load {worst[0]} {worst[1]}"

    def _watch(self, update: Update) -> None:
        """Ends an update that takes too long: waiting for buckets, or in all."""
        record = update.record
        while not record.done.wait(max(0.01, self._left_s(update))):
            if self._left_s(update) > 0:
                continue
            limit = self._settings.receive_timeout_s
            if record.deadline_t is not None and self._clock() >= record.deadline_t:
                told = f"deadline_s = {record.asked.deadline_s:g} has passed"
                refusal = Refusal("deadline_exceeded", f"{told} in the phase {record.state}")
            else:
                told = f"no bucket came for receive_timeout_s = {limit:g}"
                refusal = Refusal("receive_timeout", told, fix="send it again in a new update")
            if record.state in CAN_STOP:
                self._stop(update, refusal)
            record.done.wait(1.0)

    def _left_s(self, update: Update) -> float:
        now, left = self._clock(), [LONG_S]
        if update.record.deadline_t is not None:
            left.append(update.record.deadline_t - now)
        if update.receiving is not None and update.record.state == "receiving":
            left.append(update.receiving.last_t + self._settings.receive_timeout_s - now)
        return min(left)

    def _stop(self, update: Update, refusal: Refusal) -> None:
        """End an update in a phase that can be stopped: at once, or at its next gate."""
        with update.record.lock:
            is_waiting = update.record.state == "receiving"
            if is_waiting:
                update.record.enter("verifying")
        update.stopped = refusal
        if is_waiting:
            self._fail(update, refusal)
        else:
            update.control.cancel()

    def fingerprint(self) -> dict[str, Any]:
        """Hashes and measured coverage of the one loaded rank: loads it twice more, unrecorded."""
        view = self._live.view
        assert view is not None, "fingerprints follow a load"
        assert view.plan is not None, "fingerprints follow a load"
        assert self.checkpoint is not None, "fingerprints follow a load"
        (store,) = self.stores[view.role].values()
        return fingerprint(view.plan, self.checkpoint, store)

    def hold(self, *, paused: bool) -> bool:
        """Pause or resume the running load between two steps; False when none runs."""
        update = self._open
        if update is None or not update.loads:
            return False
        if paused:
            update.control.pause()
        else:
            update.control.resume()
        self._live.nudge()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once no load runs any more."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        return worker is None or not worker.is_alive()

    def close(self) -> None:
        """Cancel the open update; a load that does not stop in time is found interrupted later."""
        self._closing = True
        if (update := self._open) is not None and not update.record.has_ended:
            self._stop(update, Refusal("interrupted", "the server was shut down"))
        self.wait(STOP_WAIT_S)
        self.feeds.close()


def _as_refusal(update: Update, error: BaseException) -> Refusal:
    """Why an update ended; what nobody expected is in the server's log."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Cancelled):
        return Refusal("cancelled", str(error))
    log.error("update %s failed", update.record.id, exc_info=error)
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Refusal("load_failed", reason, fix="see the server's log")
