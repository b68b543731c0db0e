"""A model saved by transformers, loaded here, computes transformers' logits."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import reference_forward
from support.loaded import fingerprints_of, load_ranks, plan_of
from support.transformers_models import save_v2_lite, save_v3

from loadscope.loader.plan import Plan
from loadscope.loader.topology import Layout

SAVE = {"DeepSeek-V3": save_v3, "DeepSeek-V2-Lite": save_v2_lite}
LAYOUTS = {
    "tp 1": Layout(),
    "tp 2": Layout(tp_size=2),
    "tp 4": Layout(tp_size=4),
    "tp 2 ep 2": Layout(tp_size=2, ep_size=2),
    "tp 4 ep 2": Layout(tp_size=4, ep_size=2),
    "tp 2 pp 3": Layout(tp_size=2, pp_size=3),
}
CASES = [(model, layout) for model in SAVE for layout in LAYOUTS]
SEEDS = range(4)
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

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(tokens[None]).logits[0]


class Loaded:
    """Loads made once each: by model and layout."""

    def __init__(self, saved: dict[str, Saved]) -> None:
        self.saved = saved
        self.ranks = cache(self._load)
        self.plan = cache(self._plan)

    def _load(self, model: str, layout: str) -> list[dict[str, torch.Tensor]]:
        return load_ranks(self.saved[model].folder, LAYOUTS[layout])

    def _plan(self, model: str, layout: str) -> Plan:
        return plan_of(self.saved[model].folder, LAYOUTS[layout])

    def logits(self, model: str, layout: str, tokens: torch.Tensor) -> torch.Tensor:
        place = reference_forward.Layout(ep_size=LAYOUTS[layout].ep_size)
        ranks = self.ranks(model, layout)
        return reference_forward.logits(ranks, self.saved[model].config, tokens, place)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    torch.manual_seed(0)
    folders = {name: tmp_path_factory.mktemp("saved") / name for name in SAVE}
    return Loaded({name: Saved(SAVE[name](folder), folder) for name, folder in folders.items()})


def tokens_of(seed: int, vocab_size: int) -> torch.Tensor:
    return torch.randint(vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("model", SAVE)
def test_transformers_saves_the_model_in_several_shards(model: str, loaded: Loaded) -> None:
    assert len(list(loaded.saved[model].folder.glob("*.safetensors"))) > 4


@pytest.mark.parametrize("model", SAVE)
def test_a_save_splits_a_fused_pair_over_two_shards(model: str, loaded: Loaded) -> None:
    index = json.loads((loaded.saved[model].folder / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    prefix = "model.layers.1.mlp.experts.{}.gate_proj.weight"
    gates = [index[prefix.format(expert)] for expert in range(8)]
    ups = [index[prefix.format(expert).replace("gate", "up")] for expert in range(8)]
    assert gates != ups


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_a_saved_model_is_planned_without_errors_and_warnings(
    model: str, layout: str, loaded: Loaded
) -> None:
    assert [f for f in loaded.plan(model, layout).findings if f.level != "note"] == []


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_every_parameter_of_a_saved_model_is_fully_written(
    model: str, layout: str, loaded: Loaded
) -> None:
    folder, place = loaded.saved[model].folder, LAYOUTS[layout]
    ranks = [fingerprints_of(folder, place, rank)["params"] for rank in range(place.world)]
    partial = [n for params in ranks for n, p in params.items() if p["written"] != p["numel"]]
    assert partial == []


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_loaded_parameters_give_the_logits_of_transformers(
    model: str, layout: str, loaded: Loaded
) -> None:
    saved = loaded.saved[model]
    inputs = [tokens_of(seed, saved.config["vocab_size"]) for seed in SEEDS]
    errors = [
        (loaded.logits(model, layout, tokens) - saved.logits(tokens)).abs().max().item()
        for tokens in inputs
    ]
    assert max(errors) <= TOLERANCE


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_loaded_parameters_give_the_same_next_tokens(
    model: str, layout: str, loaded: Loaded
) -> None:
    saved = loaded.saved[model]
    inputs = [tokens_of(seed, saved.config["vocab_size"]) for seed in SEEDS]
    ours = [loaded.logits(model, layout, tokens).argmax(-1).tolist() for tokens in inputs]
    assert ours == [saved.logits(tokens).argmax(-1).tolist() for tokens in inputs]


SWAPPED = {
    "two rotary rows": ("model.layers.1.self_attn.fused_qkv_a_proj_with_mqa.weight", -1, -2),
    "two router biases": ("model.layers.1.mlp.gate.e_score_correction_bias", 0, 1),
    "two experts": ("model.layers.1.mlp.experts.w2_weight", 2, 3),
    "two heads of w_kc": ("model.layers.2.self_attn.w_kc", 0, 1),
    "two norm entries": ("model.layers.0.self_attn.kv_a_layernorm.weight", 3, 4),
}


@pytest.mark.parametrize("what", SWAPPED)
def test_the_comparison_notices_a_swap(what: str, loaded: Loaded) -> None:
    name, one, other = SWAPPED[what]
    (own,) = loaded.ranks("DeepSeek-V3", "tp 1")
    bent = own[name].clone()
    bent[[one, other]] = bent[[other, one]]
    saved = loaded.saved["DeepSeek-V3"]
    tokens = tokens_of(0, saved.config["vocab_size"])
    found = reference_forward.logits(
        [{**own, name: bent}], saved.config, tokens, reference_forward.Layout()
    )
    assert (found - saved.logits(tokens)).abs().max().item() > 100 * TOLERANCE
