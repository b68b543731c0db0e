"""Mistakes in the code that places slices: each replaces one function by a wrong one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadscope.loader import place as placing
from loadscope.loader import plan as planning
from loadscope.loader.place import Placement
from loadscope.loader.schema import Source, Target
from loadscope.loader.topology import Layout, Seat
from support.planted_models import LAYOUT
from support.proof import moved

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
