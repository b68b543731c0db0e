"""The plan of a load, and the plan that another layout would have."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from loadscope.app.api import examples
from loadscope.app.api.chosen import planned_view
from loadscope.app.api.requests import Json, LoadId, example
from loadscope.app.problems import Problem
from loadscope.app.services import Services, ServicesDep
from loadscope.loader.plan import Options
from loadscope.loader.topology import Layout
from loadscope.loader.views import as_json

router = APIRouter(tags=["plan"])
MAX_RANKS = 1024
Ways = Annotated[int | None, Query(ge=1, le=MAX_RANKS)]
Platform = Literal["cuda", "hip", "hip-fnuz", "npu", "xpu", "musa", "cpu"]


@router.get("/plan", responses=example(examples.PLAN, "the same document as `plan --json`"))
def plan(
    services: ServicesDep,
    tp_size: Ways = None,
    ep_size: Ways = None,
    pp_size: Ways = None,
    platform: Platform | None = None,
    indexer_fusion: bool | None = None,
    load: LoadId = None,
) -> Json:
    """Without a layout: the load's own plan, as stored. With one: what that layout would do."""
    sizes = {"tp_size": tp_size, "ep_size": ep_size, "pp_size": pp_size}
    chosen = {"platform": platform, "indexer_fusion": indexer_fusion}
    if all(value is None for value in (*sizes.values(), *chosen.values())):
        return Json(as_json(planned_view(services, load)[1]))
    return Json(_what_if(services, load, sizes, chosen))


def _what_if(
    services: Services, load: int | None, sizes: dict[str, int | None], chosen: dict[str, Any]
) -> dict[str, Any]:
    checkpoint = services.jobs.checkpoint
    if checkpoint is None or load is not None:
        detail = "another layout can only be planned for the checkpoint that is loaded now"
        raise Problem(409, "no-checkpoint", f"{detail}; leave out load=")
    layout = Layout(**{name: size if size is not None else 1 for name, size in sizes.items()})
    if layout.world > MAX_RANKS:
        raise Problem(422, "too-many-ranks", f"{layout.world} ranks; at most {MAX_RANKS}")
    default = services.settings.options
    fusion = chosen["indexer_fusion"]
    options = Options(
        platform=chosen["platform"] if chosen["platform"] is not None else default.platform,
        indexer_fusion=fusion if fusion is not None else default.indexer_fusion,
        overrides=default.overrides,
    )
    return services.what_if.document(checkpoint, layout, options)
