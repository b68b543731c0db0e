"""Live state of one load: a pure fold over its events, shared by the page, the API and replays."""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from loadscope.loader.events import UNEXPECTED_REASONS, Event

RATE_WINDOW_S = 3.0
SAMPLE_EVERY_S = 0.1
MAX_HELD_SHOWN = 8
# quarter-octave buckets from 1 us: 19 % resolution, 120 buckets reach 15 minutes
BUCKET_EDGES_S = [1e-6 * 2 ** (i / 4) for i in range(120)]
# states of parameter stores; of several the first that occurs counts
STORES_WORST_FIRST = ("poisoned", "writing", "empty", "ready")


class Durations:
    """Count, sum, bytes and a logarithmic histogram of one kind of step."""

    __slots__ = ("buckets", "bytes", "count", "longest_s", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bytes = 0
        self.longest_s = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, seconds: float, nbytes: int) -> None:
        self.count += 1
        self.seconds += seconds
        self.bytes += nbytes
        self.longest_s = max(self.longest_s, seconds)
        bucket = bisect.bisect_left(BUCKET_EDGES_S, seconds)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def quantile(self, share: float) -> float:
        """Upper edge of the bucket that holds the quantile, never above the observed maximum."""
        wanted, seen = math.ceil(share * self.count), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                edge = BUCKET_EDGES_S[min(bucket, len(BUCKET_EDGES_S) - 1)]
                return min(edge, self.longest_s)
        return self.longest_s

    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "p50_s": self.quantile(0.50),
            "p90_s": self.quantile(0.90),
            "p99_s": self.quantile(0.99),
            "max_s": self.longest_s,
        }


