"""How many findings of each level; their texts are fetched by the page."""

from dataclasses import dataclass

from loadscope.app.panels.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Findings:
    error: int
    warning: int
    note: int


def view(live: Snapshot) -> Findings:
    """Counts of the newest load."""
    found = live["state"]["findings"]
    return Findings(found["error"], found["warning"], found["note"])
