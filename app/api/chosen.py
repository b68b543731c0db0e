"""The load that a request is about, or the problem that there is none."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loadscope.app.api.requests import Json
from loadscope.app.archive import NoSuchLoad, NoSuchRole
from loadscope.app.load_view import LoadView
from loadscope.app.problems import Problem
from loadscope.app.roles import Role
from loadscope.app.services import Services
from loadscope.loader.plan import Plan


def any_view(services: Services, load: int | None, role: Role | None = None) -> LoadView:
    """The load with this id, or the newest; it may have no plan. `role` chooses in its update."""
    with told():
        return services.archive.get(load, role)


def planned_view(
    services: Services, load: int | None, role: Role | None = None
) -> tuple[LoadView, Plan]:
    """The load with this id, or the newest that has a plan, and the plan."""
    with told():
        view = services.archive.planned(load, role)
    assert view.plan is not None, f"load {view.load} was chosen for its plan"
    return view, view.plan


@contextmanager
def told() -> Iterator[None]:
    """What is not there, as the problem that says so."""
    try:
        yield
    except NoSuchLoad as missing:
        raise Problem(404, "no-such-load", str(missing)) from None
    except NoSuchRole as missing:
        raise Problem(404, "no-such-role", str(missing), served=missing.served) from None


def answer(view: LoadView, page: dict[str, Any]) -> Json:
    """A collection about one load, with the role that it loads."""
    return Json({**page, "role": view.role})


def chosen_ranks(view: LoadView, plan: Plan, rank: int | None) -> Sequence[int]:
    """The given rank, else the loaded ones, else all: only what the layout has."""
    world = plan.layout.world
    if rank is not None and rank >= world:
        raise Problem(422, "no-such-rank", f"rank {rank}: this layout has ranks 0 to {world - 1}")
    if rank is not None:
        return (rank,)
    with view.lock:
        loaded = sorted(view.shown.ranks)
    return loaded or range(world)
