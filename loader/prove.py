"""Proof that a plan writes every element once: its own code, sharing no arithmetic with placing.

It counts how often each element of a box is covered (a sweep over cut points), and checks that
slices follow one another in the order of ranks, parts and experts (running sums, no products).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import or_

from loadscope.loader.coverage import multiplicity
from loadscope.loader.findings import Finding, finding
from loadscope.loader.place import Box
from loadscope.loader.proof_order import check_order, check_scales
from loadscope.loader.proof_subject import Subject, Supply
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Need, Source, Target
from loadscope.loader.topology import Layout, Seat, compact, layers_in

MAX_NAMES = 8


def prove(subject: Subject) -> list[Finding]:
    """All that is wrong: gaps, overlaps, lost elements, torn pairs, slices out of order."""
    findings = check_order(subject)
    findings += _lost(subject)
    findings += check_scales(subject)
    subject.supplies = _supplies(subject)
    subject.present = _present(subject)
    subject.siblings = {index for source in subject.sources for index in source.siblings}
    for index, target in enumerate(subject.targets):
        if target.fill.is_allocated:
            findings += _TargetProof(subject, index).run()
    return [*findings, *_two_names(subject)]


def _two_names(subject: Subject) -> Iterable[Finding]:
    """Two checkpoint names that mean one place: two spellings, or a wrapped copy."""
    for rows in subject.supplies.values():
        by_place: dict[tuple[int, int], list[Supply]] = {}
        for supply in rows:
            by_place.setdefault((supply.source, supply.expert), []).append(supply)
        for doubles in (group for group in by_place.values() if len(group) > 1):
            first, second = doubles[:2]
            both = first.present & second.present
            if both and first.tail is not None and second.tail is not None:
                yield _double(subject, first.source, both, first.tail, second.tail)


def _double(subject: Subject, index: int, both: int, first: Tail, second: Tail) -> Finding:
    source, layer = subject.sources[index], layers_in(both)[0]
    names = [first.name(layer), second.name(layer)]
    return finding(
        "LS304",
        names[1],
        f"{names[0]} and {names[1]} both mean {source.name}",
        fix="keep one of the two in the checkpoint",
        pattern=second.pattern,
        count=both.bit_count(),
        example=names[1],
        evidence={"names": names, "elements": prod(source.shape) * both.bit_count()},
        rule=source.rule,
    )


def _supplies(subject: Subject) -> dict[int, list[Supply]]:
    """Per target every name that could fill it, with the layers in which it does."""
    by_place: dict[tuple[int, int], list[Tail]] = {}
    for tail in subject.tails:
        if tail.source is not None and subject.sources[tail.source].target is not None:
            for index in subject.uses(tail.source):
                by_place.setdefault((index, tail.expert), []).append(tail)
    supplies: dict[int, list[Supply]] = {}
    for index, source in enumerate(subject.sources):
        if source.target is None:
            continue
        rows = supplies.setdefault(source.target, [])
        first = source.first_expert
        for expert in range(first, first + max(source.experts, 1)):
            found = by_place.get((index, expert))
            if found is None:
                rows.append(Supply(index, expert, 0, None))
            else:
                rows += [Supply(index, expert, tail.routed, tail) for tail in found]
    return supplies


def _present(subject: Subject) -> dict[tuple[Need, int], int]:
    present: dict[tuple[Need, int], int] = {}
    needed = {need for source in subject.sources for need in source.needs}
    for tail in subject.tails:
        if tail.source is None or not tail.routed:
            continue
        uses = subject.uses(tail.source)
        for offer in needed & {o for index in uses for o in subject.sources[index].offers}:
            present[offer, tail.expert] = present.get((offer, tail.expert), 0) | tail.routed
    return present


class _TargetProof:
    """Gap and overlap of one target, once per class of layers that are supplied alike."""

    def __init__(self, subject: Subject, index: int) -> None:
        self.subject = subject
        self.index = index
        self.target = subject.targets[index]
        self.supplies = subject.supplies.get(index, [])
        self.torn: list[tuple[Supply, str, int]] = []
        self.usable = self._usable()
        self.layers = self.target.layers
        if self.target.fill.kind == "initial":
            # it may stay unset, but not half set
            self.layers &= reduce(or_, (mask for _supply, mask in self.usable), 0)
        self.gaps = _Tally()
        self.overlaps = _Tally()

    def _usable(self) -> list[tuple[Supply, int]]:
        """Supplies that write, each with the layers in which its inputs are all there."""
        usable = []
        siblings = self.subject.siblings
        for supply in self.supplies:
            source = self.subject.sources[supply.source]
            mask = supply.present
            for need in source.needs:
                partner = self.subject.present.get((need, supply.expert), 0)
                if mask & ~partner and not (source.feeds and supply.source in siblings):
                    self.torn.append((supply, need.name, mask & ~partner))
                if source.convert is not None:
                    mask &= partner
            if not source.feeds and (mask or not source.is_alternative):
                usable.append((supply, mask))
        return usable

    def run(self) -> list[Finding]:
        for mask in self._layer_classes():
            present = [supply for supply, layers in self.usable if layers & mask]
            for seat in self.subject.seats:
                held = mask & self._held(seat)
                if held:
                    self._count(seat, held, present)
        return [*self._torn_findings(), *self._findings(), *self._half_set()]

    def _half_set(self) -> Iterable[Finding]:
        """An initial value that stays in some layers only is rarely meant."""
        unset = self.target.layers & ~self.layers
        if not self.layers or not unset:
            return
        layers = layers_in(unset)
        name = self.target.full_name(layers[0])
        yield finding(
            "LS506",
            name,
            f"{name}: layers {compact(layers)} keep {self.target.fill.value}, layers "
            f"{compact(layers_in(self.layers))} have it in the files",
            fix="add the missing scales, or leave them out of all layers",
            pattern=self.target.name,
            count=len(layers),
            example=name,
            evidence={"unset": compact(layers), "set": compact(layers_in(self.layers))},
        )

    def _layer_classes(self) -> list[int]:
        """Layers split into classes in which each supply is present everywhere or nowhere."""
        classes = [self.layers] if self.layers else []
        for mask in {layers for _supply, layers in self.usable}:
            classes = [part for c in classes for part in (c & mask, c & ~mask) if part]
        return classes

    def _held(self, seat: Seat) -> int:
        stage, last = self.target.stage, self.subject.layout.pp_size - 1
        if stage == "layer":
            return self.subject.stage_masks[seat.pp]
        return 1 if seat.pp == (0 if stage == "first" else last) else 0

    def _count(self, seat: Seat, held: int, present: list[Supply]) -> None:
        boxes = self._boxes(seat, present)
        counts = multiplicity(boxes, self.subject.shapes[self.index])
        layers = layers_in(held)
        missing = counts.get(0, 0)
        doubled = sum(n for times, n in counts.items() if times > 1 or times == -1)
        if missing:
            self.gaps.add(self.target, layers, missing, seat, self._absent(present))
        if doubled:
            self.overlaps.add(self.target, layers, doubled, seat, present)

    def _boxes(self, seat: Seat, present: list[Supply]) -> list[Box]:
        boxes = []
        for supply in present:
            placement = self.subject.placements[(supply.source, seat.tp)]
            source = self.subject.sources[supply.source]
            if not source.experts or placement.slot(supply.expert) is not None:
                boxes.append(placement.target_box_of(supply.expert))
        zero = self.subject.zero_boxes.get((self.index, seat.tp))
        return boxes if zero is None else [*boxes, zero]

    def _absent(self, present: list[Supply]) -> list[Supply]:
        sources = self.subject.sources
        there = {(sources[s.source].name, s.expert) for s in present}
        lost = (s for s, _m in self.usable if (sources[s.source].name, s.expert) not in there)
        return [s for s in lost if not self.subject.sources[s.source].is_alternative]

    def _findings(self) -> Iterable[Finding]:
        if self.gaps.elements:
            yield self._gap()
        if self.overlaps.elements:
            yield finding(
                "LS502",
                self.overlaps.example,
                f"{self.overlaps.example}: {self.overlaps.elements:,} elements are written "
                f"more than once or outside the parameter",
                fix="remove the second tensor that fills the same place",
                pattern=self.target.name,
                count=self.overlaps.count,
                example=self.overlaps.example,
                evidence={**self.overlaps.evidence(), "tensors": self._rivals()},
            )

    def _rivals(self) -> list[str]:
        """Some tensors that fill the parameter where it is filled twice, fused ones first."""
        sources = self.subject.sources
        found = sorted(self.overlaps.supplies, key=lambda s: not sources[s.source].is_alternative)
        names = (self._wanted(s, self.overlaps.first_layer) for s in found)
        return list(dict.fromkeys(names))[:MAX_NAMES]

    def _gap(self) -> Finding:
        gaps = self.gaps
        absent = dict.fromkeys(
            name for supply in gaps.supplies for name in self._missing(supply, gaps.first_layer)
        )
        wanted = list(absent)[:MAX_NAMES]
        rest = len(absent) - len(wanted)
        names = ", ".join(wanted) + (f" and {rest} more" if rest else "")
        return finding(
            "LS501",
            gaps.example,
            f"{gaps.example}: {gaps.elements:,} elements over all ranks are never written; "
            f"missing or unusable: {names}",
            fix="add the missing tensors, or correct what the other findings name",
            pattern=self.target.name,
            count=gaps.count,
            example=gaps.example,
            evidence={**gaps.evidence(), "missing": wanted, "missing_count": len(absent)},
        )

    def _missing(self, supply: Supply, layer: int) -> list[str]:
        """What a supply lacks: itself, or what it cannot be used without."""
        if not supply.present >> layer & 1:
            return [self._wanted(supply, layer)]
        source = self.subject.sources[supply.source]
        return [
            need.name.replace("{layer}", str(layer)).replace("{expert}", str(supply.expert))
            for need in source.needs
            if not self.subject.present.get((need, supply.expert), 0) >> layer & 1
        ]

    def _wanted(self, supply: Supply, layer: int) -> str:
        return self.subject.sources[supply.source].full_name(layer, supply.expert)

    def _torn_findings(self) -> Iterable[Finding]:
        groups: dict[tuple[int, str], list[tuple[Supply, int]]] = {}
        for supply, needed, mask in self.torn:
            groups.setdefault((supply.source, needed), []).append((supply, mask))
        for (index, needed), rows in groups.items():
            source = self.subject.sources[index]
            supply, mask = rows[0]
            layers = layers_in(mask)
            name = source.full_name(layers[0], supply.expert)
            partner = needed.replace("{layer}", str(layers[0]))
            partner = partner.replace("{expert}", str(supply.expert))
            yield finding(
                "LS504",
                name,
                f"{name} waits for {partner}, which is not in the checkpoint or cannot be used",
                fix="add the missing half: both are needed for one parameter",
                pattern=source.name,
                count=sum(mask.bit_count() for _s, mask in rows),
                example=name,
                evidence={
                    "waits_for": partner,
                    "layers": compact(layers),
                    "elements": prod(source.shape) * len(layers),
                },
                rule=source.rule,
            )


@dataclass(slots=True)
class _Tally:
    """Elements of one fault over layers and ranks."""

    elements: int = 0
    example: str = ""
    first_layer: int = 0
    names: set[str] = field(default_factory=set)
    ranks: dict[int, int] = field(default_factory=dict)
    supplies: list[Supply] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.names)

    def add(
        self, target: Target, layers: list[int], each: int, seat: Seat, supplies: list[Supply]
    ) -> None:
        if not self.names:
            self.example, self.first_layer = target.full_name(layers[0]), layers[0]
            self.supplies = supplies
        self.names.update(target.full_name(layer) for layer in layers)
        self.elements += each * len(layers)
        self.ranks[seat.rank] = self.ranks.get(seat.rank, 0) + each * len(layers)

    def evidence(self) -> dict[str, object]:
        return {
            "elements": self.elements,
            "ranks": {str(rank): n for rank, n in sorted(self.ranks.items())},
            "names": sorted(self.names)[:MAX_NAMES],
        }


def _lost(subject: Subject) -> list[Finding]:
    """Every source element must reach as many ranks of its stage as its parameter has copies."""
    findings = []
    seats = subject.tp_group()
    for index, source in enumerate(subject.sources):
        if source.target is None or source.feeds:
            continue
        target = subject.targets[source.target]
        copies = _copies(target, source, subject.layout)
        fewest = _delivery(subject, index, source, seats)
        total = prod(source.extent) * max(source.experts, 1)
        wrong = total - fewest.get(copies, 0)
        if wrong:
            findings.append(_lost_finding(source, target, wrong, copies, fewest))
    return findings


def _copies(target: Target, source: Source, layout: Layout) -> int:
    """How many ranks of a TP group hold each element, by the axes that cut it."""
    axes = {split.axis for split in target.splits}
    if axes & {"tp", "vocab"}:
        return 1
    if not axes:
        return layout.tp_size
    if source.experts and source.first_expert >= target.experts - target.fused_experts:
        # behind the routed experts: cut inside the expert only
        axes.discard("ep")
        return layout.ep_size if "expert_tp" in axes else layout.tp_size
    if "ep" in axes and "expert_tp" in axes:
        return 1
    return layout.tp_size // layout.ep_size


def _delivery(
    subject: Subject, index: int, source: Source, seats: Sequence[Seat]
) -> dict[int, int]:
    """{ranks reached: source elements}, over all experts; owners with equal boxes count once."""
    placements = [subject.placements[(index, seat.tp)] for seat in seats]
    if not source.experts:
        return multiplicity([_from_origin(p.source_box, source) for p in placements], source.extent)
    total: dict[int, int] = {}
    groups: dict[tuple[Box, ...], int] = {}
    for expert in range(source.first_expert, source.first_expert + source.experts):
        held = (p for p in placements if p.slot(expert) is not None)
        boxes = tuple(_from_origin(p.source_box, source) for p in held)
        groups[boxes] = groups.get(boxes, 0) + 1
    for boxes, experts in groups.items():
        for times, volume in multiplicity(boxes, source.extent).items():
            total[times] = total.get(times, 0) + volume * experts
    return total


def _from_origin(box: Box, source: Source) -> Box:
    return tuple((a - o, b - o) for (a, b), o in zip(box, source.origin, strict=True))


def _lost_finding(
    source: Source, target: Target, wrong: int, copies: int, counts: dict[int, int]
) -> Finding:
    return finding(
        "LS503",
        source.name,
        f"{source.name}: {wrong:,} elements of each layer do not reach exactly {copies} rank(s) of "
        f"their stage for {target.name}",
        fix="this is a fault of the planner: report it with the layout and the config",
        pattern=source.name,
        evidence={
            "elements": wrong,
            "copies": copies,
            "reached": {str(k): v for k, v in counts.items()},
        },
        rule=source.rule,
    )
