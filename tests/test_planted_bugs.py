"""Mistakes planted into the code that places slices: the proof catches each of them."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.in_memory import in_memory
from support.painter import used_sources
from support.planted_bugs import BUGS
from support.planted_models import MODELS
from support.proof import moved, prove_again, with_placements
from support.random_models import Case, cases

from loadscope.loader.place import Placement
from loadscope.loader.plan import Plan, make_plan

PROOF_CODES = {"LS207", "LS501", "LS502", "LS503", "LS505"}


@cache
def right_plan(model: str) -> Plan:
    return MODELS[model].plan()


def wrong_plan(bug: str, model: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    module, name, wrong = BUGS[bug]
    monkeypatch.setattr(module, name, wrong)
    plan = MODELS[model].plan()
    monkeypatch.undo()
    return plan


def errors(plan: Plan) -> set[str]:
    return {f.code for f in plan.findings if f.level == "error"}


def boxes(plan: Plan, sources: Iterable[int]) -> list[Any]:
    """Where tensors come from and go to, on every rank."""
    chosen = set(sources)
    placed = [key for key in plan.placements if key[0] in chosen]
    return [plan.zero_boxes, *((key, *_boxes(plan, key)) for key in placed)]


def _boxes(plan: Plan, key: tuple[int, int]) -> list[Any]:
    placed, source = plan.placements[key], plan.sources[key[0]]
    experts = range(source.first_expert, source.first_expert + source.experts)
    held = [e for e in experts if placed.slot(e) is not None]
    targets = [placed.target_box_of(e) for e in held] or [placed.target_box]
    return [placed.source_box, held, targets]


@pytest.mark.parametrize("model", MODELS)
def test_the_proof_has_nothing_to_say_about_the_right_code(model: str) -> None:
    assert errors(right_plan(model)) == set()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_that_moves_a_slice_fails_the_plan(
    bug: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, plan = right_plan(model), wrong_plan(bug, model, monkeypatch)
    used, every = used_sources(right), range(len(right.sources))
    if boxes(plan, used) != boxes(right, used):
        assert plan.verdict == "fail"
    elif boxes(plan, every) == boxes(right, every):
        assert plan.verdict == "pass"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_the_proof_itself(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In at least one model it is there, and in none of them by another check's luck."""
    codes = [errors(wrong_plan(bug, model, monkeypatch)) for model in MODELS]
    assert any(codes)
    assert set().union(*codes) <= PROOF_CODES


@st.composite
def misplaced(draw: st.DrawFn, *, fp8: bool) -> tuple[Plan, tuple[int, int], Placement]:
    """A right plan, and a wrong placement for one source kind on one rank."""
    case: Case = draw(cases(fp8=fp8, max_pp=1))
    plan = make_plan(in_memory(case.config), case.layout)
    used = used_sources(plan)
    keys = [key for key, placed in plan.placements.items() if key[0] in used and placed.source_box]
    key = draw(st.sampled_from(keys))
    return plan, key, draw(_wrong(plan, key))


@st.composite
def _wrong(draw: st.DrawFn, plan: Plan, key: tuple[int, int]) -> Placement:
    right = plan.placements[key]
    kinds = ["source", "target", "both", "other rank"] + (["expert"] if right.experts else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "other rank":
        return plan.placements[(key[0], draw(st.integers(0, plan.layout.tp_size - 1)))]
    if kind == "expert":
        return right._replace(first_expert=right.first_expert + draw(st.sampled_from([-1, 1])))
    dim = draw(st.integers(0, len(right.source_box) - 1))
    start, stop = draw(st.integers(-2, 2)), draw(st.integers(-2, 2))
    sides = ("source_box", "target_box") if kind == "both" else (f"{kind}_box",)
    return right._replace(**{side: moved(getattr(right, side), dim, start, stop) for side in sides})


def is_same(plan: Plan, key: tuple[int, int], wrong: Placement) -> bool:
    return wrong == plan.placements[key]


@settings(max_examples=200)
@given(misplaced(fp8=False))
def test_any_moved_slice_is_found(what: tuple[Plan, tuple[int, int], Placement]) -> None:
    plan, key, wrong = what
    found = prove_again(with_placements(plan, {key: wrong}))
    assert bool(found) != is_same(plan, key, wrong)


@settings(max_examples=60)
@given(misplaced(fp8=True))
def test_any_moved_slice_of_an_fp8_model_is_found(
    what: tuple[Plan, tuple[int, int], Placement],
) -> None:
    plan, key, wrong = what
    found = prove_again(with_placements(plan, {key: wrong}))
    assert bool(found) != is_same(plan, key, wrong)
