"""What may come in the buckets of an update, what it stands for, and which groups stay open."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest
from conftest import open_pack
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deepseek_tensors import Spec
from support.examples import edit
from support.golden_checkpoint import VARIANTS, golden_specs
from support.in_memory import in_memory

from loadscope.loader.arrivals import Admitted, ArrivalError, Arrivals, Expected
from loadscope.loader.checkpoint import Checkpoint, Tensor
from loadscope.loader.outcomes import outcome
from loadscope.loader.plan import Options, Plan, make_plan

LAYER = "model.layers.1."
ATTN = LAYER + "self_attn."
MLP = LAYER + "mlp."
DRAFT = "model.layers.3."
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa"
W13 = MLP + "experts.w13 expert 5"
# the odd rank has no legal cut (LS207), so nothing is ever loaded from it
LOADABLE = [variant for variant in VARIANTS if variant != "v3-fp8-block-oddq"]
# cache scales of an NVFP4 checkpoint's draft layer: the target ends before it, the draft has none
IN_NO_ROLE = ["model.layers.3.self_attn.[kv]_proj.[kv]_scale"]
SEVERAL = ["v32-fp8-block", "v3-nvfp4", "v3-w4afp8", "v3-awq", "v3-fp8-tensor"]


@cache
def checkpoint_of(variant: str) -> Checkpoint:
    return in_memory(VARIANTS[variant], golden_specs(variant))


def plans_of(checkpoint: Checkpoint, *, draft: bool, **options: Any) -> list[Plan]:
    roles = (False, True) if draft else (False,)
    plans = [make_plan(checkpoint, None, Options(draft=role, **options)) for role in roles]
    assert [plan.verdict for plan in plans] == ["pass"] * len(plans)
    return plans


@cache
def expected_of(variant: str, *, draft: bool = False) -> Expected:
    """What the roles of a golden checkpoint take; one that has nothing else is the draft's."""
    checkpoint = checkpoint_of(variant)
    if variant == "v3-fp8-block-mtponly":
        return Expected([make_plan(checkpoint, None, Options(draft=True))])
    has_draft = draft and checkpoint.config is not None
    return Expected(plans_of(checkpoint, draft=has_draft))


def started(variant: str, scope: Any = "full", *, draft: bool = False, **more: Any) -> Arrivals:
    return Arrivals(expected_of(variant, draft=draft), scope=scope, **more)


def some(variant: str, names: Iterable[str]) -> dict[str, Tensor]:
    tensors = checkpoint_of(variant).tensors
    return {name: tensors[name] for name in names}


