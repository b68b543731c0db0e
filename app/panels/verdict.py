"""The first thing on the page: one word, one sentence, and what it is about."""

from dataclasses import dataclass

from loadscope.app.panels.snapshot import Snapshot, State, chip

WORDS = {
    "idle": "Idle",
    "planning": "Planning",
    "waiting": "Waiting",
    "loading": "Loading",
    "paused": "Paused",
    "finished": "Finished",
    "refused": "Refused",
    "failed": "Failed",
    "interrupted": "Interrupted",
    "poisoned": "Poisoned",
}

TONES = {
    "idle": "calm",
    "paused": "warn",
    "interrupted": "warn",
    "failed": "bad",
    "refused": "bad",
    "poisoned": "bad",
}


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    facts: tuple[tuple[str, str], ...]
    fix: str


@dataclass(frozen=True, slots=True)
class Verdict:
    status: str
    word: str
    tone: str
    sentence: str
    model: str
    source: str
    layout: str
    loads: tuple[str, ...]
    paced: bool
    failure: Failure | None


def view(live: Snapshot) -> Verdict:
    """Everything above the progress bar."""
    state = live["state"]
    status = shown_status(state)
    return Verdict(
        status=status,
        word=WORDS[status],
        tone=tone(state, status),
        sentence=state["sentence"] or "No load has started.",
        model=state["model"] or "",
        source=state["source"] or "",
        layout=layout(state),
        loads=loads(live),
        paced=bool(state["paced"]),
        failure=failure(state),
    )


def loads(live: Snapshot) -> tuple[str, ...]:
    """ "load 3"; with roles "target · load 3", "draft · load 4"."""
    named = [(chip(live, load), f"load {load['load']}") for load in live["loads"] if load["load"]]
    return tuple(" · ".join(filter(None, words)) for words in named)


def shown_status(state: State) -> str:
    """A poisoned store outranks the failure that poisoned it; a held loader outranks its phase."""
    if state["store"]["state"] == "poisoned":
        return "poisoned"
    if state["paused"] and state["status"] in ("planning", "waiting", "loading"):
        return "paused"
    return str(state["status"])


def tone(state: State, status: str) -> str:
    """good, bad, warn, busy or calm: the colour family of the word."""
    if status != "finished":
        return TONES.get(status, "busy")
    if state["verdict"] == "fail":
        return "bad"
    return "warn" if state["skips_unexpected"] or state["findings"]["warning"] else "good"


def layout(state: State) -> str:
    """ "tp 8 · ep 8 · 8 ranks planned, 1 loaded"; sizes of one are left out."""
    sizes = state.get("layout") or {}
    axes = [f"{key[:2]} {sizes[key]}" for key in sizes if key.endswith("_size") and sizes[key] > 1]
    held = len(state["ranks"])
    planned = sizes.get("ranks", held)
    if not planned:
        return ""
    ranks = f"{planned} {'rank' if planned == 1 else 'ranks'} planned, {held} loaded"
    return " · ".join([*axes, ranks])


def failure(state: State) -> Failure | None:
    """The first error, as facts a person can act on."""
    found = state["failure"]
    if found is None:
        return None
    facts = ((key, found.get(key)) for key in ("tensor", "file", "param", "rule"))
    return Failure(
        message=found["message"],
        facts=tuple((key, str(value)) for key, value in facts if value),
        fix=found.get("fix") or "",
    )
