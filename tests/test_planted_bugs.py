"""Mistakes planted into the code that places slices: the proof catches each of them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.in_memory import in_memory
from support.painter import used_sources
from support.planted_models import LAYOUT, MODELS
from support.proof import moved, prove_again, with_placements
from support.random_models import Case, cases

from loadscope.loader import place as placing
from loadscope.loader import plan as planning
from loadscope.loader.place import Placement
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.schema import Source, Target
from loadscope.loader.topology import Layout, Seat

PROOF_CODES = {"LS207", "LS501", "LS502", "LS503", "LS505"}

Place = Callable[[Target, Source, Layout, Seat], Placement]
right_place: Place = placing.place


def swap_seats(seat: Seat) -> Seat:
    """Ranks 0 and 1 sit on each other's chair."""
    return LAYOUT.seat({0: 1, 1: 0}.get(seat.tp, seat.tp))


def two_ranks_swapped(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    return right_place(target, source, layout, swap_seats(seat))


def every_rank_gets_rank_0(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    return right_place(target, source, layout, layout.seat(0))


def ranks_in_reverse(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    return right_place(target, source, layout, layout.seat(layout.tp_size - 1 - seat.tp))


def source_off_by_one(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    right = right_place(target, source, layout, seat)
    return right._replace(source_box=moved(right.source_box, 0, 1, 1)) if seat.tp == 1 else right


def target_off_by_one(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    right = right_place(target, source, layout, seat)
    return right._replace(target_box=moved(right.target_box, 0, 1, 1)) if seat.tp == 1 else right


def last_row_forgotten(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    right = right_place(target, source, layout, seat)
    return right._replace(
        source_box=moved(right.source_box, 0, 0, -1), target_box=moved(right.target_box, 0, 0, -1)
    )


def experts_shifted(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    right = right_place(target, source, layout, seat)
    return right._replace(first_expert=right.first_expert + 1) if right.experts else right


def expert_groups_in_reverse(
    target: Target, source: Source, layout: Layout, seat: Seat
) -> Placement:
    other = replace(seat, ep=layout.ep_size - 1 - seat.ep) if target.is_stacked else seat
    return right_place(target, source, layout, other)


class ReversedSlots(Placement):
    """The experts of one rank lie in its slots from last to first."""

    def slot(self, expert: int) -> int | None:
        slot = super().slot(expert)
        return None if slot is None else self.experts - 1 - slot

    def target_box_of(self, expert: int) -> placing.Box:
        slot = self.slot(expert)
        assert slot is not None
        return ((slot, slot + 1), *self.target_box)


def experts_in_reverse(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    right = right_place(target, source, layout, seat)
    return ReversedSlots(*right) if right.experts else right


def experts_cut_by_all_ranks(
    target: Target, source: Source, layout: Layout, seat: Seat
) -> Placement:
    """By expert group and by the whole TP group at once: each rank looks complete."""
    if not target.is_stacked:
        return right_place(target, source, layout, seat)
    experts = right_place(target, source, layout, seat)
    whole = Layout(tp_size=layout.tp_size)
    cut = right_place(target, source, whole, whole.seat(seat.tp))
    return cut._replace(first_expert=experts.first_expert, experts=experts.experts)


def shared_expert_in_the_first_slot(
    target: Target, source: Source, layout: Layout, seat: Seat
) -> Placement:
    """Where a routed expert lies."""
    return right_place(target, source, layout, seat)._replace(first_slot=0)


def shared_expert_on_one_group(
    target: Target, source: Source, layout: Layout, seat: Seat
) -> Placement:
    right = right_place(target, source, layout, seat)
    return right._replace(experts=0) if right.first_slot and seat.ep else right


def only_own_activation_scales(
    target: Target, source: Source, layout: Layout, seat: Seat
) -> Placement:
    """Scales that every rank holds for all experts, kept for the rank's own experts alone."""
    right = right_place(target, source, layout, seat)
    if not right.experts or right.experts < 2 or target.splits:
        return right
    return right._replace(experts=right.experts // layout.ep_size)


def origin_forgotten(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    """The second part of a tensor that is fused in the files is read from its beginning."""
    return right_place(target, replace(source, origin=(0,) * len(source.origin)), layout, seat)


def scales_cut_for_another_rank(
    target: Target, source: Source, layout: Layout, seat: Seat
) -> Placement:
    return right_place(target, source, layout, swap_seats(seat) if source.role == "scale" else seat)


def parts_swapped(target: Target, source: Source, layout: Layout) -> int:
    """The second part is taken for the first and the other way round."""
    turned = replace(target, parts=target.parts[::-1])
    return right_part_offset(turned, source, layout)


def parts_all_first(target: Target, source: Source, layout: Layout) -> int:
    return 0


def halves_of_the_whole_model(target: Target, source: Source, layout: Layout) -> int:
    """The offset of a part before cutting, not after."""
    return right_part_offset(target, source, Layout())


def cut_along_the_other_dim(target: Target, dim: int) -> Any:
    split = right_split_of(target, 1 - dim)
    return None if split is None or target.is_stacked else replace(split, dim=dim)


def rows_off_by_one(rows: int, ways: int, index: int) -> tuple[int, int]:
    start, stop = right_cut_rows(rows, ways, index)
    return (start + 1, min(stop + 1, rows)) if index else (start, stop)


def rows_without_padding(rows: int, ways: int, index: int) -> tuple[int, int]:
    """A vocabulary cut into equal pieces, as if it were not padded."""
    return placing.cut(rows, ways, index)


def pieces_overlap(size: int, ways: int, index: int) -> tuple[int, int]:
    start, stop = right_cut(size, ways, index)
    return start, min(stop + 1, size)


def pieces_leave_a_hole(size: int, ways: int, index: int) -> tuple[int, int]:
    start, stop = right_cut(size, ways, index)
    return start, stop - (1 if ways > 1 else 0)


right_part_offset = placing._part_offset
right_split_of = placing._split_of
right_cut_rows = placing.cut_rows
right_cut = placing.cut

BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "two ranks swapped": (planning, "place", two_ranks_swapped),
    "every rank gets rank 0": (planning, "place", every_rank_gets_rank_0),
    "ranks in reverse": (planning, "place", ranks_in_reverse),
    "source off by one": (planning, "place", source_off_by_one),
    "target off by one": (planning, "place", target_off_by_one),
    "last row forgotten": (planning, "place", last_row_forgotten),
    "experts shifted": (planning, "place", experts_shifted),
    "expert groups in reverse": (planning, "place", expert_groups_in_reverse),
    "experts in reverse": (planning, "place", experts_in_reverse),
    "experts cut by all ranks": (planning, "place", experts_cut_by_all_ranks),
    "shared expert in the first slot": (planning, "place", shared_expert_in_the_first_slot),
    "shared expert on one group": (planning, "place", shared_expert_on_one_group),
    "only own activation scales": (planning, "place", only_own_activation_scales),
    "origin forgotten": (planning, "place", origin_forgotten),
    "scales cut for another rank": (planning, "place", scales_cut_for_another_rank),
    "parts swapped": (placing, "_part_offset", parts_swapped),
    "parts all first": (placing, "_part_offset", parts_all_first),
    "part offset of the whole model": (placing, "_part_offset", halves_of_the_whole_model),
    "cut along the other dim": (placing, "_split_of", cut_along_the_other_dim),
    "vocabulary rows off by one": (placing, "cut_rows", rows_off_by_one),
    "vocabulary not padded": (placing, "cut_rows", rows_without_padding),
    "pieces overlap": (placing, "cut", pieces_overlap),
    "pieces leave a hole": (placing, "cut", pieces_leave_a_hole),
}


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
