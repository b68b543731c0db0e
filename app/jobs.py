"""Starts loads, one update at a time: plans first, then the bytes in a thread. Nothing else may."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadscope.app.job_errors import Busy, Refused
from loadscope.app.live import Live
from loadscope.app.opening import Opening
from loadscope.app.role_stores import RoleStores
from loadscope.app.settings import Origin, Settings
from loadscope.app.store import Store
from loadscope.app.update import RoleLoad, end_update, refuse_others
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.control import Control
from loadscope.loader.execute import run_load
from loadscope.loader.fingerprints import fingerprint
from loadscope.loader.summary import describe_load
from loadscope.loader.views import rank_row

log = logging.getLogger("loadscope.jobs")

STOP_WAIT_S = 1.0


class Jobs:
    """The running update, the parameters that its loads fill, and the checkpoint they came from."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        live: Live,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stores = RoleStores(settings)
        self.checkpoint: Checkpoint | None = None
        self.running: int | None = None
        # between two ranks or roles each store is whole, yet they hold different weights
        self.is_writing = False
        # why there is nothing to read yet, in words
        self.outcome: str | None = None
        self._settings, self._live = settings, live
        self._opening = Opening(settings, store, live, self.stores, clock)
        self._control: Control | None = None
        self._slot = threading.Lock()
        self._worker: threading.Thread | None = None

    def start(self, source: Path | Checkpoint, origin: Origin) -> list[int]:
        """Plan all roles in this thread, load in another; the loads' ids once all are accepted.

        Raises Busy while another load runs, Refused when a plan must not be executed.
        """
        if not self._slot.acquire(blocking=False):
            raise Busy(self.running)
        try:
            update, work = self._prepare(source, origin)
            name = f"load-{update[0].load}"
            self._worker = threading.Thread(target=work, name=name, daemon=True)
            self._worker.start()
        except BaseException:
            self._end()
            raise
        return [one.load for one in update]

    def start_first(self, model: Checkpoint) -> None:
        """The load that a server begins with; a refusal is recorded and shown on the page."""
        try:
            self.start(model, self._settings.origin)
        except Refused as refused:
            log.error("load %d refused: %s", refused.load, refused)

    def _prepare(
        self, source: Path | Checkpoint, origin: Origin
    ) -> tuple[list[RoleLoad], Callable[[], None]]:
        path = source if isinstance(source, Path) else source.path
        control = Control()
        update = self._opening.open(path, origin, control)
        self.running = update[0].load
        self.outcome = f"load {self.running} is being planned"
        try:
            checkpoint = self._opening.plan(update, source, self._record)
        except Refused as refused:
            refuse_others(update, refused.load)
            self.outcome = f"load {refused.load} was refused: {refused}"
            raise
        self._control = control
        return update, lambda: self._execute(update, checkpoint, control)

    def _record(self, one: RoleLoad, checkpoint: Checkpoint) -> None:
        """A failed plan on record with its refusal; touches no parameter."""
        run_load(one.plan, checkpoint, self.stores.get(one.role, {}), one.recorder.emit)

    def _execute(self, update: list[RoleLoad], checkpoint: Checkpoint, control: Control) -> None:
        try:
            self.stores.allocate(update)
            self.checkpoint = checkpoint
            self._pace(update, control)
            for one in update[1:]:
                self._live.expect(one.load, describe_load(one.plan, list(one.stores)))
            self.is_writing = True
            self._run(update, checkpoint, control)
        except Exception as error:
            # edge of the thread: no memory, say; the loads must end in the log all the same
            log.exception("load %d failed", update[0].load)
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            for one in update:
                one.recorder.emit("failed", reason=reason, detail={"fix": "see the server's log"})
                one.recorder.emit("load_finished", detail={"status": "failed"})
        finally:
            self.is_writing = False
            self._end()

    def _run(self, update: list[RoleLoad], checkpoint: Checkpoint, control: Control) -> None:
        """Role after role; the first that does not finish ends the update."""
        for one in update:
            self.running, self.outcome = one.load, f"load {one.load} is running"
            run_load(one.plan, checkpoint, one.stores, one.recorder.emit, control)
            self._live.flush()
            status = self._live.view_of(one.load).state.status
            if status != "finished":
                end_update(update, one, status)
                return

    def _pace(self, update: list[RoleLoad], control: Control) -> None:
        if self._settings.pace_s is not None:
            reads = (rank_row(one.plan, r)["read_bytes"] for one in update for r in one.stores)
            control.pace_bps = sum(reads) / self._settings.pace_s

    def _end(self) -> None:
        self._live.flush()
        ended = [(view.load, view.state.status) for view in self._live.views]
        # the one that did not finish says more than those before and after it
        worst = next((one for one in ended if one[1] != "finished"), ended[-1] if ended else None)
        if worst is not None and worst[1] != "refused":
            self.outcome = f"load {worst[0]} {worst[1]}"
        self.running = self._control = None
        self._slot.release()

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
        control = self._control
        if control is None:
            return False
        if paused:
            control.pause()
        else:
            control.resume()
        self._live.nudge()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once no load runs any more."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        return worker is None or not worker.is_alive()

    def close(self) -> None:
        """Cancel the running load; one that does not stop in time is found interrupted later."""
        if (control := self._control) is not None:
            control.cancel()
        self.wait(STOP_WAIT_S)