def under(tensors: dict[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    return {rename(name): tensor for name, tensor in tensors.items()}


def like(dtype: str, *shape: int) -> Tensor:
    return Tensor(dtype, shape, 0, 0, 0)


def state_of(arrivals: Arrivals) -> tuple[Any, ...]:
    """Everything that can be asked."""
    return (
        arrivals.received,
        arrivals.received_bytes,
        arrivals.roles_touched,
        dict(arrivals.arrived),
        dict(arrivals.ignored),
        arrivals.missing(),
        arrivals.counts(),
        arrivals.open_count,
        {name: arrivals.covers(name) for name in arrivals.expected.tensors},
    )


def refused(arrivals: Arrivals, bucket: int, tensors: dict[str, Tensor]) -> ArrivalError:
    """The refusal of a bucket, which changes nothing."""
    before = state_of(arrivals)
    with pytest.raises(ArrivalError) as caught:
        arrivals.admit(bucket, tensors)
    assert state_of(arrivals) == before
    return caught.value


def members(variant: str, name: str, *, draft: bool = False) -> set[str]:
    (group,) = [g for g in expected_of(variant, draft=draft).groups if g.name == name]
    return set(group.members)


def weights(*modules: str, leaves: Sequence[str]) -> set[str]:
    return {f"{module}.{leaf}" for module in modules for leaf in leaves}


HALVES = (ATTN + "q_a_proj", ATTN + "kv_a_proj_with_mqa")
GATE_UP = (MLP + "experts.5.gate_proj", MLP + "experts.5.up_proj")
DOWN = (MLP + "experts.5.down_proj",)
SHARED = (MLP + "shared_experts.gate_proj", MLP + "shared_experts.up_proj")
BLOCK = ("weight", "weight_scale_inv")
CHANNEL = ("weight", "weight_scale")
TENSOR = ("weight", "weight_scale", "input_scale")
AWQ = ("qweight", "qzeros", "scales")
NVFP4 = ("weight", "weight_scale", "weight_scale_2", "input_scale")
INDEXER = ATTN + "indexer."

MODULES: list[tuple[str, str, set[str]]] = [
    ("v3-bf16", QKV_A, weights(*HALVES, leaves=["weight"])),
    ("v3-bf16", ATTN + "kv_b_proj", weights(ATTN + "kv_b_proj", leaves=["weight"])),
    ("v3-bf16", W13, weights(*GATE_UP, leaves=["weight"])),
    ("v3-bf16", MLP + "gate", {MLP + "gate.weight"}),
    ("v3-fp8-block", QKV_A, weights(*HALVES, leaves=BLOCK)),
    ("v3-fp8-block", ATTN + "kv_b_proj", weights(ATTN + "kv_b_proj", leaves=BLOCK)),
    ("v3-fp8-block", W13, weights(*GATE_UP, leaves=BLOCK)),
    ("v3-fp8-block", MLP + "experts.w2 expert 5", weights(*DOWN, leaves=BLOCK)),
    ("v3-fp8-block", MLP + "shared_experts.gate_up_proj", weights(*SHARED, leaves=BLOCK)),
    (
        "v32-fp8-block",
        INDEXER + "wk_weights_proj",
        {*weights(INDEXER + "wk", leaves=BLOCK), INDEXER + "weights_proj.weight"},
    ),
    ("v32-fp8-block", INDEXER + "k_norm", {INDEXER + "k_norm.weight"}),
    (
        "v32-bf16",
        INDEXER + "wk_weights_proj",
        weights(INDEXER + "wk", INDEXER + "weights_proj", leaves=["weight"]),
    ),
    ("v3-fp8-channel", QKV_A, weights(*HALVES, leaves=CHANNEL)),
    ("v3-fp8-tensor", QKV_A, weights(*HALVES, leaves=TENSOR)),
    ("v3-fp8-tensor", W13, weights(*GATE_UP, leaves=TENSOR)),
    ("v3-int8-channel", W13, weights(*GATE_UP, leaves=CHANNEL)),
    ("v3-int8-block", QKV_A, weights(*HALVES, leaves=BLOCK)),
    ("v3-awq", QKV_A, weights(*HALVES, leaves=AWQ)),
    ("v3-awq-marlin", W13, weights(*GATE_UP, leaves=AWQ)),
    ("v3-nvfp4", QKV_A, weights(*HALVES, leaves=["weight"])),
    ("v3-nvfp4", W13, weights(*GATE_UP, leaves=NVFP4)),
    ("v3-nvfp4", MLP + "experts.w2 expert 5", weights(*DOWN, leaves=NVFP4)),
    (
        "v3-w4afp8",
        W13,
        {
            *weights(*GATE_UP, leaves=BLOCK),
            MLP + "experts.5.w1.input_scale",
            MLP + "experts.5.w3.input_scale",
        },
    ),
    (
        "v3-w4afp8",
        MLP + "experts.w2 expert 5",
        {*weights(*DOWN, leaves=BLOCK), MLP + "experts.5.w2.input_scale"},
    ),
    ("v2lite-bf16", ATTN + "q_proj", {ATTN + "q_proj.weight"}),
    ("v2lite-bf16", ATTN + "kv_a_proj_with_mqa", {ATTN + "kv_a_proj_with_mqa.weight"}),
]  # fmt: skip


@pytest.mark.parametrize(("variant", "group", "names"), MODULES)
def test_a_group_is_what_one_module_is_made_of(variant: str, group: str, names: set[str]) -> None:
    assert members(variant, group) == names


def test_the_draft_has_groups_of_its_own() -> None:
    group = members("v3-fp8-block", "model.decoder.mlp.experts.w13 expert 5", draft=True)
    gate_up = [DRAFT + f"mlp.experts.5.{half}" for half in ("gate_proj", "up_proj")]
    assert group == weights(*gate_up, leaves=BLOCK)


@pytest.mark.parametrize("variant", LOADABLE)
def test_expected_is_what_reaches_a_parameter_of_any_role(variant: str) -> None:
    expected = expected_of(variant, draft=variant not in ("v2lite-bf16", "v3-fp8-block-mtponly"))
    for plan in expected.plans:
        loaded = {
            name
            for name in plan.tensors
            if outcome(plan, *(plan.find(name) or pytest.fail(name)))[0] in ("loaded", "fused")
        }
        assert loaded == {name for name, roles in expected.roles.items() if plan.role in roles}
    tensors = checkpoint_of(variant).tensors
    assert expected.tensors == {name: tensors[name] for name in expected.roles}
    assert expected.count == len(expected.roles)
    assert expected.bytes == sum(t.stop - t.start for t in expected.tensors.values())


@pytest.mark.parametrize("variant", LOADABLE)
def test_every_expected_tensor_is_in_one_group(variant: str) -> None:
    expected = expected_of(variant)
    listed = [name for group in expected.groups for name in group.members]
    assert sorted(listed) == sorted(expected.tensors)
    assert all(name in expected.groups[n].members for name, n in expected.group_of.items())
    assert len({group.name for group in expected.groups if not group.is_trivial}) == sum(
        not group.is_trivial for group in expected.groups
    )


def test_plans_must_be_of_one_role_each_and_place_something() -> None:
    checkpoint = checkpoint_of("v3-bf16")
    target = make_plan(checkpoint)
    with pytest.raises(ValueError, match="one plan of each role"):
        Expected([target, target])
    with pytest.raises(ValueError, match="one plan of each role"):
        Expected([])
    with pytest.raises(ValueError, match="places nothing"):
        Expected([make_plan(edit(checkpoint, num_hidden_layers="three"))])


def test_a_tensor_of_all_experts_joins_their_groups() -> None:
    stacked = stacked_codes("v3-fp8-block")
    groups = {g.name: g.members for g in Expected(plans_of(stacked, draft=False)).groups}
    scales = [
        MLP + f"experts.{expert}.{half}.weight_scale_inv"
        for expert in range(8)
        for half in ("gate_proj", "up_proj")
    ]
    assert set(groups[MLP + "experts.w13"]) == {MLP + "experts.gate_up_proj", *scales}
    assert not any(name.startswith(MLP + "experts.w13 expert") for name in groups)
    assert "model.layers.2.mlp.experts.w13 expert 5" in groups


def stacked_codes(variant: str) -> Checkpoint:
    """Layer 1 has one tensor of all gates and ups; their scales stand apart."""
    checkpoint = checkpoint_of(variant)
    codes = [
        MLP + f"experts.{expert}.{half}.weight"
        for expert in range(8)
        for half in ("gate_proj", "up_proj")
    ]
    dtype, (rows, columns) = checkpoint.tensors[codes[0]][:2]
    stacked = {MLP + "experts.gate_up_proj": (dtype, (8, 2 * rows, columns))}
    return edit(checkpoint, drop=codes, add=stacked)


@pytest.mark.parametrize("variant", SEVERAL)
def test_cut_anywhere_the_groups_that_are_cut_are_open_until_the_rest_comes(variant: str) -> None:
    names = list(checkpoint_of(variant).tensors)
    groups = [g for g in expected_of(variant).groups if not g.is_trivial]
    total = len(groups)
    for cut in range(1, len(names)):
        first, second = names[:cut], names[cut:]
        arrivals = started(variant)
        begun = arrivals.admit(0, some(variant, first))
        parted = {g.name for g in groups if 0 < len(set(first) & set(g.members)) < len(g.members)}
        assert {row["group"] for row in arrivals.open_groups()} == set(begun.opened) == parted
        rest = arrivals.admit(1, some(variant, second))
        assert set(rest.completed) >= parted
        assert arrivals.counts() == {
            "total": total, "complete": total, "split_across_buckets": len(parted), "open": [],
        }  # fmt: skip
        assert (arrivals.missing(), arrivals.open_count) == ([], 0)
        assert arrivals.received == arrivals.expected.count


@st.composite
def buckets(draw: st.DrawFn, variant: str) -> list[list[str]]:
    """All names of a checkpoint in any order, in any number of buckets."""
    names = draw(st.permutations(sorted(checkpoint_of(variant).tensors)))
    cuts = draw(st.lists(st.integers(0, len(names)), max_size=12))
    edges = [0, *sorted(cuts), len(names)]
    return [list(names[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("variant", SEVERAL)
@pytest.mark.parametrize("scope", ["full", "partial"])
@given(data=st.data())
@settings(max_examples=25)
def test_all_names_in_any_order_and_buckets_leave_nothing_open(
    variant: str, scope: str, data: st.DataObject
) -> None:
    arrivals = started(variant, scope, draft=True, ignore=IN_NO_ROLE)
    for number, names in enumerate(data.draw(buckets(variant))):
        arrivals.admit(number, some(variant, names))
    expected = arrivals.expected
    assert (arrivals.open_groups(), arrivals.missing()) == ([], [])
    assert (arrivals.received, arrivals.received_bytes) == (expected.count, expected.bytes)
    counts = arrivals.counts()
    assert counts["total"] == counts["complete"] > 0
    assert {name for n in expected.tensors for name in arrivals.covers(n)} == set(expected.tensors)


@pytest.mark.parametrize("variant", SEVERAL)
@pytest.mark.parametrize("scope", ["full", "partial"])
@given(data=st.data())
@settings(max_examples=25)
def test_a_member_that_does_not_come_leaves_its_group_open_and_no_other(
    variant: str, scope: str, data: st.DataObject
) -> None:
    expected = expected_of(variant, draft=True)
    groups = [group for group in expected.groups if not group.is_trivial]
    group = data.draw(st.sampled_from(groups))
    lost = data.draw(st.sampled_from(group.members))
    arrivals = Arrivals(expected, scope=scope, ignore=IN_NO_ROLE)
    cut = data.draw(buckets(variant))
    for number, names in enumerate(cut):
        arrivals.admit(number, some(variant, [name for name in names if name != lost]))
    others = set(group.members) - {lost}
    since = next(n for n, names in enumerate(cut) if others & set(names))
    row = {
        "group": group.name,
        "have": sorted(others),
        "waits_for": [lost],
        "since_bucket": since,
    }
    assert arrivals.open_groups() == [row]
    assert arrivals.missing() == ([lost] if scope == "full" else [])
    assert arrivals.counts()["complete"] == len(groups) - 1


def test_a_bucket_tells_which_groups_it_opened_and_completed() -> None:
    variant, kv_b = "v3-fp8-block", ATTN + "kv_b_proj"
    scale, norm = kv_b + ".weight_scale_inv", ATTN + "kv_a_layernorm.weight"
    arrivals = started(variant, "partial")
    first = arrivals.admit(3, some(variant, [scale, norm]))
    assert first == Admitted(3, (scale, norm), {}, {"target": (scale, norm)}, (kv_b,), ())
    assert first.names == (scale, norm)
    second = arrivals.admit(7, some(variant, [kv_b + ".weight", *HALVES_OF_O]))
    assert second.opened == ()
    assert second.completed == (kv_b, ATTN + "o_proj")
    assert arrivals.counts() == {
        "total": 2, "complete": 2, "split_across_buckets": 1, "open": [],
    }  # fmt: skip
    assert arrivals.received == 5
    assert arrivals.arrived[scale] == 3


HALVES_OF_O = [ATTN + "o_proj.weight", ATTN + "o_proj.weight_scale_inv"]


def test_open_groups_are_told_oldest_first_and_no_more_than_asked_for() -> None:
    variant = "v3-fp8-block"
    arrivals = started(variant, "partial")
    for number, module in enumerate(["o_proj", "kv_b_proj", "q_b_proj"]):
        arrivals.admit(number, some(variant, [f"{ATTN}{module}.weight"]))
    named = [row["group"] for row in arrivals.open_groups(2)]
    assert named == [ATTN + "o_proj", ATTN + "kv_b_proj"]
    assert arrivals.counts(1)["open"] == arrivals.open_groups(1)
    assert (arrivals.open_count, arrivals.counts(1)["total"]) == (3, 3)


def test_a_partial_update_has_the_groups_that_have_begun_and_a_full_one_has_all() -> None:
    variant = "v3-fp8-block"
    counts = {}
    for scope in ("full", "partial"):
        arrivals = started(variant, scope)
        arrivals.admit(0, some(variant, [*HALVES_OF_O, ATTN + "kv_b_proj.weight"]))
        counts[scope] = arrivals.counts()
        assert counts[scope]["complete"] == 1
    every = sum(not group.is_trivial for group in expected_of(variant).groups)
    assert (counts["full"]["total"], counts["partial"]["total"]) == (every, 2)
    assert [row["group"] for row in counts["full"]["open"]] == [ATTN + "kv_b_proj"]
    assert counts["full"]["open"] == counts["partial"]["open"]


def test_a_full_update_names_what_is_missing() -> None:
    variant = "v3-fp8-block"
    arrivals = started(variant)
    gone = sorted(members(variant, W13) | {"model.norm.weight"})
    kept = [name for name in checkpoint_of(variant).tensors if name not in gone]
    arrivals.admit(0, some(variant, kept))
    assert (arrivals.missing(), arrivals.open_groups()) == (gone, [])


# what is refused


def test_a_name_that_no_rule_knows_is_refused_with_the_nearest_names() -> None:
    variant, name = "v3-fp8-block", ATTN + "kv_bb_proj.weight"
    arrivals = started(variant, draft=True)
    bucket = {**some(variant, HALVES_OF_O), name: like("F8_E4M3", 3)}
    error = refused(arrivals, 4, bucket)
    assert (error.code, error.count) == ("unknown_tensor", 1)
    (row,) = error.rows
    assert (row["name"], row["bucket"]) == (name, 4)
    assert row["nearest"][0] == ATTN + "kv_b_proj.weight"
    assert "bucket 4" in error.message
    assert name in error.message
    assert row["nearest"][0] in error.message
    assert str(error) == error.message
    assert error.fix


def test_suggestions_keep_layer_and_expert() -> None:
    name = MLP + "experts.5.gate_projj.weight"
    error = refused(started("v3-bf16"), 0, {name: like("BF16", 3)})
    assert error.rows[0]["nearest"][0] == MLP + "experts.5.gate_proj.weight"


def test_many_unknown_names_make_few_rows_and_one_count() -> None:
    names = {f"model.layers.{n % 3}.thing_{n}.weight": like("BF16", 3) for n in range(70)}
    error = refused(started("v3-bf16"), 0, names)
    assert (error.count, len(error.rows)) == (70, 50)
    assert "69 more" in error.message


WRONG_SHAPES = {
    "rows": lambda shape: (shape[0] - 1, *shape[1:]),
    "transposed": lambda shape: shape[::-1],
    "one dim more": lambda shape: (1, *shape),
    "empty": lambda shape: (0, *shape[1:]),
}


@pytest.mark.parametrize("what", WRONG_SHAPES)
def test_a_wrong_shape_is_refused_in_words(what: str) -> None:
    variant, name = "v3-fp8-block", ATTN + "q_b_proj.weight"
    planned = checkpoint_of(variant).tensors[name]
    shape = WRONG_SHAPES[what](planned.shape)
    bucket = {**some(variant, HALVES_OF_O), name: like(planned.dtype, *shape)}
    error = refused(started(variant, draft=True), 9, bucket)
    row = {"name": name, "expected": str(list(planned.shape)), "got": str(list(shape)), "bucket": 9}
    assert (error.code, error.rows) == ("shape_mismatch", [row])
    assert f"{name} has shape {list(shape)}; expected {list(planned.shape)}" in error.message


def test_a_wrong_dtype_is_refused_with_what_decides_it() -> None:
    variant, name = "v3-fp8-block", ATTN + "q_b_proj.weight"
    shape = checkpoint_of(variant).tensors[name].shape
    error = refused(started(variant), 2, {name: like("BF16", *shape)})
    row = {"name": name, "expected": "F8_E4M3", "got": "BF16", "bucket": 2}
    assert (error.code, error.rows) == ("dtype_mismatch", [row])
    assert "quantization_config.quant_method = fp8" in error.message
    other = refused(started(variant), 2, {name: like("F8_E5M2", *shape)})
    assert (other.code, other.rows[0]["got"]) == ("dtype_mismatch", "F8_E5M2")


def test_a_dtype_that_the_plan_casts_is_taken() -> None:
    name = MLP + "gate.weight"
    arrivals = started("v3-bf16", "partial")
    arrivals.admit(0, {name: checkpoint_of("v3-bf16").tensors[name]._replace(dtype="F32")})
    assert (arrivals.received, arrivals.covers(name)) == (1, (name,))


def test_of_several_faults_the_names_are_told_first() -> None:
    variant, name = "v3-bf16", ATTN + "o_proj.weight"
    bucket = {
        name: like("BF16", 3),
        "model.thing": like("BF16", 3),
        **some(variant, ["lm_head.weight"]),
    }
    error = refused(started(variant), 0, bucket)
    assert (error.code, error.count) == ("unknown_tensor", 1)


def test_a_refused_bucket_may_come_again_in_the_right_form() -> None:
    variant, name = "v3-bf16", ATTN + "o_proj.weight"
    arrivals = started(variant, "partial")
    refused(arrivals, 0, {**some(variant, ["lm_head.weight"]), name: like("BF16", 3)})
    arrivals.admit(0, some(variant, ["lm_head.weight", name]))
    assert arrivals.received == 2


def test_what_came_in_another_bucket_is_refused() -> None:
    variant = "v3-fp8-block"
    arrivals = started(variant, draft=True)
    arrivals.admit(5, some(variant, [*HALVES_OF_O, "lm_head.weight"]))
    error = refused(arrivals, 6, some(variant, ["model.norm.weight", HALVES_OF_O[1]]))
    assert error.code == "duplicate_tensor"
    assert [(row["name"], row["bucket"]) for row in error.rows] == [(HALVES_OF_O[1], 6)]
    assert "bucket 5" in error.message


def test_an_ignored_tensor_comes_once_too() -> None:
    name = ATTN + "rotary_emb.inv_freq"
    arrivals = started("v3-bf16")
    arrivals.admit(0, {name: like("F32", 32)})
    assert refused(arrivals, 1, {name: like("F32", 32)}).code == "duplicate_tensor"


# what is ignored

NO_TENSOR = like("F32", 7)
IGNORED = [
    ("v3-bf16", ATTN + "rotary_emb.inv_freq", "rotary", False),
    ("v3-bf16", DRAFT + "self_attn.rotary_emb.inv_freq", "rotary", True),
    ("v3-bf16", DRAFT + "eh_proj.weight", "beyond_model", False),
    ("v3-bf16", DRAFT + "some.thing", "beyond_model", False),
    ("v3-bf16", "model.layers.9.self_attn.o_proj.weight", "beyond_model", True),
    ("v3-bf16", DRAFT + "embed_tokens.weight", "shared_with_target", True),
    ("v3-bf16", ATTN + "o_proj.bias", "bias_absent", False),
    ("v3-fp8-block", ATTN + "o_proj.input_scale", "input_scale_unused", True),
    ("v3-fp8-block-mtponly", "model.norm.weight", "not_draft_layer", False),
]


@pytest.mark.parametrize(("variant", "name", "reason", "draft"), IGNORED)
def test_what_a_rule_skips_is_counted_under_its_reason(
    variant: str, name: str, reason: str, draft: bool
) -> None:
    arrivals = started(variant, draft=draft)
    admitted = arrivals.admit(0, {name: NO_TENSOR})
    assert (admitted.accepted, admitted.ignored, admitted.names) == ((), {name: reason}, (name,))
    assert (arrivals.ignored, arrivals.received) == ({reason: 1}, 0)
    assert (arrivals.roles_touched, arrivals.covers(name)) == ((), ())


@pytest.mark.parametrize("name", [DRAFT + "some.thing", ATTN + "some.thing", "model.thing"])
def test_a_name_is_unknown_if_the_role_of_its_layer_does_not_know_it(name: str) -> None:
    assert refused(started("v3-bf16", draft=True), 0, {name: NO_TENSOR}).code == "unknown_tensor"


def test_a_name_without_destination_may_come_if_the_loaded_files_have_it() -> None:
    """Their plan has told of it; a trainer that sends the whole checkpoint must not fail on it."""
    variant, name = "v3-nvfp4", DRAFT + "self_attn.k_proj.k_scale"
    arrivals = started(variant, draft=True)
    arrivals.admit(0, some(variant, [name]))
    assert arrivals.ignored == {"no_destination": 1}
    assert arrivals.received == 0
    other = {name.replace("k_scale", "k_scales"): next(iter(some(variant, [name]).values()))}
    assert refused(arrivals, 1, other).code == "unknown_tensor"


def test_unknown_names_may_be_ignored_by_a_pattern() -> None:
    variant = "v3-bf16"
    arrivals = started(variant, ignore=["*.lora_?.*", "*thing*"])
    bucket = {ATTN + "o_proj.lora_A.weight": NO_TENSOR, "model.thing": NO_TENSOR}
    arrivals.admit(0, {**bucket, **some(variant, ["lm_head.weight"])})
    arrivals.admit(1, {ATTN + "o_proj.lora_B.weight": NO_TENSOR})
    assert arrivals.ignored == {"*.lora_?.*": 2, "*thing*": 1}
    assert arrivals.received == 1


def test_a_pattern_ignores_nothing_that_a_rule_knows() -> None:
    variant, name = "v3-bf16", ATTN + "o_proj.weight"
    arrivals = started(variant, ignore=["*"])
    assert refused(arrivals, 0, {name: like("BF16", 3)}).code == "shape_mismatch"
    arrivals.admit(0, some(variant, [name]))
    assert (arrivals.received, arrivals.ignored) == (1, {})


# roles


def test_each_tensor_goes_to_the_role_that_takes_it() -> None:
    variant = "v3-fp8-block"
    arrivals = started(variant, draft=True)
    own, drafts = ATTN + "o_proj.weight", DRAFT + "eh_proj.weight"
    only = arrivals.admit(0, some(variant, [drafts]))
    assert (only.roles, arrivals.roles_touched) == ({"draft": (drafts,)}, ("draft",))
    both = arrivals.admit(1, some(variant, [own, DRAFT + "enorm.weight"]))
    assert both.roles == {"target": (own,), "draft": (DRAFT + "enorm.weight",)}
    assert arrivals.roles_touched == ("target", "draft")


def test_a_tensor_that_both_roles_take_is_given_to_both() -> None:
    """Layer 0 is the model's one layer and, as the file marks it, the draft's."""
    tensors = dict(checkpoint_of("v3-fp8-block-mtponly").tensors)
    tops = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    whole = some("v3-fp8-block", tops) | tensors
    base = in_memory(
        VARIANTS["v3-fp8-block-mtponly"],
        [Spec(name, t.dtype, t.shape) for name, t in whole.items()],
    )
    expected = Expected(plans_of(base, draft=True))
    o_proj = "model.layers.0.self_attn.o_proj"
    (both,) = [g for g in expected.groups if o_proj + ".weight" in g.members]
    assert both.name == f"model.decoder.self_attn.o_proj + {o_proj}"
    arrivals = Arrivals(expected, scope="partial")
    names = tuple(f"{o_proj}.{leaf}" for leaf in BLOCK)
    admitted = arrivals.admit(0, {name: base.tensors[name] for name in names})
    assert admitted.roles == {"target": names, "draft": names}
    assert (arrivals.received, admitted.completed) == (2, (both.name,))


def test_without_the_draft_its_tensors_are_beyond_the_model() -> None:
    variant = "v3-fp8-block"
    arrivals = started(variant)
    arrivals.admit(0, checkpoint_of(variant).tensors)
    drafts = [name for name in checkpoint_of(variant).tensors if name.startswith(DRAFT)]
    assert arrivals.ignored == {"beyond_model": len(drafts)}
    assert (arrivals.missing(), arrivals.roles_touched) == ([], ("target",))


# other names

SPELLINGS: dict[str, Callable[[str], str]] = {
    "wrapper": lambda name: f"language_model.{name}",
    "inner wrapper": lambda name: name.replace("model.", "model.language_model.", 1),
    "adapter": lambda name: name.replace("_proj.", "_proj.base_layer."),
    "scale": lambda name: name.replace("weight_scale_inv", "weight_scale"),
}


@pytest.mark.parametrize("how", SPELLINGS)
def test_other_spellings_stand_for_the_same_tensors(how: str) -> None:
    variant, rename = "v3-fp8-block", SPELLINGS[how]
    arrivals = started(variant, draft=True)
    tensors = checkpoint_of(variant).tensors
    kept = {
        name: t for name, t in tensors.items() if how != "inner wrapper" or "lm_head" not in name
    }
    arrivals.admit(0, under(kept, rename))
    assert arrivals.open_groups() == []
    assert set(arrivals.missing()) == set(tensors) - set(kept)
    assert arrivals.received_bytes == sum(
        t.stop - t.start for name, t in kept.items() if name in arrivals.expected.tensors
    )
    for name in kept.keys() & arrivals.expected.tensors.keys():
        assert arrivals.covers(rename(name)) == (name,)


def test_the_same_tensor_under_two_spellings_is_a_duplicate() -> None:
    variant, scale = "v3-fp8-block", ATTN + "o_proj.weight_scale"
    tensor = checkpoint_of(variant).tensors[scale + "_inv"]
    both = {scale: tensor, scale + "_inv": tensor}
    error = refused(started(variant), 0, both)
    assert (error.code, error.rows[0]["name"]) == ("duplicate_tensor", scale + "_inv")
    assert f"{scale} came in bucket 0" in error.message
    arrivals = started(variant)
    arrivals.admit(1, {scale: tensor})
    assert "bucket 1" in refused(arrivals, 2, {scale + "_inv": tensor}).message
    assert refused(arrivals, 2, {"language_model." + scale: tensor}).code == "duplicate_tensor"


def halves(variant: str, *names: str) -> tuple[str, int, int]:
    """Dtype, rows of all together, and columns."""
    tensors = [checkpoint_of(variant).tensors[name] for name in names]
    return tensors[0].dtype, sum(t.shape[0] for t in tensors), tensors[0].shape[1]


def fused_forms(variant: str) -> list[tuple[str, Tensor, set[str]]]:
    """A tensor that is fused already, and the tensors of the files that it stands for."""
    found = []
    for leaf in ("weight", "weight_scale_inv"):
        suffix = leaf.replace("weight", "")
        for fused, parts in ((QKV_A, HALVES), (MLP + "shared_experts.gate_up_proj", SHARED)):
            names = [f"{part}.{leaf}" for part in parts]
            dtype, rows, columns = halves(variant, *names)
            found.append((f"{fused}.{leaf}", like(dtype, rows, columns), set(names)))
        for stacked, parts in (
            ("w13_" + leaf, ("gate_proj", "up_proj")),
            ("gate_up_proj" + suffix, ("gate_proj", "up_proj")),
            ("w2_" + leaf, ("down_proj",)),
            ("down_proj" + suffix, ("down_proj",)),
        ):
            names = [f"{MLP}experts.{e}.{part}.{leaf}" for e in range(8) for part in parts]
            dtype, rows, columns = halves(variant, *names[: len(parts)])
            found.append((MLP + "experts." + stacked, like(dtype, 8, rows, columns), set(names)))
    return found


@pytest.mark.parametrize("form", range(12))
def test_a_fused_tensor_stands_for_all_its_parts(form: int) -> None:
    variant = "v32-fp8-block"
    name, tensor, parts = fused_forms(variant)[form]
    arrivals = started(variant, draft=True)
    admitted = arrivals.admit(0, {name: tensor})
    assert admitted.accepted == (name,)
    assert set(arrivals.covers(name)) == parts
    assert arrivals.received == len(parts)
    open_names = {name for row in arrivals.open_groups() for name in row["waits_for"]}
    assert open_names == {
        part.replace("weight_scale_inv", "weight") if "scale" in part else part + "_scale_inv"
        for part in parts
    }
    part = min(parts)
    error = refused(arrivals, 1, some(variant, [part]))
    assert error.code == "duplicate_tensor"
    assert f"{name} came in bucket 0" in error.message


@pytest.mark.parametrize("form", range(12))
def test_a_part_that_came_is_not_brought_again_by_the_fused_tensor(form: int) -> None:
    variant = "v32-fp8-block"
    name, tensor, parts = fused_forms(variant)[form]
    arrivals = started(variant)
    arrivals.admit(0, some(variant, [min(parts)]))
    error = refused(arrivals, 1, {name: tensor})
    assert error.code == "duplicate_tensor"
    assert f"{min(parts)} came in bucket 0" in error.message


@given(data=st.data())
@settings(max_examples=50)
def test_fused_tensors_and_parts_may_come_mixed_in_any_order(data: st.DataObject) -> None:
    variant = "v32-fp8-block"
    tensors = dict(checkpoint_of(variant).tensors)
    stacked = {MLP + "experts." + kind for kind in ("gate_up_proj", "gate_up_proj_scale_inv")}
    stacked |= {MLP + "experts." + kind for kind in ("down_proj", "down_proj_scale_inv")}
    for name, tensor, parts in fused_forms(variant):
        if name not in stacked and data.draw(st.booleans()):
            tensors = {n: t for n, t in tensors.items() if n not in parts} | {name: tensor}
    order = data.draw(st.permutations(sorted(tensors)))
    cut = data.draw(st.integers(0, len(order)))
    arrivals = started(variant, draft=True)
    for number, names in enumerate((order[:cut], order[cut:])):
        arrivals.admit(number, {name: tensors[name] for name in names})
    assert (arrivals.open_groups(), arrivals.missing()) == ([], [])
    assert arrivals.received_bytes == arrivals.expected.bytes
    replaced = [loaded for name in tensors for loaded in arrivals.covers(name)]
    assert sorted(replaced) == sorted(arrivals.expected.tensors)


def alternatives(variant: str, prefix: str) -> dict[str, Tensor]:
    """Every other name that brings whole leaves of a module of layer 1."""
    (plan,) = expected_of(variant).plans
    named = {source.name.replace("{layer}", "1"): source for source in plan.sources}
    return {
        name: like(source.dtype, *source.shape)
        for name, source in named.items()
        if source.is_alternative and name.startswith(prefix)
    }


FORMS = [
    ("v3-fp8-tensor", QKV_A + ".", QKV_A, 6),
    ("v3-fp8-tensor", MLP + "experts.w13_", MLP + "experts.w13 expert", 6),
    ("v3-fp8-channel", QKV_A + ".", QKV_A, 4),
    ("v3-int8-block", MLP + "experts.w2_", MLP + "experts.w2 expert", 2),
    ("v3-awq-marlin", QKV_A + ".", QKV_A, 6),
    ("v3-awq-marlin", MLP + "experts.w13_", MLP + "experts.w13 expert", 6),
    ("v3-nvfp4", MLP + "experts.w13_", MLP + "experts.w13 expert", 8),
    ("v3-nvfp4", MLP + "shared_experts.gate_up_proj.", MLP + "shared_experts.gate_up_proj", 8),
]


@pytest.mark.parametrize(("variant", "prefix", "group", "size"), FORMS)
def test_fused_leaves_of_every_format_make_their_groups_whole(
    variant: str, prefix: str, group: str, size: int
) -> None:
    forms = alternatives(variant, prefix)
    arrivals = started(variant, "partial")
    for number, (name, tensor) in enumerate(forms.items()):
        arrivals.admit(number, {name: tensor})
    groups = [g for g in arrivals.expected.groups if g.name.startswith(group) and LAYER in g.name]
    assert [len(g.members) for g in groups] == [size] * len(groups)
    assert arrivals.received == sum(len(g.members) for g in groups)
    assert arrivals.counts() == {
        "total": len(groups), "complete": len(groups), "split_across_buckets": len(groups),
        "open": [],
    }  # fmt: skip


def test_stacked_experts_wait_for_scales_that_have_no_stacked_name() -> None:
    arrivals = started("v3-w4afp8", "partial")
    arrivals.admit(0, alternatives("v3-w4afp8", MLP + "experts.w13_"))
    waiting = {name for row in arrivals.open_groups() for name in row["waits_for"]}
    assert waiting == {
        MLP + f"experts.{expert}.{half}.input_scale" for expert in range(8) for half in ("w1", "w3")
    }


def test_two_fused_forms_of_one_module_are_duplicates() -> None:
    forms = {name: tensor for name, tensor, _parts in fused_forms("v32-fp8-block")}
    arrivals = started("v32-fp8-block")
    arrivals.admit(0, {MLP + "experts.w13_weight": forms[MLP + "experts.w13_weight"]})
    fused = MLP + "experts.gate_up_proj"
    assert refused(arrivals, 1, {fused: forms[fused]}).code == "duplicate_tensor"


def test_a_fused_tensor_in_floats_stands_for_weight_and_scale() -> None:
    variant = "v32-fp8-block"
    expected = weights(INDEXER + "wk", leaves=BLOCK) | {INDEXER + "weights_proj.weight"}
    fused = INDEXER + "wk_weights_proj.weight"
    arrivals = started(variant, "partial")
    arrivals.admit(0, {fused: like("BF16", 132, 256)})
    assert set(arrivals.covers(fused)) == expected
    assert arrivals.counts() == {
        "total": 1, "complete": 1, "split_across_buckets": 0, "open": [],
    }  # fmt: skip


def test_a_scale_beside_the_floats_that_make_it_idle_is_not_counted_twice() -> None:
    """It fills nothing, so it is no duplicate; the plan of what came says what is wrong with it."""
    variant, scale = "v32-fp8-block", INDEXER + "wk.weight_scale_inv"
    floats = {INDEXER + "wk_weights_proj.weight": like("BF16", 132, 256)}
    for buckets in ((floats, some(variant, [scale])), (some(variant, [scale]), floats)):
        arrivals = started(variant, "partial")
        for number, tensors in enumerate(buckets):
            arrivals.admit(number, tensors)
        whole = some(variant, members(variant, INDEXER + "wk_weights_proj"))
        assert arrivals.received == len(whole)
        assert arrivals.received_bytes == sum(t.stop - t.start for t in whole.values())
        assert arrivals.counts()["complete"] == 1


def test_second_names_of_activation_scales_stand_for_the_first() -> None:
    variant = "v3-w4afp8"
    w1, w3 = MLP + "experts.5.w1.input_scale", MLP + "experts.5.w3.input_scale"
    gate, up = MLP + "experts.5.gate_proj.input_scale", MLP + "experts.5.up_proj.input_scale"
    arrivals = started(variant)
    arrivals.admit(0, {up: checkpoint_of(variant).tensors[w3]})
    assert arrivals.covers(up) == (w3,)
    arrivals.admit(1, {gate: checkpoint_of(variant).tensors[w1]})
    assert arrivals.covers(gate) == (w1,)
    assert refused(arrivals, 2, some(variant, [w3])).code == "duplicate_tensor"


@cache
def fused_base(variant: str) -> Checkpoint:
    """The files hold the fused tensors of layer 1 instead of their parts."""
    forms = fused_forms(variant)
    taken = [form for form in forms if "gate_up_proj" not in form[0] or "shared" in form[0]]
    taken = [form for form in taken if "experts.down_proj" not in form[0]]
    drop = {part for _name, _tensor, parts in taken for part in parts}
    add = {name: (tensor.dtype, tensor.shape) for name, tensor, _parts in taken}
    return edit(checkpoint_of(variant), drop=drop, add=add)


def test_parts_stand_for_a_fused_tensor_of_the_files_once_all_came() -> None:
    variant = "v32-fp8-block"
    arrivals = Arrivals(Expected(plans_of(fused_base(variant), draft=False)), scope="partial")
    fused = [QKV_A + ".weight", QKV_A + ".weight_scale_inv"]
    q_a, kv_a = (weights(half, leaves=BLOCK) for half in HALVES)
    arrivals.admit(0, some(variant, q_a))
    assert arrivals.received == 0
    row = {"group": QKV_A, "have": [], "waits_for": fused, "since_bucket": 0}
    assert arrivals.open_groups() == [row]
    arrivals.admit(1, some(variant, kv_a))
    assert (arrivals.received, arrivals.open_groups()) == (2, [])
    for half in HALVES:
        assert arrivals.covers(half + ".weight") == (fused[0],)
        assert arrivals.covers(half + ".weight_scale_inv") == (fused[1],)
    assert arrivals.counts()["split_across_buckets"] == 1


def test_experts_stand_for_the_stacked_tensor_of_the_files_once_all_came() -> None:
    variant = "v32-fp8-block"
    arrivals = Arrivals(Expected(plans_of(fused_base(variant), draft=False)), scope="full")
    parts = [MLP + f"experts.{e}.{half}_proj.weight" for e in range(8) for half in ("gate", "up")]
    arrivals.admit(0, some(variant, parts[:-1]))
    assert arrivals.open_count == 1
    assert MLP + "experts.w13_weight" in arrivals.missing()
    error = refused(arrivals, 1, {MLP + "experts.w13_weight": like("F8_E4M3", 8, 512, 256)})
    assert error.code == "duplicate_tensor"
    arrivals.admit(1, some(variant, parts[-1:]))
    assert MLP + "experts.w13_weight" not in arrivals.missing()
    assert arrivals.covers(parts[0]) == (MLP + "experts.w13_weight",)


def test_a_tensor_in_part_that_is_alone_in_its_group_is_open_too() -> None:
    variant = "v3-bf16"
    fused = MLP + "shared_experts.gate_up_proj"
    parts = [f"{part}.weight" for part in SHARED]
    dtype, rows, columns = halves(variant, *parts)
    base = edit(
        checkpoint_of(variant), drop=parts, add={fused + ".weight": (dtype, (rows, columns))}
    )
    arrivals = Arrivals(Expected(plans_of(base, draft=False)), scope="partial")
    arrivals.admit(0, some(variant, parts[:1]))
    counts = arrivals.counts()
    assert [row["group"] for row in counts["open"]] == [fused]
    assert (counts["total"], counts["complete"]) == (1, 0)
    arrivals.admit(1, some(variant, parts[1:]))
    assert arrivals.counts() == {
        "total": 0, "complete": 0, "split_across_buckets": 0, "open": [],
    }  # fmt: skip


def test_scalars_that_the_files_lack_are_taken_and_stand_for_nothing() -> None:
    name = ATTN + "attn_mqa.k_scale"
    arrivals = started("v3-fp8-block", "partial")
    admitted = arrivals.admit(0, {name: like("F32")})
    assert (admitted.accepted, arrivals.covers(name), arrivals.received) == ((name,), (), 0)
    again = refused(arrivals, 1, {ATTN + "k_proj.k_scale": like("F32")})
    assert again.code == "duplicate_tensor"


def test_a_fused_shared_expert_is_one_more_expert() -> None:
    variant = "v3-fp8-block"
    plans = plans_of(checkpoint_of(variant), draft=False, fuse_shared_experts=True)
    expected = Expected(plans)
    groups = {group.name: set(group.members) for group in expected.groups}
    assert groups[MLP + "experts.w13 expert 8"] == weights(*SHARED, leaves=BLOCK)
    arrivals = Arrivals(expected, scope="partial")
    name, tensor, parts = fused_forms(variant)[2]
    arrivals.admit(0, {name: tensor})
    assert set(arrivals.covers(name)) == parts
    arrivals.admit(1, some(variant, weights(*SHARED, leaves=BLOCK)))
    assert arrivals.counts()["complete"] == 1


def test_all_of_v3_in_one_bucket() -> None:
    checkpoint = open_pack("deepseek-v3")
    expected = Expected(plans_of(checkpoint, draft=True))
    arrivals = Arrivals(expected, scope="full")
    admitted = arrivals.admit(0, checkpoint.tensors)
    assert (expected.count, arrivals.received) == (91_989, 91_989)
    assert arrivals.ignored == {"shared_with_target": 2}
    assert (arrivals.missing(), arrivals.open_count) == ([], 0)
    assert {role: len(names) for role, names in admitted.roles.items()} == {
        "target": 90_427,
        "draft": 1_562,
    }
    counts = arrivals.counts()
    assert counts["total"] == counts["complete"] == len(admitted.completed) == 30_580
