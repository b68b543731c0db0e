"""The vocabulary of families and formats: what a model holds, what checkpoints call it."""

from dataclasses import dataclass
from typing import Literal

Axis = Literal["tp", "ep", "expert_tp", "vocab"]
Stage = Literal["first", "last", "layer"]
Role = Literal["weight", "scale", "bias"]
FillKind = Literal["checkpoint", "combined", "initial", "shared", "later"]
SlotKind = Literal["part", "one", "each"]

WHOLE = 0  # rows_per or cols_per: one stored element covers the whole dim


@dataclass(frozen=True, slots=True)
class Split:
    """One dim cut over one axis of the layout; a cut falls between units of `unit` elements.

    The last `kept` elements are not cut: every rank holds them behind its own.
    """

    dim: int
    axis: Axis
    unit: int = 1
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One source's share of a fused parameter along its fused dim; `size` for the whole model."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Fill:
    """How a parameter gets its value.

    checkpoint: every element from one tensor; combined: several tensors meet in one element;
    initial: a value that may stay; shared: the other role's tensor; later: an engine's own step.
    The last two are not allocated here.
    """

    kind: FillKind = "checkpoint"
    value: float | None = None
    reason: str | None = None

    @property
    def is_written(self) -> bool:
        """Whether the verdict of a load counts it."""
        return self.kind in ("checkpoint", "combined")

    @property
    def is_allocated(self) -> bool:
        return self.kind not in ("shared", "later")


@dataclass(frozen=True, slots=True)
class Param:
    """One kind of parameter of the whole model, before cutting.

    `name` is a pattern: {layer} stands for a layer number, {leaf} for what the scheme stores.
    `symbols` names the config fields behind each dim, for messages. `layers` is a bit mask.
    `dtype` counts where the scheme does not decide; `accepts` lists stored dtypes that may be
    narrowed to it with a warning. `shares_scale`: its parts have one scale per tensor in common.
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
    shares_scale: bool = False

    @property
    def is_quantizable(self) -> bool:
        return "{leaf}" in self.name

    @property
    def is_stacked(self) -> bool:
        """Whether dim 0 counts experts."""
        return any(split.axis == "ep" for split in self.splits)


@dataclass(frozen=True, slots=True)
class Rule:
    """What checkpoints call a parameter or a part of it. `source` is the rule's id everywhere.

    `pair` is the partner without which the parameter is not whole. `is_dequantised`: a quantised
    source of an unquantised target is turned into floats on its way. `is_alternative`: another
    name for what other rules bring, a whole parameter (`part` None) at once. `expert` fixes the
    expert of a source that has no number. `mixtral` is its name in files that use w1, w2, w3.
    `follows_header`: stored plain or quantised, whatever the config says.
    """

    source: str
    target: str
    part: str | None = None
    pair: str | None = None
    is_dequantised: bool = False
    follows_header: bool = False
    is_alternative: bool = False
    expert: int | None = None
    mixtral: str | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """A name that is not loaded, in `layers` (bit mask), and why."""

    source: str
    reason: str
    layers: int = -1


@dataclass(frozen=True, slots=True)
class Output:
    """One derived tensor: whole-model shape, memory order of its dims, the dim that tp cuts."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str
    split_dim: int | None = 0


@dataclass(frozen=True, slots=True)
class Derive:
    """A post-load step per layer: `op` turns the input parameters into the outputs.

    `inputs` are full parameter patterns in the operation's order; `block` the rows and columns
    that one scale covers; `dtype` what the operation computes in.
    """

    op: str
    module: str
    table: str
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    layers: int
    block: tuple[int, int] = (1, 1)
    scalars: tuple[tuple[str, float], ...] = ()
    flags: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Everything a model holds; a parameter that no rule names keeps its name in the files."""

    name: str
    params: tuple[Param, ...]
    rules: tuple[Rule, ...]
    skips: tuple[Skip, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One stored tensor of a quantised weight [rows, cols].

    An element covers rows_per x cols_per of the weight (WHOLE: all of that dim). Transposed
    leaves are stored [cols, rows]. Expert leaves of one element per tensor have an element per
    part ("part"), one in all ("one"), or the same in each part's element ("each"); the last two
    take the greatest of the parts. `is_global`: every rank holds all experts' elements.
    `stored` is the leaf in the files where it differs, `convert` the operation between them,
    `arguments` its numbers.
    """

    name: str
    dtype: str
    rows_per: int = 1
    cols_per: int = 1
    role: Role = "weight"
    is_transposed: bool = False
    slot: SlotKind = "part"
    is_global: bool = False
    is_mixtral: bool = False
    fill: Fill = Fill()
    accepts: tuple[str, ...] = ()
    stored: "Leaf | None" = None
    convert: str | None = None
    arguments: tuple[int, ...] = ()

    @property
    def is_per_tensor(self) -> bool:
        return self.rows_per == self.cols_per == WHOLE


@dataclass(frozen=True, slots=True)
class Scheme:
    """What one quantised weight is stored as.

    `dequantise` names the operation to floats and the leaves it takes, in its order; `block` its
    numbers. `kv_b` is the row of the table of derived tensors. Parts that must share one
    `tensor_scale` have the leaf `rescaled` turned to the greatest of theirs. Leaves that a
    parameter has no place for may be in the files as `unused`.
    """

    name: str
    leaves: tuple[Leaf, ...]
    kv_b: str
    dequantise: str | None = None
    dequantised_leaves: tuple[str, ...] = ()
    block: tuple[int, int] = (1, 1)
    rescaled: str | None = None
    tensor_scale: str = "weight_scale"
    unused: tuple[str, ...] = ()

    @property
    def is_quantised(self) -> bool:
        return self.dequantise is not None
