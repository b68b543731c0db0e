"""Facts a load leaves behind, in order: what the log, the API and the page are built from."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args

Kind = Literal[
    "load_started",
    "plan_made",
    "renamed",
    "skipped",
    "half_held",
    "paired",
    "read",
    "copied",
    "kernel",
    "derived",
    "failed",
    "load_finished",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# a record of these kinds may stand for many tensors: one sequence number each
BULK_KINDS = ("renamed", "skipped")

UNEXPECTED_REASONS = frozenset({"duplicate", "no_destination"})

SKIP_MEANINGS: dict[str, str] = {
    "pp_range": "the layer belongs to another pipeline stage",
    "pp_edge": "embedding, norm and head live on the first or the last pipeline stage only",
    "beyond_model": "the layer lies beyond num_hidden_layers (a draft layer, or not asked for)",
    "not_draft_layer": "only the draft layer is loaded for the draft model",
    "shared_with_target": "not a copy of its own: a tied head is the embedding, "
    "a draft takes both from the target",
    "rotary": "rotary frequencies are computed from the config",
    "bias_absent": "the model has no such bias",
    "ep_nonlocal": "the expert lives on another expert-parallel rank",
    "indexer_absent": "the layer has no indexer",
    "input_scale_unused": "activations are quantised on the fly: no parameter has a place for it",
    "duplicate": "the same tensor arrived before",
    "no_destination": "no rule knows this name",
    "not_requested": "outside the requested part of the model",
}


class Event(NamedTuple):
    """One fact; `span` > 1 makes it a bulk record that stands for seq … seq + span - 1.

    `t` is seconds since the epoch, `seconds` a duration, `bytes` a size.
    """

    seq: int
    t: float
    load: int
    rank: int | None
    kind: Kind
    tensor: str | None = None
    param: str | None = None
    rule: str | None = None
    reason: str | None = None
    bytes: int | None = None
    seconds: float | None = None
    detail: Mapping[str, Any] | None = None
    span: int = 1

    def as_json(self) -> dict[str, Any]:
        document = self._asdict()
        if self.span == 1:
            del document["span"]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Event":
        return cls(**document)


Sink = Callable[[Event], None]


class Recorder:
    """Numbers and stamps the events of one load and hands them to one sink; never blocks."""

    def __init__(self, load: int, sink: Sink, clock: Callable[[], float]) -> None:
        self.load = load
        self._sink = sink
        self._clock = clock
        self._next = 1

    def emit(
        self,
        kind: Kind,
        rank: int | None = None,
        *,
        tensor: str | None = None,
        param: str | None = None,
        rule: str | None = None,
        reason: str | None = None,
        bytes: int | None = None,
        seconds: float | None = None,
        detail: Mapping[str, Any] | None = None,
        span: int = 1,
    ) -> None:
        seq = self._next
        self._next = seq + span
        self._sink(
            Event(
                seq, self._clock(), self.load, rank, kind, tensor, param, rule, reason,
                bytes, seconds, detail, span,
            )
        )  # fmt: skip


class Emit(Protocol):
    """What the loop calls for every fact; `Recorder.emit` is one."""

    def __call__(
        self,
        kind: Kind,
        rank: int | None = None,
        *,
        tensor: str | None = None,
        param: str | None = None,
        rule: str | None = None,
        reason: str | None = None,
        bytes: int | None = None,
        seconds: float | None = None,
        detail: Mapping[str, Any] | None = None,
        span: int = 1,
    ) -> None: ...


def discard(kind: Kind, rank: int | None = None, **_facts: Any) -> None:
    """An emit that keeps nothing, for loads nobody watches."""
