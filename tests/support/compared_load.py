"""Loads a random model on every rank and compares it with what must stand there, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan
from loadscope.loader.topology import Layout
from support.cutting import Place
from support.expected_derived import Expected, Sizes, derived
from support.expected_rank import Asked, ExpectedRank, describe, same
from support.load_case import Load
from support.loaded import load_rank, plan_of
from support.made_model import MadeModel
from support.tensor_files import write_tensors

Dress = Callable[[MadeModel, dict[str, Tensor]], dict[str, Tensor]]


def plain_dress(_made: MadeModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def options_of(load: Load) -> Options:
    return Options(
        platform=load.platform,
        indexer_fusion=load.asked.fuses_indexer,
        draft=load.asked.is_draft,
        fuse_shared_experts=load.asked.fuses_shared,
        **load.form.options,
    )


def layout_of(asked: Asked) -> Layout:
    return Layout(tp_size=asked.tp, ep_size=asked.ep, pp_size=asked.pp)


def plan_load(load: Load, folder: Path, dress: Dress = plain_dress) -> tuple[MadeModel, Plan]:
    """Write the model in its dress and plan it; a plan that does not pass is a failure."""
    made = load.model()
    write_tensors(folder, made.config, dress(made, made.tensors()))
    plan = plan_of(folder, layout_of(load.asked), options_of(load))
    assert plan.verdict == "pass", [f.message for f in plan.findings if f.level == "error"]
    return made, plan


def differences(load: Load, folder: Path, dress: Dress = plain_dress) -> list[str]:
    """What any rank holds otherwise than expected, as sentences; empty if all is right."""
    made, plan = plan_load(load, folder, dress)
    wrong: list[str] = []
    for rank in range(plan.layout.world):
        store = load_rank(plan, folder, rank)
        wrong += [f"rank {rank}: {text}" for text in rank_differences(load, made, store)]
    return wrong


def rank_differences(load: Load, made: MadeModel, store: ParameterStore) -> list[str]:
    """The same for one rank's store."""
    asked = seen_by_loader(load)
    expected = ExpectedRank(made, asked, store.rank).parameters()
    return [
        *_names(store.parameters, expected),
        *_values(store.parameters, expected),
        *_derived(load, made, store),
    ]


def seen_by_loader(load: Load) -> Asked:
    """The indexer is fused only on the platform that has the kernel for it."""
    fuses = load.asked.fuses_indexer and load.platform == "cuda"
    return replace(load.asked, fuses_indexer=fuses)


def _names(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    return [
        *(f"{name} is missing" for name in sorted(expected.keys() - found.keys())),
        *(f"{name} is unknown" for name in sorted(found.keys() - expected.keys())),
    ]


def _values(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    return [
        f"{name}: {describe(found[name])}, expected {describe(value)}{_where(found[name], value)}"
        for name, value in expected.items()
        if name in found and not same(found[name], value)
    ]


def _where(found: Tensor, expected: Tensor) -> str:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return ""
    unequal = (found.float() != expected.float()).flatten().nonzero()
    return f", {len(unequal)} elements differ, the first at {unequal[:1].tolist()}"


def _derived(load: Load, made: MadeModel, store: ParameterStore) -> list[str]:
    expected = expected_derived(load, made, store.rank)
    wrong = _names(store.derived, {name: e.value for name, e in expected.items()})
    for name, value in expected.items():
        if name not in store.derived:
            continue
        tensor = store.derived[name]
        if not same(tensor, value.value):
            wrong += _values({name: tensor}, {name: value.value}) or [f"{name} differs in bits"]
        elif tensor.dim() and tensor.stride() != value.strides:
            wrong.append(f"{name} has strides {tensor.stride()}, expected {value.strides}")
    return wrong


def expected_derived(load: Load, made: MadeModel, rank: int) -> dict[str, Expected]:
    """By full name, of the rank's layers."""
    asked, config = load.asked, made.config
    count = config["num_hidden_layers"]
    layers = [count] if asked.is_draft else asked.layers(rank, count)
    place = Place(asked.tp, rank % asked.tp)
    found: dict[str, Expected] = {}
    for layer in layers:
        module = f"model.layers.{layer}.self_attn.kv_b_proj"
        to = "model.decoder.self_attn." if asked.is_draft else f"model.layers.{layer}.self_attn."
        storage, leaves = made.storages[module], made.linears[module]
        for name, value in derived(storage, leaves, place, Sizes.of(config), load.platform).items():
            found[to + name] = value
    return found
