"""One load as the API sees it: its state, its plan, and where each name appears in the log."""

import threading
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadscope.app.roles import Role
from loadscope.loader.events import BULK_KINDS, Event
from loadscope.loader.plan import Plan
from loadscope.loader.state import LoadState


class BulkRange(NamedTuple):
    """Sequence numbers `first` … `first + span - 1` of one bulk record."""

    kind: str
    rank: int | None
    first: int
    span: int


class EventIndex:
    """Sequence numbers by tensor and parameter name."""

    def __init__(self) -> None:
        # rank, number, and the file if the event is about one
        self._by_name: dict[str, list[tuple[int | None, int, str | None]]] = {}
        self.bulk: list[BulkRange] = []
        # by rank and the pair's key: whether both halves have come
        self.pairs: dict[tuple[int | None, str], bool] = {}
        # by rank and parameter: files whose slices are written
        self.files: dict[tuple[int | None, str], set[str]] = {}

    def add(self, event: Event) -> None:
        if event.kind in BULK_KINDS and event.tensor is None:
            self.bulk.append(BulkRange(event.kind, event.rank, event.seq, event.span))
            return
        detail = event.detail or {}
        if event.kind == "copied" and event.param is not None:
            self.files.setdefault((event.rank, event.param), set()).add(str(detail.get("file")))
        elif event.kind in ("half_held", "paired"):
            key = str(detail.get("pair", event.param))
            self.pairs[event.rank, key] = event.kind == "paired"
        for name in {event.tensor, event.param} - {None}:
            assert name is not None
            place = (event.rank, event.seq, detail.get("file"))
            self._by_name.setdefault(name, []).append(place)

    def find(
        self, names: Iterable[str], ranks: Set[int] | None, file: str | None = None
    ) -> set[int]:
        """Numbers of the single events about any of these names (on these ranks, of one file)."""
        return {
            seq
            for name in names
            for at, seq, where in self._by_name.get(name, ())
            if (ranks is None or at is None or at in ranks) and file in (None, where or file)
        }


@dataclass(slots=True)
class LoadView:
    """State and plan of one load; hold `lock` while reading a state that still grows."""

    load: int
    role: Role = "target"
    state: LoadState = field(default_factory=LoadState)
    # its totals and heat map while it waits for the load before it
    ahead: LoadState | None = None
    plan: Plan | None = None
    dropped: int = 0
    is_paused: bool = False
    # findings that came up after the plan was made
    findings: list[dict[str, Any]] = field(default_factory=list)
    # the load of the same update whose failure or refusal ended this one
    because: int | None = None
    index: EventIndex = field(default_factory=EventIndex)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, events: Iterable[Event]) -> None:
        """Fold events in; the lock is let go between them so that readers get their turn."""
        for event in events:
            with self.lock:
                self.state.apply(event)
            self.index.add(event)
            if event.kind in ("failed", "load_finished") and event.detail is not None:
                self.findings += event.detail.get("findings", ())
                self.because = event.detail.get("because", self.because)

    def expect(self, detail: Mapping[str, Any], now: float) -> None:
        """Show what `plan_made` is going to say until it has: the load waits for its turn."""
        ahead = LoadState()
        with self.lock:
            started = self.state.started_t if self.state.started_t is not None else now
            about = self.state.about
        ahead.apply(Event(1, started, self.load, None, "load_started", detail=about))
        ahead.apply(Event(2, now, self.load, None, "plan_made", detail=detail))
        self.ahead = ahead

    @property
    def shown(self) -> LoadState:
        """The state, or what it will begin with."""
        is_waiting = not self.state.plan and self.state.finished_t is None
        return self.ahead if self.ahead is not None and is_waiting else self.state

    def document(self, now: float) -> dict[str, Any]:
        """The STATE document of docs/http-api.md."""
        with self.lock:
            shown = self.shown
            document = shown.as_json(now)
        document.update(load=self.load, role=self.role, because=self.because)
        document.update(events_dropped=self.dropped)
        if shown is self.ahead:
            document.update(status="waiting")
        if document["status"] == "refused" and (reason := self._refusal()) is not None:
            document["sentence"] = f"refused before a byte was read: {reason}"
        if self.is_paused and document["status"] == "loading":
            # a rate that decays to zero would be a rate of nothing
            document.update(status="paused", paused=True, rate_bps=None, eta_s=None)
        return document

    def _refusal(self) -> str | None:
        if self.state.failure is not None:
            return str(self.state.failure["message"])
        errors = [f for f in self.plan.findings if f.level == "error"] if self.plan else []
        return f"{errors[0].code} {errors[0].message}" if errors else None

    def grid(self) -> dict[str, Any] | None:
        with self.lock:
            return self.shown.grid()
