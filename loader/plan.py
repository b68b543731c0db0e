"""Checkpoint x layout to a Plan: every name's way and every slice on every rank, proven."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from loadscope.loader import formats
from loadscope.loader.checkpoint import Checkpoint, Shard, Tensor
from loadscope.loader.checks import check_names, check_stored
from loadscope.loader.contradictions import check_experts, check_layers
from loadscope.loader.divide import check_layout
from loadscope.loader.families import build
from loadscope.loader.findings import Finding, sort_by_level
from loadscope.loader.formats import plain
from loadscope.loader.model import Model, apply_overrides, describe
from loadscope.loader.place import Box, Placement, local_shape, place
from loadscope.loader.proof_subject import Subject
from loadscope.loader.prove import prove
from loadscope.loader.resolve import Tail, collect, resolve, split
from loadscope.loader.schema import Schema, Source, Target, expand
from loadscope.loader.tables import Derive, Format
from loadscope.loader.topology import Layout, Seat, mask_of

PLATFORMS = ("cuda", "hip", "hip-fnuz", "npu", "xpu", "musa", "cpu")


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose beside the layout; `overrides` are (field, text) pairs of --set."""

    platform: str = "cuda"
    indexer_fusion: bool = True
    overrides: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.platform not in PLATFORMS:
            raise ValueError(f"platform {self.platform!r}; expected one of {', '.join(PLATFORMS)}")


@dataclass(frozen=True)
class Plan:
    """Everything that should happen, as values; queries are in views.py and explain.py.

    `placements` is keyed by (source index, tp rank); `shapes` gives each target's local shape.
    """

    label: str
    kind: str
    shards: tuple[Shard, ...]
    tensors: Mapping[str, Tensor]
    layout: Layout
    options: Options
    model: Model | None
    format: str
    targets: tuple[Target, ...]
    sources: tuple[Source, ...]
    derives: tuple[Derive, ...]
    tails: tuple[Tail, ...]
    shapes: tuple[tuple[int, ...], ...]
    placements: Mapping[tuple[int, int], Placement]
    zero_boxes: Mapping[tuple[int, int], Box]
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def verdict(self) -> str:
        return "fail" if any(f.level == "error" for f in self.findings) else "pass"

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        return self.layout.seats()

    @cached_property
    def stage_masks(self) -> tuple[int, ...]:
        layers = self.model.num_hidden_layers if self.model else 0
        return tuple(
            mask_of(self.layout.stage_layers(pp, layers)) for pp in range(self.layout.pp_size)
        )

    @cached_property
    def _tails_by_name(self) -> dict[tuple[str, bool, str], list[Tail]]:
        index: dict[tuple[str, bool, str], list[Tail]] = {}
        for tail in self.tails:
            index.setdefault((tail.wrapper, tail.is_top, tail.text), []).append(tail)
        return index

    def find(self, name: str) -> tuple[Tail, int] | None:
        """Tail and layer (0 outside the layers) of a checkpoint name; None if it is not there."""
        parsed = split(name)
        layer = parsed.layer if parsed.layer is not None else 0
        for tail in self._tails_by_name.get(
            (parsed.wrapper, parsed.layer is None, parsed.tail), ()
        ):
            if tail.seen >> layer & 1:
                return tail, layer
        return None

    @cached_property
    def _routed_masks(self) -> dict[tuple[str, str | None, int], int]:
        masks: dict[tuple[str, str | None, int], int] = {}
        for tail in self.tails:
            if tail.source is not None and (source := self.sources[tail.source]).pair is not None:
                key = (source.name, source.pair, tail.expert)
                masks[key] = masks.get(key, 0) | tail.routed
        return masks

    def partner_mask(self, tail: Tail) -> int:
        """Layers in which the other half of a paired tail is there and usable."""
        assert tail.source is not None
        source = self.sources[tail.source]
        return self._routed_masks.get((str(source.pair), source.name, tail.expert), 0)

    @cached_property
    def digest(self) -> str:
        """Equal for equal plans, on every rank and machine (sha256 of the plan's decisions)."""
        facts = {
            "layout": asdict(self.layout),
            "options": asdict(self.options),
            "targets": [asdict(t) for t in self.targets],
            "sources": [asdict(s) for s in self.sources],
            "derives": [asdict(d) for d in self.derives],
            "tails": sorted(_tail_facts(t) for t in self.tails),
            "files": sorted((s.name, s.size) for s in self.shards),
            "findings": [(f.code, f.level, f.subject) for f in self.findings],
        }
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _tail_facts(tail: Tail) -> tuple[str, str, str, str, str]:
    shapes = ";".join(f"{s}:{m:x}" for s, m in sorted(tail.shapes.items()))
    masks = f"{tail.seen:x},{tail.routed:x},{tail.failed:x},{tail.beyond:x}"
    return tail.wrapper, tail.pattern, f"{tail.expert}", tail.dtype + shapes, masks


