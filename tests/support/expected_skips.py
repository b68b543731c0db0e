"""Which tensors of a published checkpoint are not loaded, and why, told from names and layout."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from loadscope.loader.topology import Layout, Seat
from support.names import expert_of, is_draft, layer_of

ROTARY = ".rotary_emb.inv_freq"
OF_THE_TARGET = ("embed_tokens", "shared_head.head")
FIRST_STAGE = "model.embed_tokens."
# NVFP4 keeps these for every expert of the model on every rank
ON_EVERY_RANK = ".input_scale"


def target_skip(name: str, config: Mapping[str, Any]) -> str | None:
    """Why no rank of the target loads the tensor."""
    if is_draft(name, config["num_hidden_layers"]):
        return "beyond_model"
    return "rotary" if name.endswith(ROTARY) else None


def draft_skip(name: str, config: Mapping[str, Any]) -> str | None:
    """Why no rank of the draft loads the tensor."""
    if layer_of(name) != config["num_hidden_layers"]:
        return "not_draft_layer"
    module = name.split(".", 3)[3]
    return "shared_with_target" if module.startswith(OF_THE_TARGET) else None


class Loaded:
    """The tensors that some rank loads, counted by layer, expert and stage."""

    def __init__(self, names: Iterable[str], config: Mapping[str, Any], *, keeps_scales: bool):
        self.config = config
        self.keeps_scales = keeps_scales
        self.counts = Counter(self._place(name) for name in names)

    def _place(self, name: str) -> tuple[int | None, int | None, bool]:
        everywhere = self.keeps_scales and name.endswith(ON_EVERY_RANK)
        expert = None if everywhere else expert_of(name)
        return layer_of(name), expert, name.startswith(FIRST_STAGE)

    def skips(self, layout: Layout, seat: Seat, *, is_whole: bool) -> dict[str, int]:
        """{reason: tensors} that other ranks hold; `is_whole`: every stage has all layers."""
        found: Counter[str] = Counter()
        for (layer, expert, is_first), count in self.counts.items():
            reason = None if is_whole else self._stage_skip(layer, is_first, layout, seat)
            if reason is None and expert is not None and self._is_away(expert, layout, seat):
                reason = "ep_nonlocal"
            if reason is not None:
                found[reason] += count
        return dict(found)

    def _stage_skip(
        self, layer: int | None, is_first: bool, layout: Layout, seat: Seat
    ) -> str | None:
        if layer is None:
            home = 0 if is_first else layout.pp_size - 1
            return None if seat.pp == home else "pp_edge"
        stage = layout.stage_layers(seat.pp, self.config["num_hidden_layers"])
        return None if layer in stage else "pp_range"

    def _is_away(self, expert: int, layout: Layout, seat: Seat) -> bool:
        each = self.config["n_routed_experts"] // layout.ep_size
        return expert // each != seat.ep
