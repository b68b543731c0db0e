"""A plan as a value: what should happen to every name and every slice, on every rank."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from loadscope.loader.checkpoint import Shard, Tensor
from loadscope.loader.findings import Finding
from loadscope.loader.model import Model
from loadscope.loader.place import Box, Placement
from loadscope.loader.resolve import Tail, split
from loadscope.loader.schema import Need, Source, Target
from loadscope.loader.tables import Derive
from loadscope.loader.topology import Layout, Seat, layers_in, mask_of

PLATFORMS = ("cuda", "hip", "hip-fnuz", "npu", "xpu", "musa", "cpu")


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose beside the layout; `overrides` are (field, text) pairs of --set.

    `draft` plans the draft layer instead of the target; `quantization` takes the place of the
    config's quant_method.
    """

    platform: str = "cuda"
    indexer_fusion: bool = True
    draft: bool = False
    fuse_shared_experts: bool = False
    deepgemm_bmm: bool = False
    nvfp4_attention_fp8: bool = False
    nextn_moe_fp8: bool = False
    quantization: str | None = None
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

    @property
    def role(self) -> str:
        return "draft" if self.options.draft else "target"

    @property
    def beyond_reason(self) -> str:
        """Why tensors outside the planned layers are skipped."""
        return "not_draft_layer" if self.options.draft else "beyond_model"

    @cached_property
    def layer_numbers(self) -> list[int]:
        """The layers that the plan holds, ascending."""
        return layers_in(self.model.layers) if self.model else []

    @cached_property
    def stage_masks(self) -> tuple[int, ...]:
        return stage_masks(self.model, self.layout, self.options)

    def uses(self, index: int) -> tuple[int, ...]:
        """A source and the further uses of the same tensor."""
        return (index, *self.sources[index].siblings)

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
    def _routed_masks(self) -> dict[tuple[Need, int], int]:
        needed = {need for source in self.sources for need in source.needs}
        masks: dict[tuple[Need, int], int] = {}
        for tail in self.tails:
            if tail.source is None or not tail.routed:
                continue
            for offer in needed.intersection(
                offer for index in self.uses(tail.source) for offer in self.sources[index].offers
            ):
                masks[offer, tail.expert] = masks.get((offer, tail.expert), 0) | tail.routed
        return masks

    def partner_mask(self, tail: Tail) -> int:
        """Layers in which everything that a tail's uses need is there and usable."""
        assert tail.source is not None
        mask = -1
        for index in self.uses(tail.source):
            for need in self.sources[index].needs:
                mask &= self._routed_masks.get((need, tail.expert), 0)
        return mask

    def waits(self, tail: Tail) -> bool:
        """Whether any use of a tail needs another tensor."""
        assert tail.source is not None
        return any(self.sources[index].needs for index in self.uses(tail.source))

    @cached_property
    def names_facts(self) -> list[tuple[str, str, str, str, str]]:
        """All names with their dtypes, shapes and outcomes, in the form of the digest."""
        return sorted(_tail_facts(tail) for tail in self.tails)

    @cached_property
    def digest(self) -> str:
        """Equal for equal plans, on every rank and machine (sha256 of the plan's decisions)."""
        facts = {
            "layout": asdict(self.layout),
            "options": asdict(self.options),
            "targets": [asdict(t) for t in self.targets],
            "sources": [asdict(s) for s in self.sources],
            "derives": [asdict(d) for d in self.derives],
            "tails": self.names_facts,
            "files": sorted((s.name, s.size) for s in self.shards),
            "findings": [(f.code, f.level, f.subject) for f in self.findings],
        }
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _tail_facts(tail: Tail) -> tuple[str, str, str, str, str]:
    shapes = ";".join(f"{s}:{m:x}" for s, m in sorted(tail.shapes.items()))
    masks = f"{tail.seen:x},{tail.routed:x},{tail.failed:x},{tail.beyond:x}"
    return tail.wrapper, tail.pattern, f"{tail.expert}", tail.dtype + shapes, masks


def stage_masks(model: Model | None, layout: Layout, options: Options) -> tuple[int, ...]:
    """Layers of each pipeline stage; a draft is whole on every stage."""
    if model is None or options.draft:
        return (model.layers if model else 0,) * layout.pp_size
    count = model.num_hidden_layers
    return tuple(mask_of(layout.stage_layers(pp, count)) for pp in range(layout.pp_size))
