"""Is the process alive, and may its weights be read?"""

from typing import Any

from fastapi import APIRouter

from loadscope.app.api.requests import Json, example
from loadscope.app.readiness import reasons_against
from loadscope.app.services import ServicesDep

router = APIRouter(tags=["health"])
NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "not ready",
        "content": {
            "application/json": {
                "example": {
                    "ready": False,
                    "reasons": ["weights are being written: load 4 is running"],
                }
            }
        },
    }
}


@router.get("/healthz", responses=example({"status": "ok"}, "the process answers"))
async def healthz() -> Json:
    """Always 200 while the process lives, whatever its loads do."""
    return Json({"status": "ok"})


@router.get(
    "/readyz",
    responses={**example({"ready": True, "reasons": []}, "weights are whole"), **NOT_READY},
)
async def readyz(services: ServicesDep) -> Json:
    """200 when a load has finished and no parameter is being written or left half written."""
    jobs = services.jobs
    reasons = reasons_against(jobs.stores, jobs.outcome, is_writing=jobs.is_writing)
    return Json({"ready": not reasons, "reasons": reasons}, 200 if not reasons else 503)
