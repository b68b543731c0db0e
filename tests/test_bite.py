"""The proof notices one wrong tensor among 92,000, names it, and counts what it costs."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from conftest import PACKS
from support.destinations import elements_at_stake, parameter_of
from support.in_memory import renamed, with_copy, with_dtype, with_shape, without
from support.names import expert_of, is_draft, one_of_each_pattern

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.findings import Finding
from loadscope.loader.plan import make_plan
from loadscope.loader.topology import Layout

TP_SIZE = 8
SEED = 20_251_201
DRAFT_MARK = "eh_proj"  # what makes a layer past the model a draft layer
Told = tuple[str, str, Any]  # code, subject, elements; None where only the name must be told
Bent = tuple[Checkpoint, set[Told]]
Mutation = Callable[[Checkpoint, str, Random], Bent]


def delete(checkpoint: Checkpoint, name: str, random: Random) -> Bent:
    return without(checkpoint, name), set()


def rename(checkpoint: Checkpoint, name: str, random: Random) -> Bent:
    """A spelling mistake; the unknown name must be told."""
    *head, module, leaf = name.split(".")
    choices = [
        ".".join([*head, module + "_", leaf]),
        ".".join([*head, module, leaf + "s"]),
        "modle." + name.removeprefix("model."),
    ]
    if expert_of(name) is not None:
        choices.append(name.replace(".experts.", ".experts.0"))
    new_name = random.choice(choices)
    return renamed(checkpoint, name, new_name), {("LS301", new_name, None)}


def change_dtype(checkpoint: Checkpoint, name: str, random: Random) -> Bent:
    """A dtype that no cast may lead away from; a weight not in fp8 contradicts the config."""
    tensor = checkpoint.tensors[name]
    wrong = random.choice(_WRONG_DTYPES[tensor.dtype])
    code = "LS403" if tensor.dtype == "F8_E4M3" else "LS402"
    return with_dtype(checkpoint, name, wrong), {(code, name, math.prod(tensor.shape))}


def change_shape(checkpoint: Checkpoint, name: str, random: Random) -> Bent:
    shape = list(checkpoint.tensors[name].shape)
    dim = random.randrange(len(shape))
    shape[dim] += random.choice([-1, 1] if shape[dim] > 1 else [1])
    changed = with_shape(checkpoint, name, tuple(shape))
    return changed, {("LS401", name, math.prod(shape))}


_WRONG_DTYPES = {
    "BF16": ["I8", "I32", "F8_E4M3"],
    "F32": ["I32", "U8", "F8_E4M3"],
    "F8_E4M3": ["BF16", "F32"],
}
MUTATIONS: dict[str, Mutation] = {
    "deleted": delete,
    "renamed": rename,
    "dtype": change_dtype,
    "shape": change_shape,
}


class Proof(NamedTuple):
    """What a plan said after one tensor was changed, and what it had to say about the tensor."""

    name: str
    verdict: str
    findings: tuple[Finding, ...]
    told: set[Told]

    @property
    def gaps(self) -> list[tuple[str, Any]]:
        return [(f.subject, f.evidence["elements"]) for f in self.findings if f.code == "LS501"]

    @property
    def untold(self) -> set[Told]:
        """What no finding says; a name alone has no count to compare."""
        found = {(f.code, f.subject, f.evidence.get("elements")) for f in self.findings}
        names = {(code, subject, None) for code, subject, _elements in found}
        return self.told - found - names

    @property
    def accused(self) -> set[str]:
        return {f.subject for f in self.findings if f.level == "error"}


class Proofs:
    """Made once for each pack and mutation, since several claims look at them."""

    def __init__(self, packs: dict[str, Checkpoint]) -> None:
        self.packs = packs
        self.of = cache(self._of)

    def _of(self, pack: str, what: str) -> tuple[Proof, ...]:
        return tuple(bent_proofs(self.packs[pack], what, draft=False))


@pytest.fixture(scope="module")
def proofs(packs: dict[str, Checkpoint]) -> Proofs:
    return Proofs(packs)


def bent_proofs(checkpoint: Checkpoint, what: str, *, draft: bool) -> Iterator[Proof]:
    """For each name pattern of the target, or that only the draft has, one tensor of it changed."""
    random = Random(f"{SEED} {what}")
    for name in _chosen(checkpoint, draft=draft):
        changed, told = MUTATIONS[what](checkpoint, name, random)
        plan = make_plan(changed, Layout(tp_size=TP_SIZE))
        yield Proof(name, plan.verdict, plan.findings, told)


def _chosen(checkpoint: Checkpoint, *, draft: bool) -> list[str]:
    assert checkpoint.config is not None
    layers = checkpoint.config["num_hidden_layers"]
    target = [name for name in checkpoint.tensors if not is_draft(name, layers)]
    of_target = one_of_each_pattern(target, SEED)
    if not draft:
        return list(of_target.values())
    of_draft = one_of_each_pattern(set(checkpoint.tensors) - set(target), SEED)
    return [name for pattern, name in of_draft.items() if pattern not in of_target]


def expected_gap(checkpoint: Checkpoint, name: str) -> list[tuple[str, int]]:
    shapes = {n: tensor.shape for n, tensor in checkpoint.tensors.items()}
    parameter = parameter_of(name, checkpoint.config or {})
    return [(parameter, elements_at_stake(name, shapes[name], shapes, TP_SIZE))]


def may_be_accused(checkpoint: Checkpoint, name: str) -> set[str]:
    """The tensor, its parameter, and the other half of its pair, which waits in vain."""
    partners = {name.replace(half, other) for half, other in _PARTNERS.items() if half in name}
    return {name, parameter_of(name, checkpoint.config or {})} | partners


_PARTNERS = {
    "q_a_proj": "kv_a_proj_with_mqa",
    "kv_a_proj_with_mqa": "q_a_proj",
    "wk.weight_scale_inv": "wk.weight",
    "wk.weight": "wk.weight_scale_inv",
}


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("pack", PACKS)
def test_a_changed_tensor_fails_the_plan(pack: str, what: str, proofs: Proofs) -> None:
    assert [proof.name for proof in proofs.of(pack, what) if proof.verdict != "fail"] == []


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("pack", PACKS)
def test_a_changed_tensor_leaves_a_gap_of_exactly_its_elements(
    pack: str, what: str, proofs: Proofs
) -> None:
    found = {proof.name: proof.gaps for proof in proofs.of(pack, what)}
    assert found == {name: expected_gap(proofs.packs[pack], name) for name in found}


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("pack", PACKS)
def test_a_changed_tensor_is_named_by_the_right_finding(
    pack: str, what: str, proofs: Proofs
) -> None:
    untold = {proof.name: proof.untold for proof in proofs.of(pack, what)}
    assert {name: told for name, told in untold.items() if told} == {}


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("pack", PACKS)
def test_a_changed_tensor_accuses_nothing_else(pack: str, what: str, proofs: Proofs) -> None:
    strangers = {
        proof.name: proof.accused - may_be_accused(proofs.packs[pack], proof.name)
        for proof in proofs.of(pack, what)
    }
    assert {name: others for name, others in strangers.items() if others} == {}


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("pack", [pack for pack in PACKS if "v3" in pack])
def test_a_change_in_the_draft_layer_does_not_fail_the_target(
    pack: str, what: str, packs: dict[str, Checkpoint]
) -> None:
    changed = bent_proofs(packs[pack], what, draft=True)
    failed = [proof.name for proof in changed if proof.verdict == "fail"]
    # without its mark the layer is no draft layer, so the config contradicts the files
    unmarked = [name for name in failed if DRAFT_MARK in name and what in ("deleted", "renamed")]
    assert failed == unmarked


@pytest.mark.parametrize("what", ["deleted", "renamed"])
def test_a_layer_past_the_model_without_the_mark_of_a_draft_is_a_contradiction(
    what: str, packs: dict[str, Checkpoint]
) -> None:
    (proof,) = [
        proof
        for proof in bent_proofs(packs["deepseek-v3"], what, draft=True)
        if DRAFT_MARK in proof.name
    ]
    assert [f.code for f in proof.findings if f.level == "error"] == ["LS208"]


SECOND_NAMES = {
    "in a wrapper": "language_model.model.layers.9.self_attn.o_proj.weight_scale_inv",
    "in another spelling": "model.layers.9.self_attn.o_proj.weight_scale",
}


@pytest.mark.parametrize("how", SECOND_NAMES)
def test_a_second_tensor_for_one_place_is_an_overlap_of_its_elements(
    how: str, packs: dict[str, Checkpoint]
) -> None:
    name = "model.layers.9.self_attn.o_proj.weight_scale_inv"
    changed = with_copy(packs["deepseek-v3"], name, SECOND_NAMES[how])
    findings = make_plan(changed, Layout(tp_size=TP_SIZE)).findings
    errors = {(f.code, f.subject, f.evidence["elements"]) for f in findings if f.level == "error"}
    size = 56 * 128
    assert errors == {("LS304", SECOND_NAMES[how], size), ("LS502", name, size)}