class LoadState:
    """What is known about one load after the events so far. Apply events in sequence order."""

    def __init__(self) -> None:
        self.load: int | None = None
        self.status = "idle"
        self.phase = "planning"
        self.about: dict[str, Any] = {}
        self.plan: dict[str, Any] = {}
        self.started_t: float | None = None
        self.planned_t: float | None = None
        self.finished_t: float | None = None
        self.bytes_done = 0
        self.elements_written = 0
        self.steps_done = 0
        self.tensors_done = 0
        self.derived_done = 0
        self.parameters_full = 0
        self.renamed = 0
        self.pairs_closed = 0
        self.held: dict[tuple[int | None, str], dict[str, Any]] = {}
        self.skips: dict[str, dict[str, int]] = {}
        self.durations: dict[str, Durations] = {}
        self.ranks: dict[int, dict[str, Any]] = {}
        self.written: dict[tuple[int | None, str], int] = {}
        self.cells: list[int] = []
        self.changed_cells: set[int] = set()
        self.faults: dict[int, int] = {}
        self.failure: dict[str, Any] | None = None
        self.store: dict[str, Any] = {"state": "empty", "epoch": 0}
        self.last: dict[str, Any] | None = None
        self.throughput: list[tuple[float, int]] = []
        self._recent: deque[tuple[float, int]] = deque()

    def apply(self, event: Event) -> None:
        getattr(self, f"_on_{event.kind}")(event)

    def _on_load_started(self, event: Event) -> None:
        self.load, self.status, self.started_t = event.load, "planning", event.t
        self.about = dict(event.detail or {})
        self.store = dict(self.about.get("store", self.store))

    def _on_plan_made(self, event: Event) -> None:
        self.plan = dict(event.detail or {})
        self.status, self.phase, self.planned_t = "loading", "reading", event.t
        self.cells = [0] * len(self.plan["grid"]["cells"]) if self.plan.get("grid") else []
        self.ranks = {
            row["rank"]: {**row, "status": "waiting", "bytes_done": 0, "seconds": 0.0}
            for row in self.plan.get("ranks", [])
        }

    def _on_renamed(self, event: Event) -> None:
        self.renamed += event.span

    def _on_skipped(self, event: Event) -> None:
        detail = event.detail or {}
        one = {str(event.reason): {"count": event.span, "bytes": event.bytes or 0}}
        for reason, group in detail.get("reasons", one).items():
            total = self.skips.setdefault(reason, {"count": 0, "bytes": 0})
            total["count"] += group["count"]
            total["bytes"] += group["bytes"]

    def _on_half_held(self, event: Event) -> None:
        detail = event.detail or {}
        self.held[(event.rank, str(detail.get("pair", event.param)))] = {
            "param": event.param,
            "have": event.tensor,
            "waits_for": detail.get("waits_for"),
            "rank": event.rank,
            "since_t": event.t,
        }

    def _on_paired(self, event: Event) -> None:
        self.pairs_closed += 1
        self.held.pop((event.rank, str((event.detail or {}).get("pair", event.param))), None)

    def _time(self, name: str, event: Event) -> None:
        if event.seconds is not None:
            self.durations.setdefault(name, Durations()).add(event.seconds, event.bytes or 0)

    def _on_read(self, event: Event) -> None:
        self._time("read", event)

    def _on_copied(self, event: Event) -> None:
        detail = event.detail or {}
        elements = int(detail.get("elements", 0))
        self._time("copy", event)
        self.steps_done += 1
        self.tensors_done += int(detail.get("tensors", 0))
        self.bytes_done += event.bytes or 0
        self.elements_written += elements
        self._count_parameter(event, elements, int(detail.get("numel", 0)))
        if (cell := detail.get("cell")) is not None:
            self.cells[cell] += elements
            self.changed_cells.add(cell)
        if event.rank is not None and event.rank in self.ranks:
            rank = self.ranks[event.rank]
            rank["status"] = "loading"
            rank["bytes_done"] += event.bytes or 0
            rank.setdefault("first_t", event.t)
            rank["seconds"] = event.t - rank["first_t"]
            if rank["bytes_done"] >= rank["bytes_total"]:
                rank["status"] = "done"
        self.last = {"what": f"copied {event.param}", "t": event.t}
        self._sample(event.t)

    def _count_parameter(self, event: Event, elements: int, numel: int) -> None:
        key = (event.rank, str(event.param))
        before = self.written.get(key, 0)
        self.written[key] = before + elements
        if before < numel <= before + elements:
            self.parameters_full += 1

    def _sample(self, t: float) -> None:
        self._recent.append((t, self.bytes_done))
        while self._recent[0][0] < t - RATE_WINDOW_S:
            self._recent.popleft()
        if not self.throughput or t - self.throughput[-1][0] >= SAMPLE_EVERY_S:
            self.throughput.append((t, self.bytes_done))

    def _on_kernel(self, event: Event) -> None:
        self._time(str(event.rule), event)

    def _on_derived(self, event: Event) -> None:
        self.phase = "deriving"
        self.derived_done += 1
        self.last = {"what": f"derived {event.param}", "t": event.t}

    def _on_failed(self, event: Event) -> None:
        detail = event.detail or {}
        self.failure = {
            "message": event.reason,
            "tensor": event.tensor,
            "param": event.param,
            "rule": event.rule,
            "file": detail.get("file"),
            "fix": detail.get("fix"),
            "touched": detail.get("touched", 0),
        }
        if (cell := detail.get("cell")) is not None:
            self.faults[cell] = self.faults.get(cell, 0) + 1
        self.last = {"what": "failed", "t": event.t}

    def _on_load_finished(self, event: Event) -> None:
        detail = event.detail or {}
        self.status, self.finished_t = detail.get("status", "finished"), event.t
        self.phase = "done"
        self.store = dict(detail.get("store", self.store))
        for remark in detail.get("findings", ()):
            counts = self.plan.setdefault("findings", {"error": 0, "warning": 0, "note": 0})
            counts[remark["level"]] += 1
        if self.throughput and self.throughput[-1][1] != self.bytes_done:
            self.throughput.append((event.t, self.bytes_done))

    def rate_bps(self, now: float) -> float | None:
        """Bytes a second over the last seconds; None while too little is known."""
        if len(self._recent) < 2 or self.finished_t is not None:
            return None
        first_t, first_bytes = self._recent[0]
        span_s = max(now, self._recent[-1][0]) - first_t
        return (self.bytes_done - first_bytes) / span_s if span_s > 0.2 else None

    def _verdict(self) -> str:
        if self.status in ("failed", "refused", "poisoned", "interrupted"):
            return "fail"
        if self.status != "finished":
            return "pending"
        whole = self.parameters_full == self.plan.get("parameters_total", 0)
        clean = not self.held and self.plan.get("findings", {}).get("error", 0) == 0
        return "pass" if whole and clean else "fail"

    def _unexpected(self) -> int:
        return sum(g["count"] for r, g in self.skips.items() if r in UNEXPECTED_REASONS)

    def sentence(self) -> str:
        """The verdict in words: what was written, paired and skipped."""
        if not self.plan.get("grid"):
            return self.failure["message"] if self.failure else "no load has started"
        skipped, unexpected = sum(g["count"] for g in self.skips.values()), self._unexpected()
        tail = "all expected" if unexpected == 0 else f"{unexpected:,} of them unexpected"
        return (
            f"{self.parameters_full:,} of {self.plan.get('parameters_total', 0):,} parameters "
            f"fully written, {self.pairs_closed:,} pairs closed, "
            f"{skipped:,} tensors skipped" + (f", {tail}" if skipped else "")
        )

    def as_json(self, now: float) -> dict[str, Any]:
        """The STATE document of docs/http-api.md; sizes in bytes, durations in seconds."""
        end = self.finished_t if self.finished_t is not None else now
        elapsed = end - self.started_t if self.started_t is not None else 0.0
        total, rate = int(self.plan.get("bytes_total", 0)), self.rate_bps(now)
        finished = self.finished_t is not None
        eta = (total - self.bytes_done) / rate if rate and elapsed > 2.0 and not finished else None
        reading = end - self.planned_t if self.planned_t is not None else 0.0
        return {
            "load": self.load,
            "status": self.status,
            "phase": self.phase,
            **{k: self.about.get(k) for k in ("model", "source", "roles", "paced", "device")},
            "layout": self.about.get("layout"),
            "digest": self.plan.get("digest"),
            "paused": False,
            "started_t": self.started_t,
            "elapsed_s": elapsed,
            "finished_t": self.finished_t,
            "bytes_done": self.bytes_done,
            "bytes_total": total,
            "rate_bps": rate,
            "mean_bps": self.bytes_done / reading if finished and reading > 0 else None,
            "eta_s": eta,
            "parameters_total": self.plan.get("parameters_total", 0),
            "parameters_full": self.parameters_full,
            "elements_total": self.plan.get("elements_total", 0),
            "elements_written": self.elements_written,
            "tensors_total": self.plan.get("tensors_total", 0),
            "tensors_done": self.tensors_done,
            "steps_total": self.plan.get("steps_total", 0),
            "steps_done": self.steps_done,
            "derived_total": self.plan.get("derived_total", 0),
            "derived_done": self.derived_done,
            "pairs_total": self.plan.get("pairs_total", 0),
            "pairs_closed": self.pairs_closed,
            "pairs_held": list(self.held.values())[:MAX_HELD_SHOWN],
            "skips": {
                reason: {**group, "expected": reason not in UNEXPECTED_REASONS}
                for reason, group in sorted(self.skips.items())
            },
            "skipped": sum(g["count"] for g in self.skips.values()),
            "skips_unexpected": self._unexpected(),
            "findings": self.plan.get("findings", {"error": 0, "warning": 0, "note": 0}),
            "verdict": self._verdict(),
            "sentence": self.sentence(),
            "kernels": {name: d.as_json() for name, d in sorted(self.durations.items())},
            "ranks": list(self.ranks.values()),
            "last": self.last,
            "failure": self.failure,
            "store": self.store,
        }

    def grid(self) -> dict[str, Any] | None:
        """Rows, columns and cells of the heat map with the elements written so far."""
        geometry: Mapping[str, Any] | None = self.plan.get("grid")
        if not geometry:
            return None
        cells = [
            {**cell, "written": written, "unexpected": self.faults.get(index, 0)}
            for index, (cell, written) in enumerate(zip(geometry["cells"], self.cells, strict=True))
        ]
        return {"rows": geometry["rows"], "columns": geometry["columns"], "cells": cells}


def fold(events: Iterable[Event]) -> LoadState:
    """The state after these events; the same for a live queue and for a log read back."""
    state = LoadState()
    for event in events:
        state.apply(event)
    return state


def worst_store(states: Iterable[str]) -> str:
    """The common state of several parameter stores; empty if there is none."""
    return min(states, key=STORES_WORST_FIRST.index, default="empty")
