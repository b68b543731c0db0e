"""`written` in the fingerprints is what a load did, not what its plan said it would do."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.deepseek_tensors import checkpoint_specs
from support.destinations import parameter_of
from support.differential import write_case
from support.golden_checkpoint import VARIANTS
from support.loaded import fingerprints_of, plan_of
from support.names import is_draft, one_of_each_pattern
from support.random_models import Case
from support.readers import withholding

from loadscope.loader import fingerprints, write, writing
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.fingerprints import PATTERNS, fingerprint
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.topology import Layout

CONFIG = {**VARIANTS["v32-fp8-block"], "num_hidden_layers": 2, "n_routed_experts": 2}
LAYOUT = Layout()
SEED = 11
SHAPES = {spec.name: spec.shape for spec in checkpoint_specs(CONFIG)}
NAMES = sorted(one_of_each_pattern([n for n in SHAPES if not is_draft(n, 2)], SEED).values())
# a pair that is converted arrives whole or not at all, and the load itself says so
DROPPABLE = [name for name in NAMES if "indexer.wk." not in name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(Case(CONFIG, LAYOUT), tmp_path_factory.mktemp("written") / "model")


def unwritten(document: dict[str, Any]) -> dict[str, int]:
    left = {n: p["numel"] - p["written"] for n, p in document["params"].items()}
    return {n: count for n, count in left.items() if count and "attn_m" not in n}


def test_a_whole_load_leaves_nothing_unwritten(folder: Path) -> None:
    assert unwritten(fingerprints_of(folder, LAYOUT, 0)) == {}


@pytest.mark.parametrize("name", DROPPABLE)
def test_a_tensor_that_the_execution_drops_is_not_counted_as_written(
    name: str, folder: Path
) -> None:
    reader = withholding(lambda tensor: tensor == name)
    found = unwritten(fingerprints_of(folder, LAYOUT, 0, reader))
    assert found == {parameter_of(name, CONFIG): prod(SHAPES[name])}


def test_a_copy_that_forgets_its_last_row_is_not_counted_as_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = write._copy_rows

    def wrong(piece: Any, rows: Any, target: Any, first: int, count: int) -> int:
        return right(piece, rows[:-1], target, first, count - 1) if count > 1 else 0

    monkeypatch.setattr(write, "_copy_rows", wrong)
    found = unwritten(fingerprints_of(folder, LAYOUT, 0))
    assert found["model.layers.0.mlp.down_proj.weight"] == CONFIG["intermediate_size"]


def test_a_vocabulary_whose_padding_is_not_zeroed_is_not_counted_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "vocab_size": 500}
    folder = write_case(Case(config, LAYOUT), tmp_path)
    right = writing.steps

    def without_zeros(*args: Any) -> Any:
        steps = right(*args)
        for step in steps:
            step.zero_box = None
        return steps

    monkeypatch.setattr(writing, "steps", without_zeros)
    found = unwritten(fingerprints_of(folder, LAYOUT, 0))
    padding = (512 - 500) * config["hidden_size"]
    assert found == dict.fromkeys(["model.embed_tokens.weight", "lm_head.weight"], padding)


def test_an_initial_value_is_not_counted_as_written(folder: Path) -> None:
    scales = {
        name: (param["written"], param["fill"])
        for name, param in fingerprints_of(folder, LAYOUT, 0)["params"].items()
        if "attn_m" in name
    }
    assert set(scales.values()) == {(0, "initial")}


def test_values_that_look_like_one_fill_are_still_counted_as_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "PATTERNS", (0x00, 0x80))
    assert unwritten(fingerprints_of(folder, LAYOUT, 0)) == {}


def test_the_two_fills_differ_in_every_byte() -> None:
    assert PATTERNS[0] != PATTERNS[1]


def test_the_store_is_ready_after_it_was_measured(folder: Path) -> None:
    plan = plan_of(folder, LAYOUT)
    store = ParameterStore(plan, 0)
    fingerprint(plan, open_checkpoint(folder), store)
    assert store.state == "ready"
