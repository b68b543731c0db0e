"""The `serve` and `demo` commands: bind first, then assemble, then run until told to stop."""

import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from loadscope.app.main import create_app
from loadscope.app.memory import check_device
from loadscope.app.options import refuse
from loadscope.app.output import stderr
from loadscope.app.server import Server, bind, url_of
from loadscope.app.settings import Settings
from loadscope.app.store_schema import StoreError
from loadscope.app.updates.spool import make_root
from loadscope.loader.checkpoint import Checkpoint


def run_server(settings: Settings, checkpoint: Checkpoint | None) -> None:
    """Serve until SIGINT or SIGTERM; a taken port or state directory is wrong usage."""
    try:
        check_device(settings.device)
        if settings.spool_dir is not None:
            make_root(settings.spool_root)
    except ValueError as error:
        refuse(str(error))
    try:
        bound = bind(settings.host, settings.port)
    except OSError as error:
        refuse(str(error) if error.errno is None else f"{settings.host}: {error.strerror}")
    try:
        app = create_app(settings, checkpoint)
    except StoreError as error:
        bound.close()
        refuse(str(error))
    # uvicorn raises the signal again when it has stopped: then temporary folders must still go
    signal.signal(signal.SIGTERM, _exit)
    _greet(settings, url_of(bound), checkpoint)
    try:
        Server(app, app.state.services.close_streams).run(sockets=[bound])
    except KeyboardInterrupt:
        stderr.print("stopped")
    finally:
        # only if it is empty: the folder may lie in one that others share
        with suppress(OSError):
            settings.spool_root.rmdir()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _greet(settings: Settings, url: str, checkpoint: Checkpoint | None) -> None:
    what = f"loading {checkpoint.label}" if checkpoint is not None else "idle: POST /reload"
    what += "" if settings.roles == ("target",) else f", {' and '.join(settings.roles)}"
    pace = "" if settings.pace_s is None else f", paced to {settings.pace_s:.0f} s, to be watched"
    stderr.print(f"loadscope at [bold]{url}[/bold]  ({what}{pace})")
    stderr.print(f"  API {url}docs   stop with Ctrl+C")
    if settings.api_key is not None:
        what = "everything" if settings.needs_key_to_read else "whatever changes the weights"
        stderr.print(f"  the key is needed for {what}")
    elif settings.needs_key_to_read:
        stderr.print("  [yellow]reachable from other machines, without a key[/yellow]")
