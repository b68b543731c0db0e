"""Groups of an update as their members come: begun, open, whole, split over buckets."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadscope.loader.groups import Group


@dataclass(slots=True)
class _Progress:
    """A group that began in bucket `since`; `buckets` brought its members."""

    since: int
    have: int = 0
    buckets: set[int] = field(default_factory=set)


class OpenGroups:
    """What has come of each group; a trivial one counts only while its tensor is there in part."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._progress: dict[int, _Progress] = {}
        self._open: dict[int, None] = {}
        self._split: set[int] = set()
        self._complete = 0
        self._countable = sum(not group.is_trivial for group in groups)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def take(
        self, bucket: int, whole: Iterable[int], begun: Iterable[int]
    ) -> tuple[list[str], list[str]]:
        """Note the group of each tensor that became whole, and of each that came in part.

        Names of the groups that are open since this bucket, and of those that it made complete.
        """
        new: dict[int, None] = {}
        completed = []
        for number in whole:
            if self._begin(number, bucket):
                new[number] = None
            if self._add_member(number):
                completed.append(number)
        for number in begun:
            if self._begin(number, bucket):
                new[number] = None
        return (
            [self._groups[number].name for number in new if number in self._open],
            [self._groups[n].name for n in completed if not self._groups[n].is_trivial],
        )

    def rows(self, came: Collection[str], limit: int | None = None) -> list[dict[str, Any]]:
        """The open groups, oldest first: what came of each, what it waits for."""
        return [self._row(number, came) for number in list(self._open)[:limit]]

    def numbers(self, *, is_full: bool) -> dict[str, int]:
        """How many groups there are (of a partial update: have begun), are whole, were split."""
        alone = sum(self._groups[number].is_trivial for number in self._open)
        total = self._countable + alone if is_full else self._complete + len(self._open)
        return {
            "total": total,
            "complete": self._complete,
            "split_across_buckets": len(self._split),
        }

    def _begin(self, number: int, bucket: int) -> bool:
        """Whether the group began just now."""
        progress = self._progress.get(number)
        is_new = progress is None
        if progress is None:
            progress = self._progress[number] = _Progress(bucket)
            self._open[number] = None
        progress.buckets.add(bucket)
        if len(progress.buckets) > 1 and not self._groups[number].is_trivial:
            self._split.add(number)
        return is_new

    def _add_member(self, number: int) -> bool:
        """Whether the group is whole with it."""
        progress, group = self._progress[number], self._groups[number]
        progress.have += 1
        if progress.have < len(group.members):
            return False
        del self._open[number]
        self._complete += not group.is_trivial
        return True

    def _row(self, number: int, came: Collection[str]) -> dict[str, Any]:
        group = self._groups[number]
        return {
            "group": group.name,
            "have": sorted(name for name in group.members if name in came),
            "waits_for": sorted(name for name in group.members if name not in came),
            "since_bucket": self._progress[number].since,
        }
