"""The pages under /ui/: a first paint from the live snapshot; scripts take over from there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadscope.app.panels import views
from loadscope.app.panels.snapshot import Snapshot, blank, only
from loadscope.app.roles import Role
from loadscope.loader.events import SKIP_MEANINGS

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
Live = Callable[[], Snapshot]


def environment() -> Environment:
    """Every value is escaped: tensor names come from files that strangers wrote."""
    loader = FileSystemLoader(TEMPLATES)
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page_router(live: Live, roles: Sequence[Role] = ("target",)) -> APIRouter:
    """Routes of all pages; `live` returns the newest snapshot, `roles` are those served."""
    router = APIRouter(include_in_schema=False)
    templates = Jinja2Templates(env=environment())

    def page(request: Request, name: str, **context: Any) -> Response:
        return templates.TemplateResponse(
            request, f"{name}.html", {"page": name, "origin": origin(request), **context}
        )

    @router.get("/")
    @router.get("/ui")
    def home() -> RedirectResponse:
        return RedirectResponse("/ui/")

    @router.get("/ui/", response_class=HTMLResponse)
    def overview(request: Request) -> Response:
        return page(request, "overview", **overview_context(live(), pinned=None))

    @router.get("/ui/mapping", response_class=HTMLResponse)
    def mapping(request: Request, q: str = "") -> Response:
        return page(request, "mapping", query=q, roles=roles, reasons=tuple(SKIP_MEANINGS))

    @router.get("/ui/loads", response_class=HTMLResponse)
    def loads(request: Request) -> Response:
        return page(request, "loads")

    @router.get("/ui/loads/{load}", response_class=HTMLResponse)
    def one_load(request: Request, load: int) -> Response:
        return page(
            request, "overview", **overview_context(live(), pinned=load) | {"page": "loads"}
        )

    @router.get("/ui/updates", response_class=HTMLResponse)
    def updates(request: Request) -> Response:
        return page(request, "updates", update=None)

    @router.get("/ui/updates/{update}", response_class=HTMLResponse)
    def one_update(request: Request, update: str) -> Response:
        return page(request, "updates", update=update)

    return router


def origin(request: Request) -> str:
    """ "http://localhost:8787": what a person types before a path."""
    return str(request.base_url).rstrip("/")


def overview_context(live: Snapshot, *, pinned: int | None) -> dict[str, Any]:
    """A page pinned to another load than the newest starts blank: the browser fetches that load."""
    shown = live if pinned is None else only(live, pinned) or blank(pinned)
    return {"v": shown["v"], "load": shown["load"], "pinned": pinned, **views(shown)}
