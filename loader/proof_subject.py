"""What the proof sees of a plan: kinds, boxes and masks, none of the rules that made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadscope.loader.place import Box, Placement
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Need, Source, Target
from loadscope.loader.topology import Layout, Seat


@dataclass(slots=True)
class Supply:
    """One name pattern that fills a target: where in the layers it is present and usable."""

    source: int
    expert: int
    present: int
    tail: Tail | None


@dataclass(slots=True)
class Subject:
    """What the proof sees of a plan: kinds, boxes and masks, no rules.

    `present`: layers in which a name of one expert is there and usable. `siblings`: sources that
    are further uses of another's tensor.
    """

    layout: Layout
    seats: Sequence[Seat]
    stage_masks: Sequence[int]
    targets: Sequence[Target]
    sources: Sequence[Source]
    tails: Sequence[Tail]
    shapes: Sequence[tuple[int, ...]]
    placements: Mapping[tuple[int, int], Placement]
    zero_boxes: Mapping[tuple[int, int], Box]
    supplies: dict[int, list[Supply]] = field(default_factory=dict)
    present: dict[tuple[Need, int], int] = field(default_factory=dict)
    siblings: set[int] = field(default_factory=set)

    def uses(self, index: int) -> tuple[int, ...]:
        """A source and the further uses of the same tensor."""
        return (index, *self.sources[index].siblings)

    def tp_group(self) -> list[Seat]:
        """The seats of one stage: every stage places alike."""
        return [seat for seat in self.seats if seat.pp == self.seats[0].pp]
