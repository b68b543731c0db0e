"""A progress bar by bytes while a load runs in another thread."""

import time

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from loadscope.app.jobs import Jobs
from loadscope.app.live import Live
from loadscope.app.output import stderr

POLL_S = 0.1


def follow(jobs: Jobs, live: Live) -> None:
    """Show bytes, rate and time left until the load ends."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task("loading", total=None)
        while not jobs.wait(POLL_S):
            view = live.view
            assert view is not None, "a running load has a view"
            document = view.document(time.time())
            total = document["bytes_total"] or None
            progress.update(task, completed=document["bytes_done"], total=total)
