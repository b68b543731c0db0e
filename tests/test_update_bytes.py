"""Weights handed over in memory leave the bytes that a load from disk leaves."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deepseek_tensors import checkpoint_specs
from support.golden_checkpoint import VARIANTS, tensor_bytes
from support.loaded import load_rank, plan_of
from support.safetensors_files import write_checkpoint
from support.updates import (
    ATTN,
    EP2,
    KV_B,
    O_PROJ,
    Files,
    addresses,
    differing,
    pieces,
    some,
    through_one_buffer,
    weights_of,
)

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, make_plan
from loadscope.loader.topology import Layout

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("update"))


# what is special about the variant's names in memory
KINDS: dict[str, tuple[str, Options | None]] = {
    "bf16": ("v3-bf16", None),
    "a fused indexer from fp8 blocks": ("v32-fp8-block", None),
    "fp8 pairs with one scale": ("v3-fp8-tensor", None),
    "scales that meet in one slot": ("v3-nvfp4", None),
    "scales under other names": ("v3-w4afp8", None),
    "words packed anew": ("v3-awq-marlin", None),
    "quantised on load": ("v3-nvfp4", Options(nvfp4_attention_fp8=True)),
    "a draft": ("v3-fp8-block", Options(draft=True)),
    "a fused shared expert": ("v3-fp8-block", Options(fuse_shared_experts=True)),
}


@pytest.mark.parametrize("what", KINDS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 9))
def test_any_order_in_any_number_of_calls_gives_the_bytes_of_a_load(
    what: str, files: Files, seed: int, count: int
) -> None:
    variant, options = KINDS[what]
    weights = files.weights(variant)
    store = files.empty(variant, options=options)
    store.fill_pattern(0xA5)
    for names in pieces(list(weights), seed, count):
        received = store.load_weights(through_one_buffer(weights, names))
        assert received.failed == {}
    finished = store.finish_update()
    loaded = files.loaded(variant, options=options)
    assert (finished.state, finished.held, finished.partial) == ("ready", (), ())
    assert differing(store, loaded) == set()
    assert (store.scalars, store.flags) == (loaded.scalars, loaded.flags)
    assert (store.epoch, store.touched) == (2, [])


@pytest.mark.parametrize("layout", [Layout(), EP2, Layout(tp_size=2, pp_size=2)], ids=str)
def test_every_rank_takes_its_own_share(layout: Layout, files: Files) -> None:
    weights = files.weights("v32-fp8-block", 2)
    for rank in range(layout.world):
        store = files.ready("v32-fp8-block", layout, rank)
        before = addresses(store)
        store.load_weights(weights.items())
        assert store.finish_update().state == "ready"
        assert differing(store, files.loaded("v32-fp8-block", layout, rank, None, 2)) == set()
        assert addresses(store) == before


def test_every_tensor_has_one_outcome_on_each_rank(files: Files) -> None:
    weights = files.weights("v32-fp8-block")
    received = files.empty("v32-fp8-block").load_weights(weights.items())
    assert {*received.written, *received.skipped} == set(weights)
    assert len(received.written) + len(received.skipped) == len(weights)
    assert set(received.skipped.values()) == {"ep_nonlocal", "beyond_model"}


@pytest.mark.parametrize("variant", ["v3-fp8-block", "v3-fp8-channel", "v3-int8-channel"])
def test_derived_tensors_are_refreshed_in_place_where_kv_b_came(variant: str, files: Files) -> None:
    weights = files.weights(variant, 2)
    own = [name for name in weights if name.startswith(KV_B)]
    store = files.ready(variant)
    before = addresses(store)
    derived = {name for name in store.derived if name.startswith(ATTN)}
    first = store.load_weights(some(weights, own[0]))
    second = store.load_weights(some(weights, *own[1:]))
    finished = store.finish_update()
    assert (first.refreshed, finished.refreshed) == ((), ())
    assert set(second.refreshed) == derived
    assert {*own} <= differing(store, files.loaded(variant)) <= {*own, *derived}
    assert differing(store, files.loaded(variant, version=2)).isdisjoint({*own, *derived})
    assert addresses(store) == before


def test_a_weight_whose_scale_stays_is_derived_from_at_the_end(files: Files) -> None:
    old, new = files.weights("v3-fp8-block"), files.weights("v3-fp8-block", 2)
    store = files.ready("v3-fp8-block")
    assert store.load_weights(some(new, KV_B + "weight")).refreshed == ()
    finished = store.finish_update()
    assert finished.refreshed == (ATTN + "w_kc", ATTN + "w_vc")
    assert finished.state == "ready"
    mixed = files.empty("v3-fp8-block")
    mixed.load_weights({**old, KV_B + "weight": new[KV_B + "weight"]}.items())
    assert mixed.finish_update().state == "ready"
    assert differing(store, mixed) == set()


def test_an_update_without_kv_b_derives_nothing(files: Files) -> None:
    store = files.ready("v3-fp8-block")
    received = store.load_weights(some(files.weights("v3-fp8-block", 2), O_PROJ))
    assert (received.refreshed, store.finish_update().refreshed) == ((), ())


SPELLINGS = {
    "language_model.": lambda name: "language_model." + name,
    "model.language_model.": lambda name: name.replace("model.", "model.language_model.", 1),
    ".base_layer.": lambda name: name.replace("_proj.weight", "_proj.base_layer.weight"),
    "weight_scale": lambda name: name.replace("weight_scale_inv", "weight_scale"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings_are_the_same_tensors(spelling: str, files: Files) -> None:
    weights = files.weights("v32-fp8-block")
    renamed = {SPELLINGS[spelling](name): tensor for name, tensor in weights.items()}
    assert renamed.keys() != weights.keys()
    store = files.empty("v32-fp8-block")
    store.load_weights(renamed.items())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v32-fp8-block")) == set()


@pytest.mark.parametrize("variant", ["v3-bf16", "v32-fp8-block", "v3-fp8-tensor", "v3-nvfp4"])
@pytest.mark.parametrize("layout", [Layout(), EP2], ids=str)
def test_parameters_come_back_under_their_own_names(
    variant: str, layout: Layout, files: Files
) -> None:
    whole = files.loaded(variant, Layout(), 0)
    store = files.empty(variant, layout, layout.world - 1)
    received = store.load_weights(whole.parameters.items())
    assert (received.failed, received.skipped, received.held) == ({}, {}, ())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded(variant, layout, layout.world - 1)) == set()


def as_transformers(name: str) -> str:
    """The stacked experts' names in transformers' own tree."""
    return name.replace("w13_weight", "gate_up_proj").replace("w2_weight", "down_proj")


@pytest.mark.parametrize("variant", ["v3-bf16", "v3-fp8-block"])
def test_stacked_experts_have_a_second_name(variant: str, files: Files) -> None:
    whole = files.loaded(variant, Layout(), 0)
    renamed = {as_transformers(name): tensor for name, tensor in whole.parameters.items()}
    assert renamed.keys() != whole.parameters.keys()
    store = files.empty(variant)
    assert store.load_weights(renamed.items()).skipped == {}
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded(variant)) == set()


def test_tensors_of_a_trainer_need_not_be_plain_or_contiguous(files: Files) -> None:
    weights = files.weights("v3-bf16")
    given = {
        name: torch.nn.Parameter(t.t().contiguous().t() if t.dim() == 2 else t)
        for name, t in weights.items()
    }
    store = files.empty("v3-bf16")
    store.load_weights(given.items())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v3-bf16")) == set()
    assert not any(tensor.requires_grad for tensor in store.parameters.values())


def test_a_router_in_float32_is_narrowed(files: Files) -> None:
    name = "model.layers.1.mlp.gate.weight"
    weights = files.weights("v3-bf16", 2)
    store = files.ready("v3-bf16")
    router = torch.nn.Parameter(weights[name].float())
    assert store.load_weights([(name, router)]).written == (name,)
    assert store.finish_update().state == "ready"
    assert torch.equal(store.parameters[name], weights[name])
    assert not store.parameters[name].requires_grad


@pytest.mark.parametrize("rank", [0, 1])
def test_the_padding_of_a_vocabulary_is_zero(rank: int, tmp_path: Path) -> None:
    config = {**VARIANTS["v3-bf16"], "vocab_size": 70}
    shards = {"model.safetensors": checkpoint_specs(config)}
    folder = write_checkpoint(tmp_path / "model", config, shards, tensor_bytes)
    plan = plan_of(folder, EP2)
    store = ParameterStore(plan, rank)
    store.fill_pattern(0xA5)
    store.load_weights(weights_of(folder).items())
    finished = store.finish_update()
    assert (finished.state, finished.partial) == ("ready", ())
    assert differing(store, load_rank(plan, folder, rank)) == set()


def test_an_update_needs_no_whole_checkpoint_behind_its_plan(files: Files) -> None:
    """Names, dtypes and shapes count, not which of them the files hold."""
    checkpoint = open_checkpoint(files.folder("v32-fp8-block"))
    kept = {n: t for n, t in checkpoint.tensors.items() if "indexer.wk." not in n}
    plan = make_plan(replace(checkpoint, tensors=kept), EP2)
    assert plan.verdict == "fail"
    store = ParameterStore(plan, 1)
    store.load_weights(files.weights("v32-fp8-block").items())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v32-fp8-block")) == set()
