"""A model saved by transformers, loaded here, computes transformers' logits."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import reference_forward
from support.block_floats import in_floats
from support.loaded import fingerprints_of, load_ranks, plan_of
from support.transformers_models import (
    save_glm,
    save_glm_blocks,
    save_kimi,
    save_v2_lite,
    save_v3,
    save_v3_blocks,
    save_v3_head_blocks,
    save_v31_blocks,
)
from torch import Tensor

from loadscope.loader.plan import Options, Plan
from loadscope.loader.topology import Layout

LAYOUTS = {
    "tp 1": Layout(),
    "tp 2": Layout(tp_size=2),
    "tp 4": Layout(tp_size=4),
    "tp 2 ep 2": Layout(tp_size=2, ep_size=2),
    "tp 4 ep 2": Layout(tp_size=4, ep_size=2),
    "tp 2 pp 3": Layout(tp_size=2, pp_size=3),
}
FUSED = Options(fuse_shared_experts=True)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a model is saved, the options of its loads, the layouts in which it is loaded."""

    save: Callable[[Path], Any]
    options: Options = Options()
    layouts: tuple[str, ...] = tuple(LAYOUTS)


SOME = ("tp 4", "tp 4 ep 2")
KINDS = {
    "DeepSeek-V3": Kind(save_v3),
    "DeepSeek-V2-Lite": Kind(save_v2_lite),
    "Kimi-K2": Kind(save_kimi, layouts=("tp 2 ep 2",)),
    "GLM-5": Kind(save_glm, layouts=("tp 1", "tp 4 ep 2", "tp 2 pp 3")),
    "DeepSeek-V3, shared expert fused": Kind(save_v3, FUSED, SOME),
    "DeepSeek-V3 in blocks": Kind(save_v3_blocks),
    "DeepSeek-V3.1 in blocks": Kind(save_v31_blocks, layouts=SOME),
    "DeepSeek-V3 in blocks, shared expert fused": Kind(save_v3_blocks, FUSED, ("tp 1", *SOME)),
    "DeepSeek-V3 in blocks, kv_b too": Kind(
        save_v3_head_blocks, Options(deepgemm_bmm=True), ("tp 1", "tp 4 ep 2")
    ),
    "GLM-5 in blocks": Kind(save_glm_blocks, layouts=("tp 1", "tp 4 ep 2")),
}
IN_BLOCKS = [name for name in KINDS if "in blocks" in name]
CASES = [(model, layout) for model, kind in KINDS.items() for layout in kind.layouts]
SEEDS = range(3)
LENGTH = 19
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Saved:
    """A model in memory and the folder it was saved to."""

    model: Any
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())

    def logits(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(tokens[None]).logits[0]


class Loaded:
    """Saves, loads and logits, made once each; a load by kind of model and layout."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_function = cache(self._save)
        self.ranks = cache(self._load)
        self.expected = cache(self._expected)
        self.logits = cache(self._logits)

    def saved(self, model: str) -> Saved:
        return self._by_function(KINDS[model].save)

    def _save(self, save: Callable[[Path], Any]) -> Saved:
        torch.manual_seed(0)
        folder = self._root / save.__name__
        return Saved(save(folder), folder)

    def plan(self, model: str, layout: str) -> Plan:
        return plan_of(self.saved(model).folder, LAYOUTS[layout], KINDS[model].options)

    def _load(self, model: str, layout: str) -> list[dict[str, Tensor]]:
        """What every rank holds, blocks as floats."""
        folder, options = self.saved(model).folder, KINDS[model].options
        return [in_floats(own) for own in load_ranks(folder, LAYOUTS[layout], options=options)]

    def tokens(self, model: str, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.saved(model).config["vocab_size"], (LENGTH,), generator=generator)

    def _expected(self, model: str, seed: int) -> Tensor:
        return self.saved(model).logits(self.tokens(model, seed))

    def _logits(self, model: str, layout: str, seed: int) -> Tensor:
        place = reference_forward.Layout(ep_size=LAYOUTS[layout].ep_size)
        ranks, config = self.ranks(model, layout), self.saved(model).config
        return reference_forward.logits(ranks, config, self.tokens(model, seed), place)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    # the models are tiny: threads would only wait for one another
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Loaded(tmp_path_factory.mktemp("saved"))
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", ["DeepSeek-V3", "DeepSeek-V2-Lite", "GLM-5"])
def test_transformers_saves_the_model_in_several_shards(model: str, loaded: Loaded) -> None:
    assert len(list(loaded.saved(model).folder.glob("*.safetensors"))) > 4


@pytest.mark.parametrize("model", ["DeepSeek-V3", "DeepSeek-V2-Lite", "GLM-5"])
def test_a_save_splits_a_fused_pair_over_two_shards(model: str, loaded: Loaded) -> None:
    index = weight_map(loaded.saved(model).folder)
    prefix = "model.layers.2.mlp.experts.{}.gate_proj.weight"
    gates = [index[prefix.format(expert)] for expert in range(8)]
    ups = [index[prefix.format(expert).replace("gate", "up")] for expert in range(8)]
    assert gates != ups


def weight_map(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


@pytest.mark.parametrize("model", IN_BLOCKS)
def test_a_model_in_blocks_is_stored_and_loaded_as_such(model: str, loaded: Loaded) -> None:
    plan = loaded.plan(model, "tp 1")
    assert plan.format.startswith("fp8 blocks 128x128")
    folder = loaded.saved(model).folder
    scales = [name for name in weight_map(folder) if name.endswith("_scale_inv")]
    assert len(scales) >= 72
    held = load_ranks(folder, Layout(), options=KINDS[model].options)[0]
    weights = {name: tensor for name, tensor in held.items() if name.endswith("weight")}
    codes = [name for name, tensor in weights.items() if tensor.dtype == torch.float8_e4m3fn]
    assert {f"{name}_scale_inv" for name in codes} < held.keys()
    assert len(codes) == len([name for name in held if name.endswith("_scale_inv")]) > 10


def test_scales_of_the_later_version_are_powers_of_two(loaded: Loaded) -> None:
    held = load_ranks(loaded.saved("DeepSeek-V3.1 in blocks").folder, Layout())[0]
    scales = [tensor for name, tensor in held.items() if name.endswith("_scale_inv")]
    assert all((scale.frexp().mantissa == 0.5).all() for scale in scales)
    plain = load_ranks(loaded.saved("DeepSeek-V3 in blocks").folder, Layout())[0]
    scales = [tensor for name, tensor in plain.items() if name.endswith("_scale_inv")]
    assert not any((scale.frexp().mantissa == 0.5).all() for scale in scales)


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_a_saved_model_is_planned_without_errors_and_warnings(
    model: str, layout: str, loaded: Loaded
) -> None:
    assert [f for f in loaded.plan(model, layout).findings if f.level != "note"] == []


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_every_parameter_of_a_saved_model_is_fully_written(
    model: str, layout: str, loaded: Loaded
) -> None:
    folder, place, options = loaded.saved(model).folder, LAYOUTS[layout], KINDS[model].options
    ranks = [fingerprints_of(folder, place, r, options=options) for r in range(place.world)]
    partial = {
        name: held["written"]
        for rank in ranks
        for name, held in rank["params"].items()
        if held["written"] != held["numel"] and not name.endswith(("k_scale", "v_scale"))
    }
    assert partial == {}


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_loaded_parameters_give_the_logits_of_transformers(
    model: str, layout: str, loaded: Loaded
) -> None:
    pairs = [(loaded.logits(model, layout, seed), loaded.expected(model, seed)) for seed in SEEDS]
    assert max((ours - theirs).abs().max().item() for ours, theirs in pairs) <= TOLERANCE


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_loaded_parameters_give_the_same_next_tokens(
    model: str, layout: str, loaded: Loaded
) -> None:
    ours = [loaded.logits(model, layout, seed).argmax(-1).tolist() for seed in SEEDS]
    assert ours == [loaded.expected(model, seed).argmax(-1).tolist() for seed in SEEDS]


SWAPPED = {
    "two rotary rows": ("DeepSeek-V3", "1.self_attn.fused_qkv_a_proj_with_mqa.weight", -1, -2),
    "two router biases": ("DeepSeek-V3", "1.mlp.gate.e_score_correction_bias", 0, 1),
    "two experts": ("DeepSeek-V3", "1.mlp.experts.w2_weight", 2, 3),
    "two heads of w_kc": ("DeepSeek-V3", "2.self_attn.w_kc", 0, 1),
    "two norm entries": ("DeepSeek-V3", "0.self_attn.kv_a_layernorm.weight", 3, 4),
    "two index keys": ("GLM-5", "2.self_attn.indexer.wk_weights_proj.weight", 1, 12),
    "two index heads": ("GLM-5", "0.self_attn.indexer.wk_weights_proj.weight", -1, -2),
    "two blocks of rows": (
        "DeepSeek-V3 in blocks", "0.mlp.down_proj.weight_scale_inv", 0, 1
    ),
    "two experts' scales": (
        "DeepSeek-V3 in blocks", "2.mlp.experts.w13_weight_scale_inv", 0, 7
    ),
    "the shared expert and another": (
        "DeepSeek-V3 in blocks, shared expert fused", "1.mlp.experts.w13_weight", 8, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SWAPPED)
def test_the_comparison_notices_a_swap(what: str, loaded: Loaded) -> None:
    model, tail, one, other = SWAPPED[what]
    name = f"model.layers.{tail}"
    saved = loaded.saved(model)
    (own,) = load_ranks(saved.folder, Layout(), options=KINDS[model].options)
    bent = own[name].clone()
    bent[[one, other]] = own[name][[other, one]]
    found = reference_forward.logits(
        [in_floats({**own, name: bent})],
        saved.config,
        loaded.tokens(model, 0),
        reference_forward.Layout(),
    )
    assert (found - loaded.expected(model, 0)).abs().max().item() > 100 * TOLERANCE
