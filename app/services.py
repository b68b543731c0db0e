"""What a running process holds: made once, handed to every route."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from loadscope.app.archive import Archive
from loadscope.app.jobs import Jobs
from loadscope.app.live import Live
from loadscope.app.roots import Roots
from loadscope.app.settings import Settings
from loadscope.app.store import Store
from loadscope.app.store_lock import FileLock, lock_server
from loadscope.app.store_schema import StoreError
from loadscope.app.stream import Hub
from loadscope.app.updates.audit import Audit
from loadscope.app.updates.spool import Spool
from loadscope.app.what_if import WhatIf


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    roots: Roots
    store: Store
    hub: Hub
    live: Live
    archive: Archive
    jobs: Jobs
    what_if: WhatIf
    lock: FileLock
    audit: Audit
    clock: Callable[[], float] = time.time

    def close_streams(self) -> None:
        """Say goodbye to everybody who follows something."""
        self.hub.close()
        self.jobs.feeds.close_streams()

    def close(self) -> None:
        """End the load, keep its last events, let the state directory go."""
        self.jobs.close()
        self.live.close()
        self.store.close()
        self.lock.release()


def open_services(settings: Settings) -> Services:
    """Everything a server needs; raises StoreError when another one has the state directory."""
    store = Store(settings.state_dir, settings.retention_bytes)
    lock = lock_server(settings.state_dir)
    if lock is None:
        store.close()
        raise StoreError(
            f"another server uses the state directory {settings.state_dir}; "
            "stop it or choose another with --state-dir"
        )
    hub = Hub(settings.max_clients)
    live = Live(store, hub.publish)
    audit = Audit(settings.state_dir)
    archive, jobs = Archive(store, live), Jobs(settings, store, live, audit=audit)
    folders = settings.roots or ((settings.model,) if settings.model is not None else ())
    Spool.sweep(settings.spool_root, alive=())
    return Services(
        settings, Roots(folders), store, hub, live, archive, jobs, WhatIf(), lock, audit
    )


def get_services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services), services
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
