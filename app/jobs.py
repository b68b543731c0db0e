"""Starts loads, one at a time: plan first, then move the bytes in a thread. Nothing else may."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadscope.app.job_errors import Busy, Refused
from loadscope.app.live import Live
from loadscope.app.load_start import describe_start
from loadscope.app.memory import available_bytes
from loadscope.app.rank_choice import choose_ranks
from loadscope.app.settings import Origin, Settings
from loadscope.app.store import Store
from loadscope.loader.checkpoint import Checkpoint, NotACheckpoint, open_checkpoint
from loadscope.loader.control import Control
from loadscope.loader.events import Recorder
from loadscope.loader.execute import run_load
from loadscope.loader.findings import Finding
from loadscope.loader.fingerprints import fingerprint
from loadscope.loader.parameters import ParameterStore, check_fit, parameter_bytes
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.views import rank_row

log = logging.getLogger("loadscope.jobs")

STOP_WAIT_S = 1.0


class Jobs:
    """The running load, the parameters that loads fill, and the checkpoint they came from."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        live: Live,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stores: dict[int, ParameterStore] = {}
        self.checkpoint: Checkpoint | None = None
        self.running: int | None = None
        # between two ranks each store is whole, yet they hold different weights
        self.is_writing = False
        # why there is nothing to read yet, in words
        self.outcome: str | None = None
        self._settings, self._store, self._live, self._clock = settings, store, live, clock
        self._control: Control | None = None
        self._slot = threading.Lock()
        self._worker: threading.Thread | None = None

    def start(self, source: Path | Checkpoint, origin: Origin) -> int:
        """Plan in this thread, load in another; the load's id once the plan is accepted.

        Raises Busy while another load runs, Refused when the plan must not be executed.
        """
        if not self._slot.acquire(blocking=False):
            raise Busy(self.running)
        try:
            load, work = self._prepare(source, origin)
            self._worker = threading.Thread(target=work, name=f"load-{load}", daemon=True)
            self._worker.start()
        except BaseException:
            self._end()
            raise
        return load

    def _prepare(self, source: Path | Checkpoint, origin: Origin) -> tuple[int, Callable[[], None]]:
        path = source if isinstance(source, Path) else source.path
        load = self._store.create_load(origin, path.name, str(path), self._clock())
        self.running, self.outcome = load, f"load {load} is being planned"
        control = Control()
        recorder = self._live.begin(load, control)
        try:
            checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
        except NotACheckpoint as error:
            self._emit_started(recorder, path, None)
            raise self._refuse(recorder, str(error)) from None
        self._emit_started(recorder, path, checkpoint)
        plan = make_plan(checkpoint, self._settings.layout, self._settings.options)
        self._live.set_plan(plan)
        self._check(plan, checkpoint, recorder)
        self._control = control
        return load, lambda: self._execute(plan, checkpoint, recorder, control)

    def _emit_started(self, recorder: Recorder, path: Path, checkpoint: Checkpoint | None) -> None:
        store = next(iter(self.stores.values()), None)
        detail = describe_start(self._settings, path, checkpoint, store)
        recorder.emit("load_started", detail=detail)

    def _check(self, plan: Plan, checkpoint: Checkpoint, recorder: Recorder) -> None:
        if plan.verdict == "fail":
            # records the plan and the refusal; touches no parameter
            run_load(plan, checkpoint, self.stores, recorder.emit)
            errors = [f for f in plan.findings if f.level == "error"]
            message = f"{len(errors):,} kinds of error in the plan, first: {errors[0].message}"
            raise self._refused(recorder.load, message, plan.findings)
        if plan.kind == "pack":
            text = f"{plan.label} holds headers without data: it can be planned, not loaded"
            raise self._refuse(recorder, text)
        if misfits := check_fit(plan, self._filled()):
            raise self._refuse(recorder, misfits[0].message, misfits)

    def start_first(self, model: Checkpoint) -> None:
        """The load that a server begins with; a refusal is recorded and shown on the page."""
        try:
            self.start(model, self._settings.origin)
        except Refused as refused:
            log.error("load %d refused: %s", refused.load, refused)

    def _refuse(
        self, recorder: Recorder, message: str, findings: Sequence[Finding] = ()
    ) -> Refused:
        shown = [one.as_json() for one in findings]
        fix = findings[0].fix if findings else "name a checkpoint directory"
        recorder.emit("failed", reason=message, detail={"fix": fix, "findings": shown})
        recorder.emit("load_finished", detail={"status": "refused"})
        return self._refused(recorder.load, message, findings)

    def _refused(self, load: int, message: str, findings: Sequence[Finding]) -> Refused:
        self.outcome = f"load {load} was refused: {message}"
        return Refused(load, message, findings)

    def _execute(
        self, plan: Plan, checkpoint: Checkpoint, recorder: Recorder, control: Control
    ) -> None:
        self.outcome = f"load {recorder.load} is running"
        try:
            self._allocate(plan)
            self.checkpoint = checkpoint
            if self._settings.pace_s is not None:
                total = sum(rank_row(plan, rank)["read_bytes"] for rank in self.stores)
                control.pace_bps = total / self._settings.pace_s
            self.is_writing = True
            run_load(plan, checkpoint, self.stores, recorder.emit, control)
        except Exception as error:
            # edge of the thread: no memory, say; the load must end in the log all the same
            log.exception("load %d failed", recorder.load)
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            recorder.emit("failed", reason=reason, detail={"fix": "see the server's log"})
            recorder.emit("load_finished", detail={"status": "failed"})
        finally:
            self.is_writing = False
            self._end()

    def _filled(self) -> dict[int, ParameterStore]:
        """Stores that hold something; an engine may know their addresses."""
        return {r: store for r, store in self.stores.items() if store.state != "empty"}

    def _allocate(self, plan: Plan) -> None:
        if self._filled():
            return
        sizes = {rank: parameter_bytes(plan, rank) for rank in range(plan.layout.world)}
        device = self._settings.device
        ranks = choose_ranks(self._settings.ranks, sizes, available_bytes(device))
        self.stores = {rank: ParameterStore(plan, rank, device=device) for rank in ranks}

    def _end(self) -> None:
        self._live.flush()
        if (view := self._live.view) is not None and view.state.status != "refused":
            self.outcome = f"load {view.load} {view.state.status}"
        self.running = self._control = None
        self._slot.release()

    def fingerprint(self) -> dict[str, Any]:
        """Hashes and measured coverage of the one loaded rank: loads it twice more, unrecorded."""
        plan = self._live.view.plan if self._live.view is not None else None
        assert plan is not None, "fingerprints follow a load"
        assert self.checkpoint is not None, "fingerprints follow a load"
        (store,) = self.stores.values()
        return fingerprint(plan, self.checkpoint, store)

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
