"""The proof notices one wrong tensor of any kind, names it, and counts what it costs.

Each name pattern of each published checkpoint is changed, target and draft, in a copy with fewer
layers and experts (support/reduced.py says why that loses nothing): a plan takes milliseconds.
"""

from random import Random

import pytest
from conftest import PACKS, open_pack
from support.bitten import DRAFT_MARK, SEED, Bite, Bitten, Proof, prove_changed
from support.in_memory import with_copy
from support.mutations import MUTATIONS
from support.published import STORED, STORED_DRAFTS
from support.stakes import Asked, elements_at_stake, filled_parameter

from loadscope.loader.plan import Options, make_plan
from loadscope.loader.topology import Layout

TP_8 = Layout(tp_size=8)
TARGETS = [Bite(pack, False, what) for pack in PACKS for what in MUTATIONS]
DRAFTS = [Bite(pack, True, what) for pack in STORED_DRAFTS for what in MUTATIONS]


@pytest.fixture(scope="module", params=TARGETS + DRAFTS, ids=str)
def bitten(request: pytest.FixtureRequest) -> Bitten:
    """All claims about a bite run together, so one is alive at a time."""
    return Bitten(request.param)


def test_a_changed_tensor_fails_the_plan_that_needs_it(bitten: Bitten) -> None:
    found = {proof.name: proof.verdict for proof in bitten.proofs}
    assert found == {name: bitten.verdict(name) for name in found}


def test_a_changed_tensor_leaves_a_gap_of_exactly_its_elements(bitten: Bitten) -> None:
    found = {proof.name: proof.gaps for proof in bitten.needed}
    assert found == {name: bitten.expected_gap(name) for name in found}


def test_a_changed_tensor_is_named_by_the_right_finding(bitten: Bitten) -> None:
    told = [proof for proof in bitten.explained if bitten.must_tell(proof)]
    assert [proof.name for proof in told if not proof.is_told] == []


def test_a_changed_tensor_accuses_nothing_else(bitten: Bitten) -> None:
    strangers = {p.name: p.accused - bitten.may_be_accused(p.name) for p in bitten.explained}
    assert {name: others for name, others in strangers.items() if others} == {}


@pytest.fixture(scope="module", params=DRAFTS, ids=str)
def with_draft(request: pytest.FixtureRequest) -> Bitten:
    return Bitten(request.param)


def test_a_change_in_the_draft_layer_does_not_fail_the_target(with_draft: Bitten) -> None:
    proofs = with_draft.prove(draft_names=True, draft_plan=False)
    failed = [proof.name for proof in proofs if proof.verdict == "fail"]
    # without its mark the layer is no draft layer, so the config contradicts the files
    assert [name for name in failed if not with_draft.unmarks(name)] == []


def test_a_change_in_the_target_does_not_fail_the_draft(with_draft: Bitten) -> None:
    proofs = with_draft.prove(draft_names=False, draft_plan=True)
    assert [proof.name for proof in proofs if proof.verdict == "fail"] == []


@pytest.mark.parametrize("what", ["deleted", "renamed"])
def test_a_layer_past_the_model_without_the_mark_of_a_draft_is_a_contradiction(what: str) -> None:
    bitten = Bitten(Bite("deepseek-v3", False, what))
    proofs = bitten.prove(draft_names=True, draft_plan=False)
    (proof,) = [proof for proof in proofs if DRAFT_MARK in proof.name]
    assert [f.code for f in proof.findings if f.level == "error"] == ["LS208"]


NEEDLES = {
    "deleted": "model.layers.57.mlp.experts.201.down_proj.weight_scale_inv",
    "renamed": "model.layers.60.self_attn.o_proj.weight",
    "dtype": "model.layers.31.mlp.experts.77.up_proj.weight",
    "shape": "model.layers.2.mlp.gate_proj.weight_scale_inv",
}


@pytest.fixture(scope="module", params=NEEDLES)
def needle(request: pytest.FixtureRequest) -> Proof:
    """One tensor of the whole checkpoint changed."""
    what = request.param
    random = Random(f"{SEED} {what}")
    return prove_changed(open_pack("deepseek-v3"), NEEDLES[what], what, TP_8, Options(), random)


def test_one_wrong_tensor_among_91_991_fails_the_plan(needle: Proof) -> None:
    assert needle.verdict == "fail"


def test_one_wrong_tensor_among_91_991_leaves_a_gap_of_its_elements(needle: Proof) -> None:
    v3 = open_pack("deepseek-v3")
    assert v3.config is not None
    asked = Asked(v3.config, STORED["deepseek-v3"].experts, False, TP_8)
    shapes = {name: tensor.shape for name, tensor in v3.tensors.items()}
    elements = elements_at_stake(needle.name, shapes, asked)
    assert needle.gaps == [(filled_parameter(needle.name, asked), elements)]


SECOND_NAMES = {
    "in a wrapper": "language_model.model.layers.9.self_attn.o_proj.weight_scale_inv",
    "in another spelling": "model.layers.9.self_attn.o_proj.weight_scale",
}


@pytest.mark.parametrize("how", SECOND_NAMES)
def test_a_second_tensor_for_one_place_is_an_overlap_of_its_elements(how: str) -> None:
    name = "model.layers.9.self_attn.o_proj.weight_scale_inv"
    changed = with_copy(open_pack("deepseek-v3"), name, SECOND_NAMES[how])
    findings = make_plan(changed, TP_8).findings
    errors = {(f.code, f.subject, f.evidence["elements"]) for f in findings if f.level == "error"}
    size = 56 * 128
    assert errors == {("LS304", SECOND_NAMES[how], size), ("LS502", name, size)}
