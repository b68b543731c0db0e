"""What is known about one update, and the order of its states."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from loadscope.app.updates.asked import Asked
from loadscope.app.updates.names import name_of
from loadscope.app.updates.refusal import Refusal

PHASES = (
    "planning", "receiving", "verifying", "staging",
    "quiescing", "switching", "finalizing", "checking",
)  # fmt: skip
ENDED = frozenset(
    {"active", "failed", "rolled_back", "cancelled", "poisoned", "interrupted", "retired"}
)


class Journal(Protocol):
    """Where a record is kept."""

    def save(
        self, update: int, state: str, record: Mapping[str, Any], ended_t: float | None = None
    ) -> None: ...


class Publish(Protocol):
    def __call__(self, kind: str, detail: Mapping[str, Any]) -> None: ...


class Record:
    """Facts of one update. Any thread may read them; its own thread and requests write them."""

    def __init__(
        self,
        number: int,
        asked: Asked,
        *,
        journal: Journal,
        publish: Publish,
        clock: Callable[[], float],
        previous: str | None,
    ) -> None:
        self.number, self.asked = number, asked
        self.version = asked.version if asked.version is not None else self.id
        self.previous = previous
        self.state = "queued"
        self.weights = "pending"
        self.atomicity: str | None = None
        self.atomicity_reason = ""
        self.opened_t = clock()
        self.ended_t: float | None = None
        self.loads: list[int] = []
        self.roles: dict[str, dict[str, Any]] = {}
        self.plan: dict[str, Any] = empty_plan()
        # what has come so far, while buckets do
        self.arrived: Callable[[], Mapping[str, Any]] | None = None
        self.buckets: dict[str, Any] = {
            "received": 0, "repeated": 0, "bytes": 0, "last": None, "last_t": None,
        }  # fmt: skip
        self.delta: dict[str, Any] | None = None
        self.verify: dict[str, Any] = {
            "level": asked.verify.level, "algorithm": asked.verify.algorithm, "checked": 0,
            "mismatched": [], "overall": None, "loaded_equal": None, "not_comparable": 0,
            "against_sender": False,
        }  # fmt: skip
        self.failure: dict[str, Any] | None = None
        self.touched: dict[str, dict[str, list[str]]] = {}
        self.switch_bytes = 0
        self.read_bytes = 0
        self.stopped_s = 0.0
        self.warnings: list[dict[str, Any]] = []
        self.can_roll_back = False
        self.done = threading.Event()
        self.lock = threading.RLock()
        self._phases: list[dict[str, Any]] = []
        self._journal, self._publish, self._clock = journal, publish, clock

    def ask(self, asked: Asked) -> None:
        """Another order: the commit says how to verify."""
        with self.lock:
            self.asked = asked
            level, algorithm = asked.verify.level, asked.verify.algorithm
            self.verify.update(level=level, algorithm=algorithm)

    @property
    def id(self) -> str:
        return name_of(self.number)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def deadline_t(self) -> float | None:
        limit = self.asked.deadline_s
        return None if limit is None else self.opened_t + limit

    def enter(self, state: str) -> None:
        """Go on to a phase, or to the state that ends the update; it is kept and shown."""
        now = self._clock()
        with self.lock:
            if self._phases and self._phases[-1]["ended_t"] is None:
                self._phases[-1]["ended_t"] = now
            self.state = state
            if state in PHASES:
                self._phases.append({"phase": state, "begun_t": now, "ended_t": None})
            if state in ENDED:
                self.ended_t = now

    def show(self) -> None:
        """Keep the record as it is, and tell who follows the update."""
        self._journal.save(self.number, self.state, self.as_json(), self.ended_t)
        self.tell()

    def tell(self) -> None:
        """Tell who follows the update which state it is in."""
        self._publish("state", self._brief)

    def finish(self) -> None:
        """It is over for everybody: whoever waited may open the next one."""
        assert self.has_ended, f"{self.id} is {self.state}"
        self._publish("done", {**self._brief, "failure": self.failure})
        self.done.set()

    @property
    def _brief(self) -> dict[str, Any]:
        return {"state": self.state, "version": self.version, "weights": self.weights}

    def advance(self, state: str) -> None:
        self.enter(state)
        self.show()

    def warn(self, code: str, message: str, **facts: Any) -> None:
        warning = {"code": code, "message": message, **facts}
        with self.lock:
            self.warnings.append(warning)
        self._publish("warning", warning)

    def publish(self, kind: str, detail: Mapping[str, Any]) -> None:
        self._publish(kind, detail)

    def fail(self, refusal: Refusal) -> None:
        with self.lock:
            self.failure = refusal.as_json(self.state)

    def as_json(self) -> dict[str, Any]:
        """The document of docs/http-api.md; durations in seconds, sizes in bytes."""
        with self.lock:
            phases = [dict(phase) for phase in self._phases]
            now = self._clock()
            spent: dict[str, float] = {}
            for phase in phases:
                end = phase["ended_t"] if phase["ended_t"] is not None else now
                spent[phase["phase"]] = spent.get(phase["phase"], 0.0) + end - phase["begun_t"]
            asked = self.asked
            return {
                "id": self.id,
                "url": f"/reloads/{self.id}",
                "origin": "native" if asked.origin == "reload" else asked.origin,
                "state": self.state,
                "weights": self.weights,
                "version": self.version,
                "previous": self.previous,
                "expect_current": asked.expect_current,
                "source": {"type": asked.source, "name": asked.label},
                "scope": asked.scope,
                "atomicity": self.atomicity,
                "atomicity_reason": self.atomicity_reason,
                "can_roll_back": self.can_roll_back,
                "opened_t": self.opened_t,
                "ended_t": self.ended_t,
                "deadline_t": self.deadline_t,
                "loads": list(self.loads),
                "roles": {role: dict(facts) for role, facts in self.roles.items()},
                "plan": {**self.plan, **(self.arrived() if self.arrived is not None else {})},
                "buckets": dict(self.buckets),
                "delta": self.delta,
                "verify": dict(self.verify),
                "phases_s": spent,
                "phases": phases,
                "gbps": {
                    "read": _gbps(self.read_bytes, spent.get("staging", 0.0)),
                    "switch": _gbps(self.switch_bytes, spent.get("switching", 0.0)),
                },
                "requests": {"retracted": 0, "aborted": 0},
                "quiesce": asked.quiesce,
                "stopped_serving_s": self.stopped_s,
                "touched": {
                    "count": sum(len(n) for ranks in self.touched.values() for n in ranks.values()),
                    "names": self.touched,
                },
                "warnings": list(self.warnings),
                "failure": self.failure,
                "events": f"/reloads/{self.id}/events",
            }


def _gbps(nbytes: int, seconds: float) -> float | None:
    return nbytes / seconds / 1e9 if nbytes and seconds > 0 else None


def empty_plan() -> dict[str, Any]:
    return {
        "tensors_expected": 0,
        "tensors_received": 0,
        "unknown": [],
        "missing": [],
        "ignored": {},
        "groups": {"total": 0, "complete": 0, "split_across_buckets": 0, "open": []},
        "bytes": 0,
    }
