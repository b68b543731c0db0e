"""Asks the proof again about a plan whose placements were changed by hand."""

from collections.abc import Mapping
from dataclasses import replace

from loadscope.loader.findings import Finding
from loadscope.loader.place import Box, Placement
from loadscope.loader.plan import Plan
from loadscope.loader.proof_subject import Subject
from loadscope.loader.prove import prove

Placements = Mapping[tuple[int, int], Placement]


def with_placements(plan: Plan, changed: Placements) -> Plan:
    """A copy of the plan in which some (source, tp rank) have other boxes."""
    return replace(plan, placements={**plan.placements, **changed})


def prove_again(plan: Plan) -> list[Finding]:
    return prove(
        Subject(
            layout=plan.layout,
            seats=plan.seats,
            stage_masks=plan.stage_masks,
            targets=plan.targets,
            sources=plan.sources,
            tails=plan.tails,
            shapes=plan.shapes,
            placements=plan.placements,
            zero_boxes=plan.zero_boxes,
        )
    )


def moved(box: Box, dim: int, start: int, stop: int) -> Box:
    """The box with the borders of one dim moved; a scalar has none to move."""
    if not box:
        return box
    borders = list(box)
    borders[dim] = (borders[dim][0] + start, borders[dim][1] + stop)
    return tuple(borders)
