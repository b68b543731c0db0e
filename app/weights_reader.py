"""Reads the weights of this process as they stand, and only if nobody writes them meanwhile.

Readers take no lock. They note the epoch of every store, read, and look at the epochs again: what
was read counts if none was odd and none has changed.
"""

import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from loadscope.app.jobs import Jobs
from loadscope.app.problems import Problem
from loadscope.app.readiness import reasons_against
from loadscope.app.roles import Role
from loadscope.app.weight_values import describe
from loadscope.loader.checksums import overall
from loadscope.loader.dtypes import TAGS
from loadscope.loader.explain import suggest
from loadscope.loader.gather import ELSEWHERE, Gatherer, live_checksums, runtime_checksums
from loadscope.loader.outcomes import Delivery
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan

Stores = Mapping[Role, Mapping[int, ParameterStore]]
Found = TypeVar("Found")


class Mark(NamedTuple):
    """A store at one moment; stores are equal only if they are the same."""

    store: ParameterStore
    epoch: int
    state: str


@dataclass(frozen=True, slots=True)
class Held:
    """Whole weights of all roles and ranks, or of the chosen ones."""

    stores: Stores

    @property
    def named(self) -> dict[str, Mapping[int, ParameterStore]]:
        """As the loader takes them, which knows no roles but their names."""
        return {role: ranks for role, ranks in self.stores.items() if ranks}

    @property
    def plans(self) -> dict[str, Plan]:
        return {role: next(iter(ranks.values())).plan for role, ranks in self.named.items()}

    @property
    def gatherer(self) -> Gatherer:
        return Gatherer(self.plans, self.named)

    @property
    def facts(self) -> dict[str, Any]:
        """`version` is None where roles hold different ones."""
        every = [store for ranks in self.stores.values() for store in ranks.values()]
        versions = {store.version for store in every}
        version = versions.pop() if len(versions) == 1 else None
        return {"version": version, "epoch": max(store.epoch for store in every)}

    def of(self, role: Role | None, rank: int | None) -> "Held":
        """Those of one role and rank; Problem 404 or 422 if they are not here."""
        stores = self.stores
        if role is not None and role not in stores:
            served = list(stores)
            detail = f"there is no {role} here; served: {', '.join(served)}"
            raise Problem(404, "no-such-role", detail, served=served)
        if role is not None:
            stores = {role: stores[role]}
        ranks = sorted({one for held in stores.values() for one in held})
        if rank is not None and rank not in ranks:
            shown = ", ".join(map(str, ranks))
            raise Problem(422, "no-such-rank", f"rank {rank} is not loaded here; loaded: {shown}")
        if rank is not None:
            stores = {one: {rank: held[rank]} for one, held in stores.items() if rank in held}
        return Held(stores)

    def unknown(self, name: str) -> Problem:
        near = [one for plan in self.plans.values() for one in suggest(plan, name)]
        near = list(dict.fromkeys(near))
        meant = f"; did you mean {near[0]}?" if near else ""
        detail = f"{name} names no tensor, parameter or derived tensor here{meant}"
        return Problem(404, "unknown-name", detail, suggestions=near)


def read(jobs: Jobs, look: Callable[[Held], Found]) -> Found:
    """What `look` finds in the weights. Problem 409 if they change meanwhile or are not there.

    Problem 503 if they are poisoned. `look` must keep nothing that shares the weights' memory.
    """
    stores, marks = _marks(jobs)
    _check(jobs, stores, marks)
    try:
        found = look(Held(stores))
    except Exception:
        # half written weights can make any trouble: it counts only if they were whole
        if _marks(jobs)[1] != marks or jobs.is_writing:
            raise _changing() from None
        raise
    if _marks(jobs)[1] != marks or jobs.is_writing:
        raise _changing()
    return found


def _marks(jobs: Jobs) -> tuple[Stores, list[Mark]]:
    try:
        stores = {role: dict(ranks) for role, ranks in jobs.stores.items()}
    except RuntimeError:
        # a role was added by the first load of a process
        raise _changing() from None
    every = [store for ranks in stores.values() for store in ranks.values()]
    return stores, [Mark(store, store.epoch, store.state) for store in every]


def _check(jobs: Jobs, stores: Stores, marks: list[Mark]) -> None:
    if jobs.is_writing or any(mark.epoch % 2 for mark in marks):
        raise _changing()
    if any(mark.state == "poisoned" for mark in marks):
        reasons = reasons_against(stores, None, is_writing=False) or ["reload to repair"]
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise Problem(503, "poisoned", f"the weights are a mixture: {reasons[0]}{more}")
    if not marks or any(mark.state != "ready" for mark in marks):
        told = f" ({jobs.outcome})" if jobs.outcome else ""
        detail = f"no weights are here yet{told}; ask again when GET /readyz answers 200"
        raise Problem(409, "no-weights", detail)


