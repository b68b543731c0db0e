"""Weights handed over in any order and any number of calls leave the bytes that the files leave.

All tensors go through one buffer, which is overwritten for every next one.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.compared_load import plan_load, rank_differences
from support.dressed import Tensors, fuse_gates, fuse_queries, mixtral_names
from support.load_case import Load, small_load
from support.loaded import POISON, load_rank
from support.made_model import MadeModel
from support.quantised_formats import FORMS
from support.random_loads import loads
from support.updates import OneBuffer, whole
from torch import Tensor

from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.update import Finished, Received, Update

ONCE = (Phase.generate,)  # a smaller failing example would take minutes to find


def empty_store(plan: Plan, rank: int) -> ParameterStore:
    store = ParameterStore(plan, rank)
    store.fill_pattern(POISON)
    store.reset_initial()
    return store


def send(
    update: Update, tensors: Tensors, calls: Sequence[Sequence[str]]
) -> tuple[list[Received], Finished]:
    buffer = OneBuffer(tensors)
    received = [update.load_weights(buffer.lend(names)) for names in calls]
    return received, update.finish()


def dealt(names: Sequence[str], seed: int) -> list[list[str]]:
    """All names in random order, cut into calls of random length."""
    random, rest, calls = Random(seed), sorted(names), list[list[str]]()
    random.shuffle(rest)
    while rest:
        length = random.choice([1, 2, 5, 30, len(rest)])
        calls.append(rest[:length])
        rest = rest[length:]
    return calls


def some_fused(made: MadeModel, tensors: Tensors) -> Tensors:
    """A trainer's mixture: layer 0 as the engine has it, others as files have them."""
    kinds = {storage.kind for storage in made.storages.values()}
    if "awq" in kinds:
        return tensors
    named = mixtral_names(tensors) if "int4" in kinds else tensors
    return fuse_gates(made, fuse_queries(made, named, {0}), {0}, with_shared=False)


@settings(max_examples=30, phases=ONCE)
@given(loads(), st.integers(0, 99))
def test_any_order_and_any_number_of_calls_leave_the_same_bytes(load: Load, seed: int) -> None:
    with TemporaryDirectory() as folder:
        made, plan = plan_load(load, Path(folder), some_fused)
    tensors = some_fused(made, made.tensors())
    for rank in range(plan.layout.world):
        store = empty_store(plan, rank)
        _received, finished = send(Update(plan, store), tensors, dealt(list(tensors), seed + rank))
        assert (finished.state, finished.held, finished.partial) == ("ready", (), ())
        assert rank_differences(load, made, store) == []


@settings(max_examples=20, phases=ONCE)
@given(loads(), st.integers(0, 99))
def test_other_values_over_loaded_ones_leave_the_other_values(load: Load, seed: int) -> None:
    with TemporaryDirectory() as folder:
        _made, plan = plan_load(load, Path(folder))
        store = load_rank(plan, Path(folder), 0)
    other = Load(**{**_fields(load), "seed": load.seed + 1})
    made = other.model()
    tensors = made.tensors()
    _received, finished = send(Update(plan, store), tensors, dealt(list(tensors), seed))
    assert finished.state == "ready"
    assert rank_differences(other, made, store) == []


@settings(max_examples=20, phases=ONCE)
@given(loads(), st.integers(0, 99))
def test_values_that_break_off_anywhere_leave_the_loaded_ones(load: Load, seed: int) -> None:
    with TemporaryDirectory() as folder:
        made, plan = plan_load(load, Path(folder))
        store = load_rank(plan, Path(folder), 0)
    other = Load(**{**_fields(load), "seed": load.seed + 1}).model().tensors()
    before, names = whole(store), sorted(other)
    Random(seed).shuffle(names)
    calls = dealt(names[: len(names) // 2], seed)
    update = store.open_update(version="other")
    for call in calls[:-1]:
        update.load_weights(OneBuffer(other).lend(call))
    with pytest.raises(BrokenOff):
        update.load_weights(_broken_off(OneBuffer(other).lend(calls[-1])))
    assert update.finish().weights == "rolled_back"
    assert rank_differences(load, made, store) == []
    assert whole(store) == before


class BrokenOff(Exception):
    pass


def _broken_off(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    yield from weights
    raise BrokenOff


def _fields(load: Load) -> dict[str, object]:
    return {name: getattr(load, name) for name in Load.__slots__}


PAIRED = ("fp8 tensor static", "fp8 block", "w4afp8", "nvfp4", "moe_wna16, groups of 32")


@pytest.mark.parametrize("form", PAIRED)
def test_a_tensor_alone_in_its_call_gives_the_same_bytes(form: str, tmp_path: Path) -> None:
    load = small_load(FORMS[form], tp=2, ep=2)
    made, plan = plan_load(load, tmp_path)
    tensors = made.tensors()
    store = empty_store(plan, 1)
    send(Update(plan, store), tensors, [[name] for name in reversed(tensors)])
    assert rank_differences(load, made, store) == []


@pytest.mark.parametrize("form", PAIRED)
def test_a_second_stream_of_one_update_leaves_its_own_values(form: str, tmp_path: Path) -> None:
    load = small_load(FORMS[form], tp=2)
    _made, plan = plan_load(load, tmp_path)
    other = small_load(FORMS[form], tp=2, seed=5)
    first, made = load.model().tensors(), other.model()
    last = made.tensors()
    store = empty_store(plan, 0)
    update = Update(plan, store)
    update.load_weights(OneBuffer(first).lend(list(first)))
    _received, finished = send(update, last, dealt(list(last), 2))
    assert finished.state == "ready"
    assert rank_differences(other, made, store) == []


@pytest.mark.parametrize("form", PAIRED)
def test_every_name_of_every_call_is_answered_for(form: str, tmp_path: Path) -> None:
    load = small_load(FORMS[form], tp=2, ep=2)
    made, plan = plan_load(load, tmp_path)
    tensors = made.tensors()
    calls = dealt(list(tensors), 3)
    received, _finished = send(Update(plan, empty_store(plan, 0)), tensors, calls)
    for names, answer in zip(calls, received, strict=True):
        told = {*answer.written, *answer.held, *answer.skipped}
        assert set(names) <= told
        assert answer.failed == {}
