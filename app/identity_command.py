"""`load --check-reload`: the checkpoint once more into the same memory; is all as it was?"""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from loadscope.app.jobs import Jobs
from loadscope.app.live import Live
from loadscope.app.memory import available_bytes
from loadscope.app.output import stdout, verdict_line
from loadscope.app.units import size_text
from loadscope.loader.control import LoadError
from loadscope.loader.identity import Contents, reload_identity
from loadscope.loader.parameters import parameter_bytes
from loadscope.loader.plan import Plan

MAX_SHOWN = 20


def check_reload(jobs: Jobs, live: Live) -> dict[str, Any]:
    """The `reload_identity` of the one loaded rank, which is loaded once more, unrecorded.

    `reason`: why that load failed, None if it did not.
    """
    view, checkpoint = live.view, jobs.checkpoint
    assert view is not None, "the check follows a load"
    assert view.plan is not None, "the check follows a load"
    assert checkpoint is not None, "the check follows a load"
    (store,) = jobs.stores[view.role].values()
    contents = _contents(view.plan, store.rank)
    try:
        found = reload_identity(view.plan, checkpoint, store, contents=contents)
    except LoadError as error:
        return {"verdict": "fail", "reason": str(error), "differences": []}
    return {**found.as_json(), "reason": None}


def _contents(plan: Plan, rank: int) -> Contents:
    """Whole bytes if the host has room for a copy of them, else hashes."""
    free = available_bytes("cpu")
    return "bytes" if free is None or parameter_bytes(plan, rank) < free else "digest"


def print_identity(document: Mapping[str, Any]) -> None:
    """The verdict in one line; below it what differs."""
    stdout.print(verdict_line(document["verdict"], _sentence(document)))
    for line in _lines(document["differences"]):
        stdout.print(Text(f"  {line}"))


def _sentence(document: Mapping[str, Any]) -> str:
    if document["reason"] is not None:
        return f"the second load failed: {document['reason']}"
    compared = (
        f"{document['tensors']:,} tensors ({size_text(document['bytes'])}), "
        f"{document['scalars']:,} scalars, {document['flags']:,} flags"
    )
    if document["verdict"] == "pass":
        return f"a second load left the same bytes at the same addresses: {compared}"
    return f"a second load left {len(document['differences']):,} differences among {compared}"


def _lines(differences: list[Mapping[str, Any]]) -> Iterator[str]:
    for one in differences[:MAX_SHOWN]:
        element = one.get("first_changed_element")
        place = "" if element is None else f" from element {element:,} on"
        yield f"{one['what']} of {one['name']}{place}: {one['first']}, then {one['second']}"
    if len(differences) > MAX_SHOWN:
        yield f"and {len(differences) - MAX_SHOWN:,} more (--json has all)"
