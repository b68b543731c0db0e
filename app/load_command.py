"""The `load` command: one recorded load of one rank, in this process, without a server."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from loadscope.app.encoding import dumps
from loadscope.app.identity_command import check_reload
from loadscope.app.jobs import Jobs
from loadscope.app.live import Live
from loadscope.app.load_findings import load_findings
from loadscope.app.memory import check_device
from loadscope.app.options import refuse
from loadscope.app.progress import follow
from loadscope.app.settings import Settings
from loadscope.app.store import Store
from loadscope.app.store_schema import StoreError
from loadscope.app.tick import Tick
from loadscope.app.updates.refusal import Refusal
from loadscope.loader.checkpoint import Checkpoint


def load_once(
    settings: Settings,
    checkpoint: Checkpoint,
    fingerprints: Path | None,
    *,
    check_again: bool = False,
    show_progress: bool,
) -> dict[str, Any]:
    """The final state of the load with its findings; the state directory has the record.

    `check_again` adds `reload_identity`: what a second load left, None if the first failed.
    """
    try:
        check_device(settings.device)
        store = Store(settings.state_dir, settings.retention_bytes)
    except (StoreError, ValueError) as error:
        refuse(str(error))
    live = Live(store, _nobody_watches)
    jobs = Jobs(settings, store, live)
    live.start()
    try:
        document = _run(jobs, live, checkpoint, show_progress=show_progress)
        if check_again:
            is_loaded = document["status"] == "finished"
            document["reload_identity"] = check_reload(jobs, live) if is_loaded else None
        if fingerprints is not None and document["status"] == "finished":
            fingerprints.write_bytes(dumps(jobs.fingerprint()))
    finally:
        jobs.close()
        live.close()
        store.close()
    return document


def _nobody_watches(tick: Tick) -> None:
    """There is no page to show the tick to."""


def _run(jobs: Jobs, live: Live, checkpoint: Checkpoint, *, show_progress: bool) -> dict[str, Any]:
    # the record says why it was refused, and so does the document
    with suppress(Refusal):
        jobs.start(checkpoint, "load")
    if show_progress:
        follow(jobs, live)
    jobs.wait()
    view = live.view
    assert view is not None, "a started load has a view"
    return {**view.document(time.time()), "findings": load_findings(view)}
