"""Assembly of the web application: services in, routes on, middleware around."""

import asyncio
import importlib.util
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.staticfiles import StaticFiles

from loadscope.app import problems, security
from loadscope.app.api import ROUTERS
from loadscope.app.api.docs import docs_router
from loadscope.app.api.requests import refuse_unknown_query
from loadscope.app.bodies import Limits
from loadscope.app.hosts import allowed_hosts
from loadscope.app.pages import page_router
from loadscope.app.services import Services, open_services
from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import Checkpoint

STATIC = Path(__file__).parent / "static"
SWAGGER_PACKAGE = "fastapi_offline"
DESCRIPTION = """
A DeepSeek-family weight loader that accounts for every byte: where each tensor of a checkpoint
went, which rule moved it, which slice of which parameter it filled, and why any byte was not used.

Sizes are bytes, durations seconds, `…_t` seconds since the epoch. Lists answer
`{"items": […], "total": n, "next": cursor}`; errors are RFC 9457 problem documents.
"""


def create_app(settings: Settings, model: Checkpoint | None = None) -> FastAPI:
    """The application; with a model, its load starts when the server does."""
    services = open_services(settings)
    app = FastAPI(
        title="loadscope",
        version="0.1.0",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(services, model),
    )
    app.state.services = services
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(refuse_unknown_query)])
    app.include_router(page_router(services.hub.document, settings.roles))
    app.include_router(docs_router(_mount_swagger(app)))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    problems.install(app)
    security.install(
        app,
        allowed_hosts(settings.host),
        Limits.of(settings),
        settings.api_key,
        guards_reads=settings.needs_key_to_read,
    )
    return app


def _mount_swagger(app: FastAPI) -> str | None:
    """Address of the Swagger UI files, if the package that carries them is installed."""
    spec = importlib.util.find_spec(SWAGGER_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    # only its files are used: its own pages have inline scripts
    files = StaticFiles(directory=Path(spec.origin).parent / "static")
    app.mount("/static-docs", files, name="static-docs")
    return "/static-docs"


def _lifespan(
    services: Services, model: Checkpoint | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.hub.attach(asyncio.get_running_loop())
        services.jobs.feeds.attach(asyncio.get_running_loop())
        services.live.start()
        services.jobs.feeds.start()
        if model is not None:
            first = threading.Thread(target=services.jobs.start_first, args=(model,), daemon=True)
            first.start()
        try:
            yield
        finally:
            await asyncio.to_thread(services.close)

    return lifespan
