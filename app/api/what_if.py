"""The plan of a load, and the plan that another layout would have."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from loadscope.app.api import examples
from loadscope.app.api.chosen import planned_view
from loadscope.app.api.requests import Json, LoadId, RoleName, example
from loadscope.app.plan_document import plan_document
from loadscope.app.problems import Problem
from loadscope.app.roles import Role, options_of
from loadscope.app.services import Services, ServicesDep
from loadscope.loader.topology import Layout

router = APIRouter(tags=["plan"])
MAX_RANKS = 1024
NOT_THAT_ONE = "another layout can only be planned for the checkpoint that is loaded now"
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
    draft: bool | None = None,
    fuse_shared_experts: bool | None = None,
    deepgemm_bmm: bool | None = None,
    nvfp4_attention_fp8: bool | None = None,
    nextn_moe_fp8: bool | None = None,
    quantization: Annotated[str | None, Query(min_length=1, max_length=80)] = None,
    role: RoleName = None,
    load: LoadId = None,
) -> Json:
    """Without a layout or option: the load's own plan, as stored. With one: what that would do."""
    sizes = given(tp_size=tp_size, ep_size=ep_size, pp_size=pp_size)
    chosen = given(
        platform=platform,
        indexer_fusion=indexer_fusion,
        draft=draft,
        fuse_shared_experts=fuse_shared_experts,
        deepgemm_bmm=deepgemm_bmm,
        nvfp4_attention_fp8=nvfp4_attention_fp8,
        nextn_moe_fp8=nextn_moe_fp8,
        quantization=quantization,
    )
    if not sizes and not chosen:
        return Json(plan_document(planned_view(services, load, role)[1]))
    if load is not None:
        raise Problem(409, "no-checkpoint", f"{NOT_THAT_ONE}; leave out load=")
    if role is not None and chosen.get("draft", role == "draft") != (role == "draft"):
        raise Problem(422, "invalid-request", f"role={role} contradicts draft=; leave one out")
    return Json(_what_if(services, role, sizes, chosen))


def given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _what_if(
    services: Services, role: Role | None, sizes: dict[str, int], chosen: dict[str, Any]
) -> dict[str, Any]:
    """Options that are not given are those of the server, sizes are 1."""
    checkpoint = services.jobs.checkpoint
    if checkpoint is None:
        raise Problem(409, "no-checkpoint", f"{NOT_THAT_ONE}; start a load first")
    layout = Layout(**sizes)
    if layout.world > MAX_RANKS:
        raise Problem(422, "too-many-ranks", f"{layout.world} ranks; at most {MAX_RANKS}")
    default = options_of(role or services.settings.roles[0], services.settings.options)
    try:
        options = replace(default, **chosen)
    except ValueError as error:
        raise Problem(422, "invalid-request", str(error)) from None
    return services.what_if.document(checkpoint, layout, options)
