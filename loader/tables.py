"""The vocabulary of families and formats: what a model holds, what checkpoints call it."""

from dataclasses import dataclass
from typing import Literal

Axis = Literal["tp", "ep", "expert_tp", "vocab"]
Stage = Literal["first", "last", "layer"]
Role = Literal["weight", "scale", "bias"]
FillKind = Literal["checkpoint", "initial"]


@dataclass(frozen=True, slots=True)
class Split:
    """One dim cut over one axis of the layout; a cut falls between units of `unit` elements."""

    dim: int
    axis: Axis
    unit: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One source's share of a fused parameter along its fused dim; `size` for the whole model."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Fill:
    """How a parameter gets its value: from the checkpoint, or an initial value that may stay."""

    kind: FillKind = "checkpoint"
    value: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """One kind of parameter of the whole model, before cutting.

    `name` is a pattern: {layer} stands for a layer number, {leaf} for what the format stores.
    `symbols` names the config fields behind each dim, for messages. `layers` is a bit mask.
    `dtype` counts where the format does not decide; `accepts` lists stored dtypes that may be
    narrowed to it with a warning.
    """

    name: str
    shape: tuple[int, ...]
    symbols: tuple[str, ...]
    dtype: str
    splits: tuple[Split, ...] = ()
    parts: tuple[Part, ...] = ()
    part_dim: int = 0
    layers: int = 0
    stage: Stage = "layer"
    fill: Fill = Fill()
    role: Role = "weight"
    accepts: tuple[str, ...] = ()

    @property
    def is_quantizable(self) -> bool:
        return "{leaf}" in self.name


@dataclass(frozen=True, slots=True)
class Rule:
    """What checkpoints call a parameter or a part of it. `source` is the rule's id everywhere.

    `pair` is the partner without which the parameter is not whole; `convert` the operation that
    turns a quantised source into the target's dtype (with the source's scale as second input).
    """

    source: str
    target: str
    part: str | None = None
    pair: str | None = None
    convert: str | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Output:
    """One derived tensor: whole-model shape, memory order of its dims, the dim that tp cuts."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    split_dim: int = 0


@dataclass(frozen=True, slots=True)
class Derive:
    """A post-load step per layer: `op` turns the input parameter's leaves into the outputs."""

    op: str
    module: str
    input: str
    outputs: tuple[Output, ...]
    layers: int
    scalars: tuple[tuple[str, float], ...] = ()
    flags: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Everything a model holds; a parameter that no rule names keeps its name in the files."""

    name: str
    params: tuple[Param, ...]
    rules: tuple[Rule, ...]
    skips: tuple[Skip, ...]
    derives: tuple[Derive, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One stored tensor of a quantised weight; an element covers a rows_per x cols_per block."""

    name: str
    dtype: str
    rows_per: int = 1
    cols_per: int = 1
    role: Role = "weight"


@dataclass(frozen=True, slots=True)
class Format:
    """What a quantisation stores per weight, and which modules it leaves alone."""

    name: str
    leaves: tuple[Leaf, ...]
    excluded: tuple[str, ...] = ()
    has_kv_scales: bool = False
    config_entry: str = ""

    def covers(self, module: str) -> bool:
        """Whether the module (a dotted name) is quantised; entries match whole segments."""
        bare = module.removeprefix("model.")
        return not any(
            bare == entry or bare.startswith(entry + ".") or f".{entry}." in f".{bare}."
            for entry in (e.removeprefix("model.") for e in self.excluded)
        )
