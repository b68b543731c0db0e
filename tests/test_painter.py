"""Brute force agrees with the proof, element by element, on small random models."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.deepseek_tensors import Spec, checkpoint_specs
from support.golden_checkpoint import BASE, FP8, V3
from support.in_memory import in_memory
from support.names import is_draft
from support.painter import counted, elements, fits, lost, paint, tally, used_sources
from support.planted_models import MODELS
from support.proof import moved, prove_again, with_placements
from support.random_models import Case, cases

from loadscope.loader.coverage import multiplicity
from loadscope.loader.place import Placement
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.topology import Layout

Box = tuple[tuple[int, int], ...]


@st.composite
def boxes_in_a_shape(draw: st.DrawFn) -> tuple[list[Box], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    interval = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape]
    box = st.tuples(*[i.map(tuple) for i in interval])
    return draw(st.lists(box, max_size=6)), shape


@settings(max_examples=300)
@given(boxes_in_a_shape())
def test_the_proof_counts_what_the_painter_counts(case: tuple[list[Box], tuple[int, ...]]) -> None:
    boxes, shape = case
    found = {times: n for times, n in multiplicity(boxes, shape).items() if n}
    assert found == tally(paint(boxes, shape))


@settings(max_examples=60)
@given(cases())
def test_every_element_of_a_random_model_is_painted_once(case: Case) -> None:
    plan = make_plan(in_memory(case.config), case.layout)
    assert counted(plan, least=0, most=0) | counted(plan, least=2) == {}


@settings(max_examples=15)
@given(cases(fp8=True, max_pp=2))
def test_every_element_of_a_random_fp8_model_is_painted_once(case: Case) -> None:
    plan = make_plan(in_memory(case.config), case.layout)
    assert counted(plan, least=0, most=0) | counted(plan, least=2) == {}


@settings(max_examples=60)
@given(cases())
def test_the_proof_passes_every_random_model_that_is_whole(case: Case) -> None:
    findings = make_plan(in_memory(case.config), case.layout).findings
    assert [f for f in findings if f.level != "note"] == []


@settings(max_examples=40)
@given(cases(fp8=True))
def test_the_proof_passes_every_random_fp8_model_that_is_whole(case: Case) -> None:
    findings = make_plan(in_memory(case.config), case.layout).findings
    assert [f for f in findings if f.level != "note"] == []


@st.composite
def incomplete(draw: st.DrawFn, *, fp8: bool) -> Plan:
    """A model from whose checkpoint a few tensors are gone."""
    case: Case = draw(cases(fp8=fp8, max_pp=2))
    specs = checkpoint_specs(case.config)
    gone = draw(st.lists(st.sampled_from(_names(case, specs)), min_size=1, max_size=4))
    return make_plan(in_memory(case.config, [s for s in specs if s.name not in gone]), case.layout)


def _names(case: Case, specs: Sequence[Spec]) -> list[str]:
    layers = case.config["num_hidden_layers"]
    return [spec.name for spec in specs if not is_draft(spec.name, layers)]


@settings(max_examples=80)
@given(incomplete(fp8=False))
def test_gaps_have_as_many_elements_as_the_painter_leaves_blank(plan: Plan) -> None:
    assert elements(plan.findings, "LS501") == counted(plan, least=0, most=0)


@settings(max_examples=15)
@given(incomplete(fp8=True))
def test_gaps_of_fp8_models_have_as_many_elements_as_the_painter_leaves_blank(plan: Plan) -> None:
    assert elements(plan.findings, "LS501") == counted(plan, least=0, most=0)


@st.composite
def misplaced(draw: st.DrawFn) -> Plan:
    """A plan in which one kind of tensor is moved, grown or shrunk on one rank."""
    case: Case = draw(cases(max_pp=1))
    plan = make_plan(in_memory(case.config), case.layout)
    used = used_sources(plan)
    keys = [key for key, placed in plan.placements.items() if key[0] in used and placed.source_box]
    key = draw(st.sampled_from(keys))
    changed = with_placements(plan, {key: draw(_moved(plan.placements[key]))})
    assume(fits(changed))
    return changed


@cache
def planned(model: str) -> Plan:
    return MODELS[model].plan()


@st.composite
def _moved(draw: st.DrawFn, right: Placement) -> Placement:
    dim = draw(st.integers(0, len(right.source_box) - 1))
    by = st.tuples(st.integers(-2, 2), st.integers(-2, 2))
    source, target = draw(by), draw(by)
    return right._replace(
        source_box=moved(right.source_box, dim, *source),
        target_box=moved(right.target_box, dim, *target),
    )


class Moved(NamedTuple):
    """One slice of a planned model, moved; short to print."""

    model: str
    key: tuple[int, int]
    placement: Placement

    @property
    def plan(self) -> Plan:
        return with_placements(planned(self.model), {self.key: self.placement})


@st.composite
def misplaced_of_any_format(draw: st.DrawFn) -> Moved:
    """One kind of tensor moved in a model with every way to place a slice."""
    model = draw(st.sampled_from(sorted(MODELS)))
    plan = planned(model)
    used = used_sources(plan)
    keys = [key for key, placed in plan.placements.items() if key[0] in used and placed.source_box]
    key = draw(st.sampled_from(keys))
    found = Moved(model, key, draw(_moved(plan.placements[key])))
    assume(fits(found.plan))
    return found


@settings(max_examples=60)
@given(misplaced())
def test_overlaps_have_as_many_elements_as_the_painter_paints_twice(plan: Plan) -> None:
    assert elements(prove_again(plan), "LS502") == counted(plan, least=2)


@settings(max_examples=60)
@given(misplaced())
def test_moved_slices_leave_the_gaps_that_the_painter_sees(plan: Plan) -> None:
    assert elements(prove_again(plan), "LS501") == counted(plan, least=0, most=0)


@settings(max_examples=60)
@given(misplaced())
def test_as_many_elements_are_lost_as_the_painter_does_not_find(plan: Plan) -> None:
    assert elements(prove_again(plan), "LS503") == lost(plan)


@pytest.mark.parametrize("model", MODELS)
def test_every_element_of_any_format_is_painted_once(model: str) -> None:
    plan = planned(model)
    assert plan.verdict == "pass"
    assert counted(plan, least=0, most=0) | counted(plan, least=2) == {}
    assert lost(plan) == {}


@settings(max_examples=40)
@given(misplaced_of_any_format())
def test_the_proof_counts_moved_slices_of_any_format_as_the_painter(what: Moved) -> None:
    plan = what.plan
    findings = prove_again(plan)
    proven = [elements(findings, code) for code in ("LS501", "LS502", "LS503")]
    assert proven == [counted(plan, least=0, most=0), counted(plan, least=2), lost(plan)]


def test_a_weight_whose_cut_falls_inside_a_block_is_refused() -> None:
    config = {**BASE, **V3, **FP8, "intermediate_size": 192}
    plan = make_plan(in_memory(config), Layout(tp_size=2))
    assert {f.code for f in plan.findings if f.level == "error"} == {"LS207"}
