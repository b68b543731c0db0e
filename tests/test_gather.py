"""What stands in the parameters comes back as the files have it, name by name and byte by byte."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
import torch
from support import dressed
from support.compared_load import Dress, plain_dress, plan_load
from support.golden_checkpoint import VARIANTS, golden_specs
from support.load_case import small_load
from support.loaded import load_rank, plan_of
from support.names import pattern_of
from support.quantised_formats import FORMS
from support.safetensors_files import write_checkpoint
from support.updates import ATTN, KV_B, LOADED, O_PROJ, Files, write_weights
from torch import Tensor

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.checksums import checksum, file_checksums, tensor_checksum
from loadscope.loader.gather import (
    CONVERTED,
    DISAGREE,
    ELSEWHERE,
    FAULTS,
    IMPOSSIBLE,
    NARROWED,
    Gathered,
    Gatherer,
    live_checksums,
    runtime_checksums,
)
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan
from loadscope.loader.topology import Layout

pytestmark = pytest.mark.usefixtures("one_thread")

ALL_CUTS = Layout(tp_size=2, ep_size=2, pp_size=2)
ONE_STAGE = Layout(tp_size=2, ep_size=2)
DRAFT, WNA16 = Options(draft=True), Options(quantization="moe_wna16")
BLOCK = "v3-fp8-block"
NORM = "model.norm.weight"
EMBED = "model.embed_tokens.weight"
Q_A, KV_A = ATTN + "q_a_proj.weight", ATTN + "kv_a_proj_with_mqa.weight"
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa.weight"
MLP = "model.layers.1.mlp."
EXPERT = MLP + "experts.6."
W13, W2 = MLP + "experts.w13_weight", MLP + "experts.w2_weight"
Stores = dict[int, ParameterStore]

LAYER = "model.layers.{layer}."
SHARED_SCALES = {
    LAYER + "mlp.experts.{expert}.gate_proj.input_scale": "greatest",
    LAYER + "mlp.experts.{expert}.up_proj.input_scale": "greatest",
}
# what cannot come back, by its pattern: the conversion that it passed
LOST: dict[str, dict[str, str]] = {
    "v32-fp8-block": {
        LAYER + "self_attn.indexer.wk.weight": "dequantise_block",
        LAYER + "self_attn.indexer.wk.weight_scale_inv": "dequantise_block",
    },
    "v3-fp8-tensor": {
        **SHARED_SCALES,
        **{
            LAYER + f"self_attn.{part}.{leaf}": how
            for part in ("q_a_proj", "kv_a_proj_with_mqa")
            for leaf, how in {
                "weight": "rescale_codes",
                "weight_scale": "greatest, rescale_codes",
                "input_scale": "greatest",
            }.items()
        },
    },
    "v3-nvfp4": SHARED_SCALES,
    "v3-w4afp8": {
        LAYER + "mlp.experts.{expert}.w1.input_scale": "greatest",
        LAYER + "mlp.experts.{expert}.w3.input_scale": "greatest",
    },
}
CASES = [
    *((name, Options(), ALL_CUTS) for name in LOADED),
    *((name, DRAFT, ALL_CUTS) for name in (BLOCK, "v32-fp8-block", "v3-fp8-tensor", "v3-awq")),
    ("v3-fp8-block-mtponly", DRAFT, ONE_STAGE),
    ("v3-bf16", Options(fuse_shared_experts=True), ALL_CUTS),
    (BLOCK, Options(fuse_shared_experts=True), ALL_CUTS),
    ("v3-awq", WNA16, ALL_CUTS),
    ("v3-awq-marlin", WNA16, Layout(tp_size=4, ep_size=2)),
    ("v3-nvfp4", Options(), Layout(tp_size=4, ep_size=2)),
    ("v32-bf16", Options(indexer_fusion=False), Layout()),
]


class Loads:
    """Golden checkpoints, loaded on all ranks of a layout; made once each."""

    def __init__(self, root: Path) -> None:
        self.files = Files(root)
        self.stores = cache(self._stores)
        self.sums = cache(self._sums)

    def plan(self, variant: str, layout: Layout, options: Options | None = None) -> Plan:
        return self.files.plan(variant, layout, options)

    def _stores(self, variant: str, layout: Layout, options: Options | None = None) -> Stores:
        """Shared: not to be written."""
        return self.fresh(variant, layout, options)

    def fresh(self, variant: str, layout: Layout, options: Options | None = None) -> Stores:
        plan = self.plan(variant, layout, options)
        folder = self.files.folder(variant)
        return {rank: load_rank(plan, folder, rank) for rank in range(layout.world)}

    def _sums(self, variant: str) -> dict[str, str]:
        return dict(file_checksums(open_checkpoint(self.files.folder(variant))))


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Loads:
    return Loads(tmp_path_factory.mktemp("gather"))


def gatherer(stores: Mapping[int, ParameterStore], role: str = "target") -> Gatherer:
    plan = next(iter(stores.values())).plan
    return Gatherer({role: plan}, {role: stores})


def gather(stores: Mapping[int, ParameterStore], name: str) -> Gathered:
    return gatherer(stores).gather(name)


def lost(reasons: Mapping[str, str]) -> dict[str, str]:
    """Patterns of what was loaded and cannot come back."""
    return {pattern_of(n): r for n, r in reasons.items() if not r.startswith("skipped: ")}


@pytest.mark.parametrize(("variant", "options", "layout"), CASES, ids=str)
def test_every_tensor_of_every_variant_comes_back_unless_a_conversion_changed_it(
    variant: str, options: Options, layout: Layout, loads: Loads
) -> None:
    found, reasons = live_checksums(gatherer(loads.stores(variant, layout, options)))
    expected = loads.sums(variant)
    assert found == {name: expected[name] for name in found}
    assert found.keys() | reasons.keys() == expected.keys()
    told = LOST.get(variant, {})
    assert lost(reasons) == {name: f"{CONVERTED}: {how}" for name, how in told.items()}
    # more is not to be had: the rest belongs to the other role, or no parameter takes it
    assert len(found) > 40


def test_a_draft_and_its_target_together_have_every_tensor(loads: Loads) -> None:
    target, draft = loads.stores(BLOCK, ALL_CUTS), loads.stores(BLOCK, ALL_CUTS, DRAFT)
    both = Gatherer(
        {"target": target[0].plan, "draft": draft[0].plan}, {"target": target, "draft": draft}
    )
    found, reasons = live_checksums(both)
    assert found == {name: s for name, s in loads.sums(BLOCK).items() if name not in reasons}
    # the draft takes both from the target
    assert set(reasons) == {
        "model.layers.3.embed_tokens.weight",
        "model.layers.3.shared_head.head.weight",
    }
    eh_proj = "model.layers.3.eh_proj.weight"
    assert (both.gather(NORM).role, both.gather(eh_proj).role) == ("target", "draft")
    assert both.gather(NORM, "draft").values is None
    assert both.gather(eh_proj, "target").values is None


def test_values_dtype_and_shape_are_those_of_the_files(loads: Loads) -> None:
    weights = loads.files.weights("v3-fp8-tensor")
    stores = loads.stores("v3-fp8-tensor", ALL_CUTS)
    shapes = set()
    for name, stored in weights.items():
        one = gather(stores, name)
        assert one.shape == tuple(stored.shape)
        if one.values is None:
            continue
        assert (one.values.dtype, one.values.shape) == (stored.dtype, stored.shape)
        assert torch.equal(flat_bytes(one.values), flat_bytes(stored))
        assert one.replicas_agree
        shapes.add(stored.dim())
    assert shapes == {0, 1, 2}


@pytest.mark.parametrize("dims", [(), (1,)], ids=["no dim", "one dim"])
def test_scalars_and_columns_come_back_as_they_were_stored(
    dims: tuple[int, ...], loads: Loads, tmp_path: Path
) -> None:
    scale = EXPERT + "down_proj.weight_scale"
    weights = {**loads.files.weights("v3-fp8-tensor")}
    weights[scale] = weights[scale].reshape(dims)
    folder = write_weights(loads.files.folder("v3-fp8-tensor"), tmp_path / "model", weights)
    plan = plan_of(folder, ONE_STAGE)
    found = gather({rank: load_rank(plan, folder, rank) for rank in (0, 1)}, scale).values
    assert found is not None
    assert torch.equal(found, weights[scale])


def test_a_slice_knows_its_place_on_both_sides(loads: Loads) -> None:
    # 2 experts' ranks: expert 6 of 8 is the third of the second
    one = gather(loads.stores(BLOCK, ONE_STAGE), EXPERT + "up_proj.weight")
    (shard,) = one.shards
    assert (shard.rank, shard.param) == (1, W13)
    assert shard.source_box == ((0, 256), (0, 256))
    assert shard.target_box == ((2, 3), (256, 512), (0, 256))
    assert [shard.rank for shard in gather(loads.stores(BLOCK, ONE_STAGE), Q_A).shards] == [0, 1]


def test_what_comes_back_does_not_share_memory_with_the_parameters(loads: Loads) -> None:
    store = loads.fresh(BLOCK, Layout())[0]
    for name in (NORM, Q_A, EXPERT + "down_proj.weight"):
        before = tensor_checksum(store.parameters[W2]), tensor_checksum(store.parameters[NORM])
        values = gather({0: store}, name).values
        assert values is not None
        values.view(torch.uint8).fill_(7)
        after = tensor_checksum(store.parameters[W2]), tensor_checksum(store.parameters[NORM])
        assert after == before


# rank 0 of 2 alone: what is on every rank comes back, of what is cut only a part is there
ALONE = {
    NORM: None,
    Q_A: None,
    KV_A: None,
    MLP + "gate.weight": None,
    EXPERT.replace("6", "1") + "up_proj.weight": None,
    EXPERT + "up_proj.weight": "rank 1 of 2 holds it and is not loaded here",
    O_PROJ: "rank 1 of 2 holds the rest and is not loaded here",
    KV_B + "weight_scale_inv": "rank 1 of 2 holds the rest and is not loaded here",
    EMBED: "rank 1 of 2 holds the rest and is not loaded here",
}


@pytest.mark.parametrize("name", ALONE)
def test_a_part_that_is_not_here_is_said_to_be_on_which_rank(name: str, loads: Loads) -> None:
    one = gather({0: loads.stores(BLOCK, ONE_STAGE)[0]}, name)
    told = ALONE[name]
    assert one.reason == (None if told is None else f"{ELSEWHERE}: {told}")
    assert (one.values is None) == (told is not None)
    assert one.values is None or tensor_checksum(one.values) == loads.sums(BLOCK)[name]
    assert [shard.rank for shard in one.shards] == ([] if told and " it " in told else [0])


def test_ranks_of_another_stage_are_named_together(loads: Loads) -> None:
    stores = {rank: loads.stores(BLOCK, ALL_CUTS)[rank] for rank in (0, 1)}
    assert gather(stores, NORM).reason == (
        f"{ELSEWHERE}: ranks 2-3 of 4 hold it and are not loaded here"
    )
    assert gather(stores, EMBED).reason is None


def test_names_that_nobody_took_say_why(loads: Loads) -> None:
    stores = loads.stores("v3-bf16-extras", ALL_CUTS)
    reasons = live_checksums(gatherer(stores))[1]
    told = {
        "model.extra_top.weight": "skipped: no_destination (no rule knows this name)",
        ATTN + "o_proj.bias": "skipped: bias_absent (the model has no such bias)",
    }
    assert {name: reasons[name] for name in told} == told
    assert reasons[ATTN + "rotary_emb.inv_freq"].startswith("skipped: rotary (")
    assert gather(stores, "model.nrom.weight").reason == "no plan knows this name"


def load_with(loads: Loads, folder: Path, name: str, tensor: Tensor, variant: str) -> Stores:
    """A golden variant in which one tensor is another, loaded on two ranks."""
    weights = {**loads.files.weights(variant), name: tensor}
    written = write_weights(loads.files.folder(variant), folder / "model", weights)
    plan = plan_of(written, ONE_STAGE)
    return {rank: load_rank(plan, written, rank) for rank in (0, 1)}


def test_what_was_narrowed_cannot_come_back(loads: Loads, tmp_path: Path) -> None:
    router = MLP + "gate.weight"
    wide = loads.files.weights("v3-bf16")[router].float()
    for added in (0.0, 2.0**-20):
        folder = tmp_path / f"{added}"
        folder.mkdir()
        # even if no value lost anything: nobody could tell afterwards
        one = gather(load_with(loads, folder, router, wide + added, "v3-bf16"), router)
        assert (one.values, one.reason) == (None, f"{NARROWED}: F32 in the files, BF16 here")
        assert (one.dtype, one.shape) == ("F32", (8, 256))


def test_every_bit_of_a_copied_tensor_comes_back(loads: Loads, tmp_path: Path) -> None:
    bits = torch.arange(256, dtype=torch.int32) - 128
    codes = torch.cat([bits[:128] + 0x7FC0, bits[128:] - 0x8000]).to(torch.int16)
    odd = codes.view(torch.bfloat16)
    assert odd.isnan().any()
    assert (odd == 0).any()
    found = gather(load_with(loads, tmp_path, NORM, odd, "v3-bf16"), NORM).values
    assert found is not None
    assert torch.equal(found.view(torch.int16), codes)


# stored BF16, F32 in the parameter
SCALE = EXPERT + "gate_proj.weight_scale_inv"
SCALES = MLP + "experts.w13_weight_scale_inv"


def test_every_bit_of_a_widened_tensor_comes_back(loads: Loads, tmp_path: Path) -> None:
    stored = loads.files.weights("v3-w4afp8")[SCALE]
    codes = torch.arange(stored.numel(), dtype=torch.int32).mul_(0x10007 // 64).to(torch.int16)
    codes[:3] = torch.tensor([0x7FC1, -1, -0x8000], dtype=torch.int16)
    odd = codes.view(torch.bfloat16).reshape(stored.shape)
    stores = load_with(loads, tmp_path, SCALE, odd, "v3-w4afp8")
    assert stores[1].parameters[SCALES].dtype == torch.float32
    found = gather(stores, SCALE).values
    assert found is not None
    assert torch.equal(found.view(torch.int16).reshape(-1), codes)


def test_a_widened_parameter_that_no_file_can_have_given_is_a_fault(loads: Loads) -> None:
    stores = loads.fresh("v3-w4afp8", ONE_STAGE)
    low_bits = stores[1].parameters[SCALES].view(torch.int32)
    low_bits[2, 0, 0] += 1
    found, reasons = live_checksums(gatherer(stores))
    assert {n for n, r in reasons.items() if r.startswith(FAULTS)} == {SCALE}
    assert reasons[SCALE].startswith(IMPOSSIBLE)
    assert "rank 1" in reasons[SCALE]
    assert SCALES in reasons[SCALE]
    assert len(found) + len(reasons) == len(loads.sums("v3-w4afp8"))


def test_awq_codes_zeros_and_scales_that_were_repeated_come_back(tmp_path: Path) -> None:
    config = {"moe_intermediate_size": 4 * 64, "n_shared_experts": None}
    load = small_load(FORMS["moe_wna16, groups of 128"], tp=4, config=config)
    _made, plan = plan_load(load, tmp_path / "model")
    stores = {rank: load_rank(plan, tmp_path / "model", rank) for rank in range(4)}
    found, reasons = live_checksums(gatherer(stores))
    assert found == dict(file_checksums(open_checkpoint(tmp_path / "model")))
    assert reasons == {}
    # a group does not fit an expert's piece, so each is there several times
    (repeat,) = {s.arguments[0] for s in plan.sources if s.convert == "transpose_scales"}
    assert repeat > 1
    # one of equal columns is another: no file gives that
    zeros = stores[0].parameters[MLP + "experts.w2_qzeros"]
    zeros[3, 0, 0] ^= 1
    _found, reasons = live_checksums(gatherer(stores))
    (name,) = reasons
    assert name == MLP + "experts.3.down_proj.qzeros"
    assert reasons[name].startswith(IMPOSSIBLE)


def test_one_byte_of_a_repacked_expert_changes_its_own_name_only(loads: Loads) -> None:
    stores = loads.fresh("v3-awq", ONE_STAGE, WNA16)
    codes = stores[1].parameters[MLP + "experts.w13_qweight"]
    assert codes.dtype == torch.uint8
    rows = codes.shape[1] // 2
    for slot, row, name in ((0, rows - 1, "experts.4.gate_proj"), (3, rows, "experts.7.up_proj")):
        codes[slot, row, 5] ^= 0x10
        assert differing(loads, stores) == {f"{MLP}{name}.qweight"}
        codes[slot, row, 5] ^= 0x10
    assert differing(loads, stores) == set()


def differing(loads: Loads, stores: Stores) -> set[str]:
    """Names whose checksum is not that of the untouched weights, or that have one no more."""
    before, _ = live_checksums(gatherer(loads.stores("v3-awq", ONE_STAGE, WNA16)))
    after, _ = live_checksums(gatherer(stores))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def write_owners(variant: str, folder: Path, names: Iterable[str]) -> dict[int, str]:
    """A checkpoint in which every byte of a tensor says whose it is: {byte: name}."""
    owners = dict(enumerate(names, start=1))
    assert len(owners) < 256
    numbers = {name: number for number, name in owners.items()}
    shards = {"model.safetensors": golden_specs(variant)}
    write_checkpoint(
        folder, VARIANTS[variant], shards,
        lambda spec: bytes([numbers.get(spec.name, 0)]) * spec.num_bytes,
    )  # fmt: skip
    return owners


def flat_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("variant", [BLOCK, "v32-fp8-block", "v3-w4afp8", "v3-bf16"])
def test_one_flipped_byte_of_any_parameter_shows_in_the_name_that_it_came_from(
    variant: str, loads: Loads, tmp_path: Path
) -> None:
    """Who wrote a byte is told by a second load, of files in which every byte says its name."""
    stores = loads.fresh(variant, ALL_CUTS)
    before, reasons = live_checksums(gatherer(stores))
    owners = write_owners(variant, tmp_path / "owners", before)
    plan = plan_of(tmp_path / "owners", ALL_CUTS)
    marked = {rank: load_rank(plan, tmp_path / "owners", rank) for rank in stores}
    seen, random = set(), Random(variant)
    places = [(rank, name) for rank, store in stores.items() for name in store.parameters]
    random.shuffle(places)
    for rank, name in places:
        if pattern_of(name) in seen:
            continue
        seen.add(pattern_of(name))
        tensor = stores[rank].parameters[name]
        byte, width = random.randrange(tensor.nbytes), tensor.element_size()
        element = flat_bytes(marked[rank].parameters[name]).reshape(-1, width)[byte // width]
        # a widened element has its mark in the upper half only
        owner = owners.get(int(element.max()))
        if owner is None or is_converted(variant, name):
            continue
        flat_bytes(tensor)[byte] ^= 0xFF
        after, now = live_checksums(gatherer(stores))
        changed = {n for n in before if before[n] != after.get(n)}
        assert changed == {owner}, (rank, name, byte)
        faults = {n for n, reason in now.items() if reason.startswith(FAULTS)}
        assert faults == changed - after.keys()
        flat_bytes(tensor)[byte] ^= 0xFF
    assert len(seen) > 15
    assert live_checksums(gatherer(stores)) == (before, reasons)


def is_converted(variant: str, name: str) -> bool:
    """Of bytes that an operation made, marks in the files say nothing."""
    return variant == "v32-fp8-block" and name.endswith("wk_weights_proj.weight")


def test_replicas_that_differ_are_told_and_most_of_them_are_believed(loads: Loads) -> None:
    stores = loads.fresh("v3-bf16", Layout(tp_size=4))
    right = loads.sums("v3-bf16")
    for rank in (0, 2):
        row = stores[rank].parameters[QKV_A].view(torch.uint8)[0]
        row[3] ^= 0x80
        one = gather(stores, Q_A)
        assert not one.replicas_agree
        assert one.disagreeing == ((rank, QKV_A),)
        assert one.values is not None
        assert tensor_checksum(one.values) == right[Q_A]
        assert gather(stores, KV_A).replicas_agree
        found, reasons = live_checksums(gatherer(stores))
        assert {n for n in reasons if reasons[n].startswith(DISAGREE)} == {Q_A}
        assert f"rank {rank} " in reasons[Q_A]
        assert QKV_A in reasons[Q_A]
        assert Q_A not in found
        row[3] ^= 0x80
    assert gather(stores, Q_A).replicas_agree


def test_replicas_of_equal_numbers_and_other_bits_differ(loads: Loads) -> None:
    stores = loads.fresh("v3-bf16", ONE_STAGE)
    zero = torch.zeros(())
    for pair in ((zero, -zero), (0x7FC1, 0x7FC2)):
        for rank, value in enumerate(pair):
            first = stores[rank].parameters[NORM][:1]
            if isinstance(value, int):
                first.view(torch.int16).fill_(value)
            else:
                first.copy_(value)
        assert gather(stores, NORM).disagreeing == ((1, NORM),)
    for rank in (0, 1):
        stores[rank].parameters[NORM].view(torch.int16)[0] = 0x7FC1
    assert gather(stores, NORM).replicas_agree


def test_two_roles_that_hold_a_tensor_must_agree(loads: Loads) -> None:
    one, two = loads.stores(BLOCK, ONE_STAGE), loads.fresh(BLOCK, ONE_STAGE)
    plan = one[0].plan
    both = Gatherer({"target": plan, "draft": plan}, {"target": one, "draft": two})
    assert both.gather(O_PROJ).replicas_agree
    two[1].parameters[O_PROJ].view(torch.uint8)[0, 0] ^= 1
    assert both.gather(O_PROJ).disagreeing == ((0, O_PROJ), (1, O_PROJ))
    assert both.gather(O_PROJ, "draft").replicas_agree
    assert O_PROJ in live_checksums(both)[1]


def test_names_and_algorithm_can_be_chosen(loads: Loads) -> None:
    found, reasons = live_checksums(
        gatherer(loads.stores(BLOCK, ALL_CUTS)), [NORM, "model.nrom.weight"], "sha256"
    )
    files = open_checkpoint(loads.files.folder(BLOCK))
    assert found == dict(file_checksums(files, [NORM], "sha256"))
    assert reasons == {"model.nrom.weight": "no plan knows this name"}


def test_runtime_checksums_are_of_each_parameter_and_derived_tensor(loads: Loads) -> None:
    stores = loads.stores(BLOCK, ONE_STAGE)
    found = runtime_checksums({"target": stores}, "sha256")
    assert found.keys() == {"target"}
    assert found["target"].keys() == {0, 1}
    for rank, store in stores.items():
        tensors = {**store.parameters, **store.derived}
        assert store.derived
        assert found["target"][rank] == {
            name: checksum(bytes(flat_bytes(tensor.contiguous()).numpy()), "sha256")
            for name, tensor in tensors.items()
        }
    some = runtime_checksums({"target": stores}, names={NORM})
    assert {rank: list(sums) for rank, sums in some["target"].items()} == {0: [NORM], 1: [NORM]}


ALL_LAYERS = range(10)
DRESSES: dict[str, tuple[str, Dress]] = {
    "as they are": ("bf16", plain_dress),
    "fused queries": ("bf16", lambda m, t: dressed.fuse_queries(m, t, ALL_LAYERS)),
    "fused fp8 queries": ("fp8 block 64x32", lambda m, t: dressed.fuse_queries(m, t, {1})),
    "fused gates": ("fp8 channel", lambda m, t: dressed.fuse_gates(m, t, ALL_LAYERS)),
    "stacked experts": (
        "fp8 block 64x32",
        lambda m, t: dressed.stack_experts(m, t, {1}, as_engine=False),
    ),
    "stacked as the engine does": (
        "bf16",
        lambda m, t: dressed.stack_experts(m, t, {1}, as_engine=True),
    ),
    "an outer wrapper": ("bf16", lambda _m, t: dressed.renamed(t, dressed.outer_wrapper)),
    "an inner wrapper": ("bf16", lambda _m, t: dressed.renamed(t, dressed.inner_wrapper)),
    "an adapter": ("bf16", lambda _m, t: dressed.renamed(t, dressed.adapter)),
    "flat scales": ("fp8 channel", lambda _m, t: dressed.reshaped(t)),
}


@pytest.mark.parametrize("what", DRESSES)
def test_files_under_other_names_and_shapes_come_back_as_they_are(
    what: str, tmp_path: Path
) -> None:
    form, dress = DRESSES[what]
    _made, plan = plan_load(small_load(FORMS[form], tp=2, ep=2), tmp_path / "model", dress)
    stores = {rank: load_rank(plan, tmp_path / "model", rank) for rank in (0, 1)}
    found, reasons = live_checksums(gatherer(stores))
    assert found == dict(file_checksums(open_checkpoint(tmp_path / "model")))
    assert reasons == {}


def test_a_fused_indexer_that_is_fused_in_the_files_comes_back(tmp_path: Path) -> None:
    load = small_load(
        FORMS["bf16"], tp=2, config={**VARIANTS["v32-bf16"], "num_nextn_predict_layers": 0}
    )
    load = replace(load, asked=replace(load.asked, fuses_indexer=True))
    dress = partial(dressed.fuse_indexers, layers=ALL_LAYERS)
    _made, plan = plan_load(load, tmp_path / "model", dress)
    stores = {rank: load_rank(plan, tmp_path / "model", rank) for rank in (0, 1)}
    found, reasons = live_checksums(gatherer(stores))
    assert found == dict(file_checksums(open_checkpoint(tmp_path / "model")))
    assert reasons == {}
    assert any("wk_weights_proj" in name for name in found)


@pytest.mark.gpu
@pytest.mark.parametrize(("variant", "options"), [(BLOCK, None), ("v3-awq", WNA16)], ids=str)
def test_parameters_on_a_device_come_back_as_from_the_host(
    variant: str, options: Options | None, loads: Loads
) -> None:
    stores = {rank: loads.files.ready(variant, ONE_STAGE, rank, options, "cuda") for rank in (0, 1)}
    on_host = live_checksums(gatherer(loads.stores(variant, ONE_STAGE, options)))
    assert live_checksums(gatherer(stores)) == on_host
    assert on_host[0] == {name: loads.sums(variant)[name] for name in on_host[0]}
    flat_bytes(stores[1].parameters[O_PROJ if variant == BLOCK else NORM])[5] ^= 1
    assert live_checksums(gatherer(stores)) != on_host
