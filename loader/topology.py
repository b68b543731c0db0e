"""The layout of ranks: which seat a rank has on each axis, which layers a stage holds."""

from dataclasses import dataclass

from loadscope.loader.tables import Axis


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place: stage, place in the TP group, expert group, place inside an expert."""

    rank: int
    pp: int
    tp: int
    ep: int
    expert_tp: int

    def index(self, axis: Axis) -> int:
        return {"tp": self.tp, "vocab": self.tp, "ep": self.ep, "expert_tp": self.expert_tp}[axis]


@dataclass(frozen=True, slots=True)
class Layout:
    """tp_size x pp_size ranks, TP fastest; EP divides the TP group (ep_size <= tp_size)."""

    tp_size: int = 1
    ep_size: int = 1
    pp_size: int = 1

    def __post_init__(self) -> None:
        for name in ("tp_size", "ep_size", "pp_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")

    @property
    def world(self) -> int:
        return self.tp_size * self.pp_size

    def ways(self, axis: Axis) -> int:
        """In how many pieces an axis cuts."""
        if axis == "ep":
            return self.ep_size
        return self.tp_size // self.ep_size if axis == "expert_tp" else self.tp_size

    def seat(self, rank: int) -> Seat:
        if not 0 <= rank < self.world:
            raise ValueError(
                f"rank {rank} does not exist: this layout has ranks 0 to {self.world - 1}"
            )
        pp, tp = divmod(rank, self.tp_size)
        ep, expert_tp = divmod(tp, self.ways("expert_tp"))
        return Seat(rank=rank, pp=pp, tp=tp, ep=ep, expert_tp=expert_tp)

    def seats(self) -> tuple[Seat, ...]:
        return tuple(self.seat(rank) for rank in range(self.world))

    def stage_layers(self, pp: int, num_layers: int) -> range:
        """Layers of one stage; the last stages take one more each when they do not divide."""
        base, rest = divmod(num_layers, self.pp_size)
        longer_before = max(0, pp - (self.pp_size - rest))
        start = pp * base + longer_before
        return range(start, start + base + (1 if pp >= self.pp_size - rest else 0))

    def as_json(self) -> dict[str, int]:
        return {
            "tp_size": self.tp_size,
            "ep_size": self.ep_size,
            "pp_size": self.pp_size,
            "ranks": self.world,
        }


def mask_of(layers: range) -> int:
    """Bit mask of a range of layers."""
    return ((1 << len(layers)) - 1) << layers.start


def layers_in(mask: int) -> list[int]:
    """Layer numbers of a bit mask, ascending."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def compact(numbers: list[int]) -> str:
    """Ascending numbers as text: 0-2,5,7-60."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
