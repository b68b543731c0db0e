"""Pause and resume the running load."""

from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict

from loadscope.app.api.requests import Json, example
from loadscope.app.problems import Problem
from loadscope.app.services import Services, ServicesDep

router = APIRouter(tags=["control"])


class Empty(BaseModel):
    """No fields."""

    model_config = ConfigDict(extra="forbid")


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
