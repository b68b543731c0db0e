"""Start, pause and resume loads."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field

from loadscope.app.api import examples
from loadscope.app.api.requests import Json, example
from loadscope.app.job_errors import Busy, Refused
from loadscope.app.problems import Problem
from loadscope.app.roots import OutsideRoots
from loadscope.app.services import Services, ServicesDep

router = APIRouter(tags=["control"])


class DiskSource(BaseModel):
    """A checkpoint on this machine's disk."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["disk"]
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="absolute, below a root, or beginning with a root's own name",
        examples=["DeepSeek-V3"],
    )


class Reload(BaseModel):
    """Which checkpoint to load into the parameters that are there."""

    model_config = ConfigDict(extra="forbid")
    source: DiskSource


class Empty(BaseModel):
    """No fields."""

    model_config = ConfigDict(extra="forbid")


@router.post("/reload", status_code=202, responses=examples.RELOAD_RESPONSES)
def reload(services: ServicesDep, order: Reload) -> Json:
    """Plan the checkpoint, then load it in place: parameters keep their addresses.

    One load per served role, one after another. If the plan of any role fails or does not fit,
    all are refused and what was loaded stays as it was.
    """
    try:
        path = services.roots.resolve(order.source.path)
    except OutsideRoots as refused:
        raise Problem(403, "outside-roots", str(refused), roots=services.roots.names) from None
    try:
        loads = services.jobs.start(path, "reload")
    except Busy as busy:
        url = None if busy.load is None else f"/loads/{busy.load}"
        raise Problem(409, "busy", str(busy), load=busy.load, url=url) from None
    except Refused as refused:
        raise Problem(
            422,
            "refused",
            f"{refused}; what was loaded before is untouched",
            load=refused.load,
            role=refused.role,
            url=f"/loads/{refused.load}",
            findings=[one.as_json() for one in refused.findings],
        ) from None
    return Json({"load": loads[0], "loads": loads, "url": f"/loads/{loads[0]}"}, 202)


def _hold(services: Services, *, paused: bool) -> Json:
    if not services.jobs.hold(paused=paused):
        raise Problem(409, "nothing-runs", "no load is running; start one with POST /reload")
    return Json({"paused": paused})


NoBody = Annotated[Empty | None, Body()]


@router.post("/pause", responses=example({"paused": True}, "the load waits"))
def pause(services: ServicesDep, body: NoBody = None) -> Json:
    """Hold the running load before its next read; nothing is lost."""
    return _hold(services, paused=True)


@router.post("/resume", responses=example({"paused": False}, "the load goes on"))
def resume(services: ServicesDep, body: NoBody = None) -> Json:
    """Let a paused load go on."""
    return _hold(services, paused=False)
