"""What a load skipped, paired, found and took time for."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from loadscope.app import pair_rows, skip_rows, time_rows
from loadscope.app.api import examples
from loadscope.app.api.chosen import answer, any_view, chosen_ranks, planned_view
from loadscope.app.api.requests import (
    Cursor,
    Json,
    Limit,
    LoadId,
    Rank,
    RoleName,
    collection,
    example,
    slice_page,
)
from loadscope.app.load_findings import load_findings
from loadscope.app.services import ServicesDep
from loadscope.loader.findings import Level

router = APIRouter(tags=["reports"])


@router.get("/skips", responses=example(examples.SKIPS, "by rank and reason"))
def skips(
    services: ServicesDep,
    reason: Annotated[str | None, Query(max_length=80)] = None,
    rank: Rank = None,
    role: RoleName = None,
    load: LoadId = None,
) -> Json:
    """Tensors that are not used, by reason. `rank` null: no rank uses them."""
    view, plan = planned_view(services, load, role)
    rows = list(skip_rows.skip_rows(plan, chosen_ranks(view, plan, rank)))
    return answer(view, collection([row for row in rows if reason in (None, row["reason"])]))


@router.get("/pairings", responses=example(examples.PAIRINGS, "rank by rank"))
def pairings(
    services: ServicesDep,
    state: Literal["closed", "held", "open"] | None = None,
    rank: Rank = None,
    role: RoleName = None,
    load: LoadId = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Json:
    """Tensors that only make sense together: open, held (one half waits) or closed."""
    view, plan = planned_view(services, load, role)
    rows = pair_rows.pair_rows(view, plan, chosen_ranks(view, plan, rank))
    found = [row for row in rows if state in (None, row["state"])]
    return answer(view, slice_page(found, limit, cursor))


@router.get("/findings", responses=example(examples.FINDINGS, "errors first"))
def findings(
    services: ServicesDep,
    level: Level | None = None,
    code: Annotated[str | None, Query(pattern=r"^LS\d{3}$")] = None,
    role: RoleName = None,
    load: LoadId = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Json:
    """What is wrong or worth knowing, grouped by name pattern, each with what to do."""
    view = any_view(services, load, role)
    found = [
        one
        for one in load_findings(view)
        if level in (None, one["level"]) and code in (None, one["code"])
    ]
    return answer(view, slice_page(found, limit, cursor))


@router.get("/kernels", responses=example(examples.KERNELS, "by name"))
def kernels(services: ServicesDep, role: RoleName = None, load: LoadId = None) -> Json:
    """Every kind of step with its count, bytes, seconds, percentiles and histogram."""
    view = any_view(services, load, role)
    return answer(view, collection(time_rows.kernel_rows(view)))


@router.get("/timings", responses=example(examples.TIMINGS, "planning first"))
def timings(services: ServicesDep, role: RoleName = None, load: LoadId = None) -> Json:
    """Where the time of a load went: each stage of planning, each kind of step, each rank.

    Reads run ahead in threads, so the stages of a load overlap and do not add up to its duration.
    """
    view = any_view(services, load, role)
    return answer(view, collection(time_rows.timing_rows(view)))


@router.get("/ranks", responses=example(examples.RANKS, "every rank of the layout"))
def ranks(services: ServicesDep, role: RoleName = None, load: LoadId = None) -> Json:
    """Every rank that was planned, with the progress of those that this process loads."""
    view, plan = planned_view(services, load, role)
    return answer(view, collection(time_rows.rank_rows(view, plan)))
