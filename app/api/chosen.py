"""The load that a request is about, or the problem that there is none."""

from collections.abc import Sequence

from loadscope.app.archive import NoSuchLoad
from loadscope.app.load_view import LoadView
from loadscope.app.problems import Problem
from loadscope.app.services import Services
from loadscope.loader.plan import Plan


def any_view(services: Services, load: int | None) -> LoadView:
    """The load with this id, or the newest; it may have no plan."""
    try:
        return services.archive.get(load)
    except NoSuchLoad as missing:
        raise Problem(404, "no-such-load", str(missing)) from None


def planned_view(services: Services, load: int | None) -> tuple[LoadView, Plan]:
    """The load with this id, or the newest that has a plan, and the plan."""
    try:
        view = services.archive.planned(load)
    except NoSuchLoad as missing:
        raise Problem(404, "no-such-load", str(missing)) from None
    assert view.plan is not None, f"load {view.load} was chosen for its plan"
    return view, view.plan


def chosen_ranks(view: LoadView, plan: Plan, rank: int | None) -> Sequence[int]:
    """The given rank, else the loaded ones, else all: only what the layout has."""
    world = plan.layout.world
    if rank is not None and rank >= world:
        raise Problem(422, "no-such-rank", f"rank {rank}: this layout has ranks 0 to {world - 1}")
    if rank is not None:
        return (rank,)
    with view.lock:
        loaded = sorted(view.state.ranks)
    return loaded or range(world)
