"""Brute force agrees with the proof on small random models, and loaded bytes with the files."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.deepseek_tensors import Spec, checkpoint_specs
from support.differential import differing, load_case
from support.golden_checkpoint import BASE, FP8, V3, VARIANTS
from support.in_memory import in_memory
from support.names import is_draft
from support.painter import counted, elements, fits, lost, paint, tally
from support.proof import moved, prove_again, with_placements
from support.random_models import Case, cases
from support.readers import spoiling
from support.stitch import Group

from loadscope.loader import rank_load
from loadscope.loader.coverage import multiplicity
from loadscope.loader.place import Placement
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.steps import chunks
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
    keys = [key for key, placed in plan.placements.items() if placed.source_box]
    key = draw(st.sampled_from(keys))
    changed = with_placements(plan, {key: draw(_moved(plan.placements[key]))})
    assume(fits(changed))
    return changed


@st.composite
def _moved(draw: st.DrawFn, right: Placement) -> Placement:
    dim = draw(st.integers(0, len(right.source_box) - 1))
    by = st.tuples(st.integers(-2, 2), st.integers(-2, 2))
    source, target = draw(by), draw(by)
    return right._replace(
        source_box=moved(right.source_box, dim, *source),
        target_box=moved(right.target_box, dim, *target),
    )


@settings(max_examples=150)
@given(misplaced())
def test_overlaps_have_as_many_elements_as_the_painter_paints_twice(plan: Plan) -> None:
    assert elements(prove_again(plan), "LS502") == counted(plan, least=2)


@settings(max_examples=150)
@given(misplaced())
def test_moved_slices_leave_the_gaps_that_the_painter_sees(plan: Plan) -> None:
    assert elements(prove_again(plan), "LS501") == counted(plan, least=0, most=0)


@settings(max_examples=150)
@given(misplaced())
def test_as_many_elements_are_lost_as_the_painter_does_not_find(plan: Plan) -> None:
    assert elements(prove_again(plan), "LS503") == lost(plan)


@settings(max_examples=40)
@given(cases())
def test_the_ranks_together_hold_the_files_bit_for_bit(case: Case) -> None:
    with TemporaryDirectory() as folder:
        assert differing(load_case(case, Path(folder))) == []


@settings(max_examples=12)
@given(cases(fp8=True, max_pp=2))
def test_the_ranks_of_an_fp8_model_together_hold_the_files_bit_for_bit(case: Case) -> None:
    with TemporaryDirectory() as folder:
        assert differing(load_case(case, Path(folder))) == []


@pytest.mark.parametrize("variant", ["v32-bf16", "v32-fp8-block"])
def test_a_reader_that_overwrites_its_buffers_changes_nothing(variant: str, tmp_path: Path) -> None:
    case = Case(VARIANTS[variant], Layout(tp_size=2))
    assert differing(load_case(case, tmp_path, spoiling())) == []


@pytest.mark.parametrize("limit", [1, 700, 5000])
@pytest.mark.parametrize("variant", ["v32-bf16", "v32-fp8-block"])
def test_tensors_read_a_few_rows_at_a_time_arrive_whole(
    variant: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_load, "chunks", partial(chunks, limit=limit))
    config = {**VARIANTS[variant], "num_hidden_layers": 2, "n_routed_experts": 2}
    assert differing(load_case(Case(config, Layout(tp_size=2)), tmp_path, spoiling())) == []


def test_the_comparison_notices_one_flipped_bit_of_any_parameter(tmp_path: Path) -> None:
    config = {**VARIANTS["v32-bf16"], "num_hidden_layers": 2, "vocab_size": 500}
    group = load_case(Case(config, Layout(tp_size=2, ep_size=2)), tmp_path)
    unnoticed = [name for name in group.ranks[1] if not _is_flip_noticed(group, name)]
    assert unnoticed == []


def _is_flip_noticed(group: Group, name: str) -> bool:
    """Rank 1's last byte of a tensor is changed, looked for, and put back."""
    storage = group.ranks[1][name].untyped_storage()
    last = torch.empty(0, dtype=torch.uint8).set_(storage)[-1:]
    last ^= 1
    try:
        return differing(group) != []
    except AssertionError:  # two copies of a replicated parameter differ, or padding is not zero
        return True
    finally:
        last ^= 1


def test_a_weight_whose_cut_falls_inside_a_block_is_refused() -> None:
    config = {**BASE, **V3, **FP8, "intermediate_size": 192}
    plan = make_plan(in_memory(config), Layout(tp_size=2))
    assert {f.code for f in plan.findings if f.level == "error"} == {"LS207"}
