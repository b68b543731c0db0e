"""How a load writes: which version it brings, whether it can be undone, which files it reads."""

from collections.abc import Mapping
from dataclasses import dataclass

from loadscope.loader.place import volume
from loadscope.loader.plan import Plan
from loadscope.loader.steps import Step, steps


@dataclass(frozen=True, slots=True)
class Writing:
    """`files`: indices of the shards that are read, None for all; what others hold stays."""

    version: str | None = None
    undo: bool = False
    files: frozenset[int] | None = None

    def steps(self, plan: Plan, rank: int, cells: Mapping[str, int] | None = None) -> list[Step]:
        """The steps of a rank that read these files."""
        found = steps(plan, rank, cells)
        if self.files is None:
            return found
        return [step for step in found if step.file in self.files]


WHOLE = Writing()


def written_elements(plan: Plan, chosen: list[Step]) -> dict[str, int]:
    """Elements that steps write, by parameter; what only feeds a conversion writes none."""
    found: dict[str, int] = {}
    for step in chosen:
        zeros = 0 if step.zero_box is None else volume(step.zero_box)
        filled = sum(
            volume(piece.target_box)
            for piece in step.pieces
            if not plan.sources[piece.source].feeds
        )
        found[step.param] = found.get(step.param, 0) + zeros + filled
    return found