def _changing() -> Problem:
    detail = "the weights are being written: nothing that was read counts; ask again"
    return Problem(409, "weights-changing", detail, {"Retry-After": "1"})


def checksums(
    jobs: Jobs, scope: str, names: str | None, algorithm: str, role: Role | None
) -> dict[str, Any]:
    """By checkpoint name (`hf`), or by `role/rank/name` of parameters and derived (`runtime`)."""

    def look(held: Held) -> dict[str, Any]:
        held = held.of(role, None)
        find = _by_checkpoint_name if scope == "hf" else _by_parameter
        found, reasons = find(held, names, algorithm)
        return {
            "scope": scope,
            "algorithm": algorithm,
            **held.facts,
            "overall": overall(found, algorithm),
            "tensors": found,
            "not_comparable": reasons,
        }

    return read(jobs, look)


Sums = tuple[dict[str, str], dict[str, str]]


def _by_checkpoint_name(held: Held, names: str | None, algorithm: str) -> Sums:
    gatherer = held.gatherer
    return live_checksums(gatherer, _choose(held, gatherer.names(), names), algorithm)


def _by_parameter(held: Held, names: str | None, algorithm: str) -> Sums:
    known = [name for _role, _rank, name in _parameters(held)]
    chosen = set(_choose(held, known, names))
    found = runtime_checksums(held.named, algorithm, chosen)
    places = ((role, rank, sums) for role, ranks in found.items() for rank, sums in ranks.items())
    return {f"{role}/{rank}/{n}": s for role, rank, sums in places for n, s in sums.items()}, {}


def _parameters(held: Held) -> Iterator[tuple[Role, int, str]]:
    for role, ranks in held.stores.items():
        for rank, store in ranks.items():
            for name in (*store.parameters, *store.derived):
                yield role, rank, name


def _choose(held: Held, known: Collection[str], text: str | None) -> list[str]:
    """The names of a list with commas; each may be a glob. Problem 404 for one that means none."""
    if text is None:
        return list(known)
    chosen: dict[str, None] = {}
    there = set(known)
    for word in (part.strip() for part in text.split(",")):
        is_glob = word not in there and any(sign in word for sign in "*?[")
        found = [n for n in known if fnmatch.fnmatchcase(n, word)] if is_glob else [word]
        if not found or not there.issuperset(found):
            raise held.unknown(word)
        chosen |= dict.fromkeys(found)
    return list(chosen)


def weight(
    jobs: Jobs, name: str, text: str | None, role: Role | None, rank: int | None
) -> dict[str, Any]:
    """One tensor by checkpoint name, or one rank's parameter or derived tensor; see the route."""

    def look(held: Held) -> dict[str, Any]:
        here = held.of(role, rank)
        finders = (_tensor, _parameter) if rank is None else (_parameter, _tensor)
        for find in finders:
            found = find(here, name, text, rank)
            if found is not None:
                return {"name": name, **found, **here.facts}
        raise here.unknown(name)

    return read(jobs, look)


def _tensor(held: Held, name: str, text: str | None, rank: int | None) -> dict[str, Any] | None:
    if not any(name in plan.tensors for plan in held.plans.values()):
        return None
    found = held.gatherer.gather(name)
    reason = found.reason
    if rank is not None and reason is not None and reason.startswith(ELSEWHERE) and found.shards:
        reason = f"rank {rank} holds a part of it; leave rank= out to gather it from all"
    return {
        "kind": "tensor",
        "role": found.role,
        "rank": rank,
        "dtype": found.dtype,
        "shape": list(found.shape),
        "shards": [_shard(one) for one in found.shards],
        **describe(found.values, found.shape, text),
        "replicas_agree": None if found.values is None else found.replicas_agree,
        "disagreeing": [{"rank": rank, "param": param} for rank, param in found.disagreeing],
        "reason": reason,
    }


def _parameter(held: Held, name: str, text: str | None, _rank: int | None) -> dict[str, Any] | None:
    places = [(role, rank) for role, rank, one in _parameters(held) if one == name]
    if not places:
        return None
    role, rank = places[0]
    store = held.stores[role][rank]
    is_derived = name in store.derived
    tensor = store.derived[name] if is_derived else store.parameters[name]
    shape = tuple(tensor.shape)
    whole = [[0, size] for size in shape]
    return {
        "kind": "derived" if is_derived else "parameter",
        "role": role,
        "rank": rank,
        "dtype": TAGS[str(tensor.dtype).removeprefix("torch.")],
        "shape": list(shape),
        "shards": [
            {"rank": other, "param": name, "source_slice": None, "target_slice": whole}
            for one, other in places
            if one == role
        ],
        **describe(tensor, shape, text),
        "replicas_agree": None,
        "disagreeing": [],
        "reason": None,
    }


def _shard(one: Delivery) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "param": one.param,
        "source_slice": [list(interval) for interval in one.source_box],
        "target_slice": [list(interval) for interval in one.target_box],
    }