class _Clock:
    """Seconds per stage of planning."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now


def make_plan(
    checkpoint: Checkpoint, layout: Layout | None = None, options: Options | None = None
) -> Plan:
    """Resolve, place and prove for all ranks. Never raises for a bad checkpoint: see `findings`."""
    layout = layout if layout is not None else Layout()
    options = options if options is not None else Options()
    clock = _Clock()
    clock.seconds["headers"] = checkpoint.seconds
    findings = list(checkpoint.findings)
    model, form = _describe(checkpoint, options, findings)
    if model is None or form is None:
        return _empty(checkpoint, layout, options, model, findings, clock)
    schema, derives = _schema(model, form, layout, options)
    findings += schema.findings
    clock.lap("describe")
    tails = list(collect(checkpoint.tensors.items()).values())
    resolve(tails, schema, model.layers)
    clock.lap("resolve")
    set_layers = any(f.removeprefix("config.") == "num_hidden_layers" for f, _ in options.overrides)
    findings += check_layers(tails, model, layers_were_set=set_layers)
    findings += check_experts(tails, model)
    findings += check_stored(tails, schema, model, form)
    findings += check_names(tails, schema)
    clock.lap("check")
    illegal = check_layout(model, schema.targets, layout)
    findings += illegal
    placed = None if illegal else _place(schema, layout)
    clock.lap("place")
    if placed is not None:
        findings += prove(_subject(model, schema, layout, tails, placed))
    clock.lap("prove")
    shapes, placements, zero_boxes = placed if placed is not None else ((), {}, {})
    return Plan(
        label=checkpoint.label,
        kind=checkpoint.kind,
        shards=checkpoint.shards,
        tensors=checkpoint.tensors,
        layout=layout,
        options=options,
        model=model,
        format=form.name,
        targets=tuple(schema.targets),
        sources=tuple(schema.sources),
        derives=derives,
        tails=tuple(tails),
        shapes=shapes,
        placements=placements,
        zero_boxes=zero_boxes,
        findings=sort_by_level(findings),
        seconds=clock.seconds,
    )


def _describe(
    checkpoint: Checkpoint, options: Options, findings: list[Finding]
) -> tuple[Model | None, Format | None]:
    if checkpoint.config is None:
        return None, None
    config, unused = apply_overrides(checkpoint.config, options.overrides)
    model, found = describe(config)
    findings += unused + found
    if model is None:
        return None, None
    form = formats.choose(model.quantization, model.dtype)
    if isinstance(form, Finding):
        findings.append(form)
        return model, None
    unsupported = formats.check_platform(form, options.platform)
    if unsupported is not None:
        findings.append(unsupported)
        return model, None
    return model, form


def _schema(
    model: Model, form: Format, layout: Layout, options: Options
) -> tuple[Schema, tuple[Derive, ...]]:
    fuse = options.indexer_fusion and options.platform == "cuda"
    tie = model.tie_word_embeddings and layout.pp_size == 1
    family = build(model, form, fuse_indexer=fuse, tie_head=tie)
    return expand(family, form, plain.make(model.dtype)), family.derives


def _empty(
    checkpoint: Checkpoint,
    layout: Layout,
    options: Options,
    model: Model | None,
    findings: list[Finding],
    clock: _Clock,
) -> Plan:
    """A plan of nothing: the findings say why."""
    tails = tuple(collect(checkpoint.tensors.items()).values())
    return Plan(
        checkpoint.label, checkpoint.kind, checkpoint.shards, checkpoint.tensors, layout, options,
        model, "unknown", (), (), (), tails, (), {}, {}, sort_by_level(findings), clock.seconds,
    )  # fmt: skip


_Placed = tuple[
    tuple[tuple[int, ...], ...], dict[tuple[int, int], Placement], dict[tuple[int, int], Box]
]


def _place(schema: Schema, layout: Layout) -> _Placed:
    """Local shapes, and every kind placed once per seat of the TP group."""
    shapes = tuple(local_shape(target, layout) for target in schema.targets)
    placements: dict[tuple[int, int], Placement] = {}
    zero_boxes: dict[tuple[int, int], Box] = {}
    seats = [layout.seat(rank) for rank in range(layout.tp_size)]
    for index, source in enumerate(schema.sources):
        if source.target is None:
            continue
        target = schema.targets[source.target]
        for seat in seats:
            placed = place(target, source, layout, seat)
            placements[(index, seat.tp)] = placed
            rows = shapes[source.target][0] if target.is_vocabulary else 0
            filled = placed.target_box[0][1] if target.is_vocabulary else 0
            if filled < rows:
                rest = tuple((0, n) for n in shapes[source.target][1:])
                zero_boxes[(source.target, seat.tp)] = ((filled, rows), *rest)
    return shapes, placements, zero_boxes


def _subject(
    model: Model, schema: Schema, layout: Layout, tails: list[Tail], placed: _Placed
) -> Subject:
    shapes, placements, zero_boxes = placed
    stages = range(layout.pp_size)
    return Subject(
        layout=layout,
        seats=layout.seats(),
        stage_masks=[mask_of(layout.stage_layers(pp, model.num_hidden_layers)) for pp in stages],
        targets=schema.targets,
        sources=schema.sources,
        tails=tails,
        shapes=shapes,
        placements=placements,
        zero_boxes=zero_boxes,
    )
