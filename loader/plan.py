"""Checkpoint x layout to a Plan: every name's way and every slice on every rank, proven."""

import time

from loadscope.loader import derivation, formats
from loadscope.loader.assign import check_lists
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.checks import check_names, check_stored
from loadscope.loader.contradictions import (
    check_draft,
    check_experts,
    check_layers,
    draft_layer,
)
from loadscope.loader.divide import check_layout
from loadscope.loader.expand import expand
from loadscope.loader.families import build
from loadscope.loader.families.choices import Choices
from loadscope.loader.findings import Finding, finding, sort_by_level
from loadscope.loader.formats import Context
from loadscope.loader.formats.format import Format
from loadscope.loader.fusion import check_fusion
from loadscope.loader.model import Model, apply_overrides, describe
from loadscope.loader.place import Box, Placement, local_shape, place
from loadscope.loader.planned import PLATFORMS, Options, Plan, stage_masks
from loadscope.loader.proof_subject import Subject
from loadscope.loader.prove import prove
from loadscope.loader.resolve import Tail, collect, resolve
from loadscope.loader.schema import Schema
from loadscope.loader.tables import Family
from loadscope.loader.topology import Layout

__all__ = ["PLATFORMS", "Options", "Plan", "check_options", "format_of", "make_plan"]


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
    tails = list(collect(checkpoint.tensors.items()).values())
    model, form = _describe(checkpoint, layout, options, tails, findings)
    if model is None or form is None:
        return _empty(checkpoint, layout, options, model, tails, findings, clock)
    schema = _schema(model, form, layout, options)
    findings += schema.findings
    derives, underived = derivation.derives(
        model, schema, options.platform, deepgemm_bmm=options.deepgemm_bmm
    )
    findings += underived
    clock.lap("describe")
    tails = resolve(tails, schema, model.layers, has_top=not options.draft)
    clock.lap("resolve")
    findings += _check(tails, schema, model, form, options)
    clock.lap("check")
    illegal = check_layout(model, schema.targets, layout)
    findings += illegal
    placed = None if illegal else _place(schema, layout)
    clock.lap("place")
    if placed is not None:
        findings += prove(_subject(model, schema, layout, options, tails, placed))
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
    checkpoint: Checkpoint,
    layout: Layout,
    options: Options,
    tails: list[Tail],
    findings: list[Finding],
) -> tuple[Model | None, Format | None]:
    """The model of the planned role and its format; None where the findings say why not."""
    if checkpoint.config is None:
        return None, None
    config, unused = apply_overrides(checkpoint.config, options.overrides)
    model, found = describe(config)
    findings += unused + found
    if model is None:
        return None, None
    form = format_of(model, layout, options)
    if isinstance(form, Finding):
        findings.append(form)
        return model, None
    refused = [*(check_draft(tails, model) if options.draft else ())]
    refused += check_fusion(
        model, form, is_asked=options.fuse_shared_experts, is_draft=options.draft
    )
    findings += refused
    if any(f.level == "error" for f in refused):
        return model, None
    findings += _check_lists(model, form, options)
    findings += check_options(model, form, options)
    layer = draft_layer(tails, model) if options.draft else None
    return (model if layer is None else model.draft(layer)), form


def check_options(model: Model, form: Format, options: Options) -> list[Finding]:
    """Options that this model, format or role does not concern: obeyed, without effect."""
    is_nvfp4 = form.method == "modelopt_fp4"
    without_effect = {
        "--nvfp4-attention-fp8": options.nvfp4_attention_fp8 and not is_nvfp4,
        "--nextn-moe-fp8": options.nextn_moe_fp8 and not (is_nvfp4 and options.draft),
        "--deepgemm-bmm": options.deepgemm_bmm
        and (options.platform != "cuda" or model.quantization is None),
    }
    return [
        finding(
            "LS217",
            option,
            f"{option} has no effect here: {'draft' if options.draft else 'target'}, format "
            f"{form.name}, platform {options.platform}",
            fix="leave it out",
        )
        for option, is_idle in without_effect.items()
        if is_idle
    ]


def format_of(model: Model, layout: Layout, options: Options) -> Format | Finding:
    """The format of a model's quantisation entry under the given options."""
    context = Context(
        dtype=model.dtype,
        hidden_size=model.hidden_size,
        expert_width=max(1, model.moe_intermediate_size // max(1, layout.ways("expert_tp"))),
        is_draft=options.draft,
        nvfp4_attention_fp8=options.nvfp4_attention_fp8,
        nextn_moe_fp8=options.nextn_moe_fp8,
    )
    return formats.choose(model.quantization, context, options.quantization)


def _check_lists(model: Model, form: Format, options: Options) -> list[Finding]:
    """Idle entries, asked of both roles: one list serves them both."""
    if not form.lists:
        return []
    choices = Choices(fuse_indexer=False)
    families: list[Family] = [build(model, choices)]
    if model.num_nextn_predict_layers or options.draft:
        draft = model.draft(model.num_hidden_layers)
        families.append(build(draft, choices, is_draft=True))
    return check_lists(form, families, model.n_routed_experts)


def _schema(model: Model, form: Format, layout: Layout, options: Options) -> Schema:
    choices = Choices(
        has_kv_scales=form.has_kv_scales,
        fuse_indexer=options.indexer_fusion and options.platform == "cuda",
        tie_head=model.tie_word_embeddings and layout.pp_size == 1,
        fuse_shared_experts=options.fuse_shared_experts,
    )
    family = build(model, choices, is_draft=options.draft)
    return expand(family, form, model.n_routed_experts)


def _check(
    tails: list[Tail], schema: Schema, model: Model, form: Format, options: Options
) -> list[Finding]:
    """Config against headers, stored dtypes and shapes, names."""
    set_layers = any(f.removeprefix("config.") == "num_hidden_layers" for f, _ in options.overrides)
    layers = [] if options.draft else check_layers(tails, model, layers_were_set=set_layers)
    return [
        *layers,
        *check_experts(tails, model),
        *check_stored(tails, schema, model, form),
        *check_names(tails, schema),
    ]


def _empty(
    checkpoint: Checkpoint,
    layout: Layout,
    options: Options,
    model: Model | None,
    tails: list[Tail],
    findings: list[Finding],
    clock: _Clock,
) -> Plan:
    """A plan of nothing: the findings say why."""
    return Plan(
        checkpoint.label, checkpoint.kind, checkpoint.shards, checkpoint.tensors, layout, options,
        model, "unknown", (), (), (), tuple(tails), (), {}, {}, sort_by_level(findings),
        clock.seconds,
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
    model: Model,
    schema: Schema,
    layout: Layout,
    options: Options,
    tails: list[Tail],
    placed: _Placed,
) -> Subject:
    shapes, placements, zero_boxes = placed
    return Subject(
        layout=layout,
        seats=layout.seats(),
        stage_masks=stage_masks(model, layout, options),
        targets=schema.targets,
        sources=schema.sources,
        tails=tails,
        shapes=shapes,
        placements=placements,
        zero_boxes=zero_boxes,
    )
