"""One bar per loaded rank."""

from dataclasses import dataclass

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot, chip


@dataclass(frozen=True, slots=True)
class Rank:
    chip: str
    rank: int
    status: str
    bytes_done: int
    bytes_total: int
    size: str
    seconds: str


def view(live: Snapshot) -> tuple[Rank, ...]:
    """Role by role, in the order of the ranks."""
    return tuple(
        Rank(
            chip=chip(live, load),
            rank=rank["rank"],
            status=rank["status"],
            bytes_done=rank["bytes_done"],
            bytes_total=rank["bytes_total"],
            size=format.size(rank["bytes_done"]),
            seconds=format.seconds(rank["seconds"]),
        )
        for load in live["loads"]
        for rank in load["state"]["ranks"]
    )
