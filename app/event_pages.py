"""Pages of the event log: one event per tensor, whether the log holds single or packed rows."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from loadscope.app.load_view import LoadView
from loadscope.app.store_queries import Queries
from loadscope.loader.events import BULK_KINDS, Event
from loadscope.loader.explain import explain
from loadscope.loader.outcomes import uses_of
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.search import bulk_index, bulk_tensor
from loadscope.loader.views import find_parameter


class Filters(NamedTuple):
    """Which events; None means any."""

    kind: str | None = None
    rank: int | None = None
    param: str | None = None
    name: str | None = None

    def columns(self) -> dict[str, object]:
        """The filters that are columns of the log, with their values."""
        chosen = {"kind": self.kind, "rank": self.rank, "param": self.param}
        return {name: value for name, value in chosen.items() if value is not None}

    def fit(self, event: Event) -> bool:
        return all(getattr(event, name) == value for name, value in self.columns().items())


class EventPage(NamedTuple):
    items: list[dict[str, Any]]
    total: int
    last_seq: int | None


def event_page(
    queries: Queries, view: LoadView, filters: Filters, after: int, limit: int
) -> EventPage:
    """Events with a number above `after`, oldest first; `last_seq` is None on the last page."""
    if filters.name is not None or filters.param is not None:
        about = _about(queries, view, filters)
        total, events = len(about), iter([event for event in about if event.seq > after])
    else:
        total, events = _count(queries, view, filters), _all(queries, view, filters, after)
    found = list(islice(events, limit + 1))
    last = found[limit - 1].seq if len(found) > limit else None
    return EventPage([event.as_json() for event in found[:limit]], total, last)


def _is_exploded(queries: Queries, load: int) -> bool:
    row = queries.load(load)
    return row is not None and bool(row["exploded"])


def _records(queries: Queries, view: LoadView, filters: Filters, after: int) -> Iterator[Event]:
    """Records that reach beyond `after`; bulk ones are still whole."""
    if _is_exploded(queries, view.load):
        yield from queries.events(view.load, after, filters.columns())
        return
    for batch in queries.batches(view.load, after + 1):
        for event in batch:
            if event.seq + event.span - 1 > after and filters.fit(event):
                yield event


def _all(queries: Queries, view: LoadView, filters: Filters, after: int) -> Iterator[Event]:
    for record in _records(queries, view, filters, after):
        yield from expand(record, view.plan, after)


def _count(queries: Queries, view: LoadView, filters: Filters) -> int:
    if _is_exploded(queries, view.load):
        return queries.count_events(view.load, filters.columns())
    return sum(record.span for record in _records(queries, view, filters, 0))


def is_bulk(event: Event) -> bool:
    return event.kind in BULK_KINDS and event.tensor is None


def expand(record: Event, plan: Plan | None, after: int) -> Iterator[Event]:
    """One event per tensor of a bulk record, from the first number above `after`."""
    if plan is None or not is_bulk(record):
        yield record
        return
    for i in range(max(0, after + 1 - record.seq), record.span):
        yield _bulk_event(record, plan, i)


def _bulk_event(record: Event, plan: Plan, i: int) -> Event:
    name, rule, reason, param = bulk_tensor(plan, record.kind, record.rank, i)
    tensor = plan.tensors[name]
    return record._replace(
        seq=record.seq + i, span=1, tensor=name, param=param, rule=rule, reason=reason,
        bytes=tensor.stop - tensor.start, detail=None,
    )  # fmt: skip


def _about(queries: Queries, view: LoadView, filters: Filters) -> list[Event]:
    """Events of one name or parameter that fit the other filters too."""
    if filters.param is not None:
        found = _about_parameter(queries, view, filters)
        names = None if filters.name is None else set(_numbers(view, filters.name, filters.rank))
        return [event for event in found if names is None or event.seq in names]
    assert filters.name is not None
    numbers = _numbers(view, filters.name, filters.rank)
    found = [event for seq in numbers for event in _one(queries, view, seq)]
    return [event for event in found if filters.fit(event)]


def _numbers(view: LoadView, name: str, rank: int | None) -> list[int]:
    document = explain(view.plan, name, rank=rank) if view.plan is not None else None
    if document is None:
        return sorted(view.index.find([name], None if rank is None else {rank}))
    return numbers_about(view, document, rank)


def _one(queries: Queries, view: LoadView, seq: int) -> Iterator[Event]:
    yield from islice(_all(queries, view, Filters(), seq - 1), 1)


def _about_parameter(queries: Queries, view: LoadView, filters: Filters) -> list[Event]:
    """All events of one parameter, the renames and skips of its sources among them."""
    assert filters.param is not None
    found = list(_records(queries, view, Filters(param=filters.param), 0))
    if view.plan is not None:
        sources = list(_sources_of(view.plan, filters.param))
        for kind in BULK_KINDS:
            for record in _records(queries, view, Filters(kind=kind), 0):
                found += _of_tails(record, view.plan, sources)
    wanted = filters._replace(param=None)
    return sorted((event for event in found if wanted.fit(event)), key=lambda event: event.seq)


def _sources_of(plan: Plan, param: str) -> Iterator[tuple[Tail, int]]:
    place = find_parameter(plan, param)
    if place is None:
        return
    index, layer = place
    # a tensor may fill several parts of one parameter
    tails = {id(tail): tail for tail, _index, _source in uses_of(plan, index)}
    yield from ((tail, layer) for tail in tails.values() if tail.routed >> layer & 1)


def _of_tails(record: Event, plan: Plan, tails: list[tuple[Tail, int]]) -> Iterator[Event]:
    if not is_bulk(record):
        return
    index = bulk_index(plan, record.kind, record.rank)
    for tail, layer in tails:
        if (i := index.position(tail, layer)) is not None:
            yield _bulk_event(record, plan, i)


def numbers_about(view: LoadView, document: dict[str, Any], rank: int | None) -> list[int]:
    """Numbers of the events behind a mapping document, without any I/O.

    A checkpoint tensor: its rename or skip and what happened to the parameters that it fills.
    """
    name, plan = document["name"], view.plan
    assert plan is not None, "a mapping comes from a plan"
    params = {place["param"] for place in document["destinations"]}
    ranks = None if rank is None else {rank}
    if document["direction"] == "forward":
        # a stacked parameter is filled on every rank from several files, this tensor is one of many
        ranks = {place["rank"] for place in document["destinations"]}
    numbers = view.index.find({name, *params}, ranks, document["file"])
    place = plan.find(name)
    for bulk in view.index.bulk if place is not None else ():
        if place is not None and (rank is None or bulk.rank in (None, rank)):
            i = bulk_index(plan, bulk.kind, bulk.rank).position(*place)
            numbers |= set() if i is None else {bulk.first + i}
    return sorted(numbers)
