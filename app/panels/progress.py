"""How far the load is, by bytes, and the counts that a finished load is judged by."""

from dataclasses import dataclass

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot, State

HONEST_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: its name in the page, its label, the raw value, and how it reads."""

    key: str
    label: str
    value: int
    text: str
    of: str


@dataclass(frozen=True, slots=True)
class Progress:
    bytes_done: int
    bytes_total: int
    percent: str
    loaded: str
    rate: str
    rate_label: str
    eta: str
    elapsed: str
    figures: tuple[Figure, ...]


def view(live: Snapshot) -> Progress:
    """Progress of the newest load."""
    state = live["state"]
    is_over = state["finished_t"] is not None
    return Progress(
        bytes_done=state["bytes_done"],
        bytes_total=state["bytes_total"],
        percent=format.percent(state["bytes_done"], state["bytes_total"]),
        loaded=f"{format.size(state['bytes_done'])} of {format.size(state['bytes_total'])}",
        rate=format.rate(state["mean_bps"] if is_over else state["rate_bps"]),
        rate_label="mean rate" if is_over else "rate",
        eta=eta(state),
        elapsed=format.seconds(state["elapsed_s"]),
        figures=figures(state),
    )


def eta(state: State) -> str:
    """Nothing in the first two seconds: an estimate from so little is a lie."""
    if state["finished_t"] is not None:
        return "done" if state["status"] == "finished" else "–"
    if state["paused"]:
        return "held"
    return "–" if state["elapsed_s"] < HONEST_AFTER_S else format.seconds(state["eta_s"])


def figures(state: State) -> tuple[Figure, ...]:
    """The account: every total that the verdict's sentence rests on."""

    def part(key: str, label: str, total: str) -> Figure:
        return Figure(
            key, label, state[key], format.count(state[key]), f"of {format.count(state[total])}"
        )

    unexpected = state["skips_unexpected"]
    note = f"{format.count(unexpected)} unexpected" if unexpected else "all expected"
    return (
        part("tensors_done", "tensors done", "tensors_total"),
        part("elements_written", "elements written", "elements_total"),
        part("parameters_full", "parameters full", "parameters_total"),
        part("pairs_closed", "pairs closed", "pairs_total"),
        Figure(
            "skipped", "tensors skipped", state["skipped"], format.count(state["skipped"]), note
        ),
        part("derived_done", "tensors derived", "derived_total"),
    )
