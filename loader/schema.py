"""What one model holds and what checkpoints may call it, in stored elements: kinds, not names."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loadscope.loader.findings import Finding
from loadscope.loader.tables import WHOLE, Fill, Part, Role, Scheme, Split, Stage

TOP = 1  # layer mask of what stands outside the layers: one place, bit 0

# column labels of the heat map: the module, without what every name has
SHORT_NAMES = (
    ("self_attn.", "attn."),
    ("mlp.shared_experts.", "shared."),
    ("mlp.experts.", "experts."),
    ("mlp.gate.e_score_correction_bias", "router.bias"),
    ("mlp.gate.", "router."),
    (".weight_scale_inv", ".scale"),
    ("_weight_scale_inv", ".scale"),
    ("fused_qkv_a_proj_with_mqa", "qkv_a"),
    ("kv_a_proj_with_mqa", "kv_a"),
    ("_layernorm", "_norm"),
    ("_proj", ""),
)
PLACES = ("model.layers.{layer}.", "model.decoder.", "model.")


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of parameter in stored elements, whole model; `table` is its Param's pattern.

    `per` says how many logical elements one stored element covers in each dim (WHOLE: all), and
    `logical` how many there are (of each part: `logical_parts`). `experts`: how many experts dim
    0 counts, 0 if it counts none; `fused_experts` of them stand behind the routed ones. `scheme`
    is what stores it, `decided_by` the config entry that says so.
    """

    name: str
    table: str
    dtype: str
    shape: tuple[int, ...]
    logical: tuple[int, ...]
    per: tuple[int, ...]
    symbols: tuple[str, ...]
    splits: tuple[Split, ...]
    parts: tuple[Part, ...]
    part_dim: int
    logical_parts: tuple[int, ...]
    layers: int
    stage: Stage
    fill: Fill
    role: Role
    accepts: tuple[str, ...]
    experts: int
    fused_experts: int
    scheme: str
    decided_by: str

    @property
    def is_stacked(self) -> bool:
        """Whether dim 0 counts experts."""
        return self.experts > 0

    @property
    def is_vocabulary(self) -> bool:
        return any(split.axis == "vocab" for split in self.splits)

    @property
    def module(self) -> str:
        """Column of the heat map: the module without its layer and leaf."""
        place = next((p for p in PLACES if self.name.startswith(p)), "")
        text = self.name[len(place) :]
        for long, short in SHORT_NAMES:
            text = text.replace(long, short)
        return text.removesuffix(".weight").removesuffix("_weight")

    def full_name(self, layer: int) -> str:
        return self.name.replace("{layer}", str(layer))


class Need(NamedTuple):
    """A checkpoint name, as an input of the conversion that `carrier` stands for, if any."""

    name: str
    carrier: str | None


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of checkpoint tensor and one use of it; `target` None: skipped for `reason`.

    `shape` is the stored tensor's. `extent` is the share of the target that it brings, from
    `origin` on in the stored tensor. `pair` names the kind it waits for. `convert` turns
    `inputs` (names, in the operation's order) into the extent; the `carrier` among them stands
    for the result, the others only feed it. `siblings` are further uses of the same tensor.
    It may mean experts first_expert … first_expert + experts - 1; 0 if none.
    """

    name: str
    rule: str
    target: int | None = None
    part: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    extent: tuple[int, ...] = ()
    origin: tuple[int, ...] = ()
    per: tuple[int, ...] = ()
    logical: tuple[int, ...] = ()
    symbols: tuple[str, ...] = ()
    role: Role = "weight"
    layers: int = TOP
    experts: int = 0
    first_expert: int = 0
    pair: str | None = None
    convert: str | None = None
    inputs: tuple[str, ...] = ()
    carrier: str | None = None
    arguments: tuple[int, ...] = ()
    is_alternative: bool = False
    siblings: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def feeds(self) -> bool:
        """Whether it only feeds another source's conversion and writes nothing itself."""
        return self.carrier is not None and self.carrier != self.name

    @property
    def needs(self) -> tuple[Need, ...]:
        """Other sources without which it is not usable: inputs of its own conversion, its pair."""
        others = [Need(name, self.carrier) for name in self.inputs if name != self.name]
        if self.pair is not None and self.pair not in self.inputs:
            others.append(Need(self.pair, None))
        return tuple(others)

    @property
    def offers(self) -> tuple[Need, ...]:
        """What it can be to others: an input of its conversion, a half of a pair."""
        return (Need(self.name, None), *([Need(self.name, self.carrier)] if self.carrier else []))

    @property
    def is_read_whole(self) -> bool:
        """A converted tensor is read whole on every rank that needs any of the result."""
        return self.convert is not None

    @property
    def outcome(self) -> str:
        if self.target is None:
            return "skipped"
        is_joined = len(self.inputs) > 1 and self.convert != "greatest"
        return "fused" if self.pair is not None or is_joined else "loaded"

    def full_name(self, layer: int, expert: int) -> str:
        return self.name.replace("{layer}", str(layer)).replace("{expert}", str(expert))


@dataclass(slots=True)
class Schema:
    """All targets and sources; `known` lists what a name pattern may mean, by layer and dtype.

    `schemes` are those of its targets, by name.
    """

    targets: list[Target] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    known: dict[str, list[int]] = field(default_factory=dict)
    schemes: dict[str, Scheme] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, source: Source) -> int:
        """A source of its own. Two that could decide one name would be our mistake."""
        for index in self.known.get(source.name, ()):
            other = self.sources[index]
            clash = other.layers & source.layers and other.dtype == source.dtype
            assert not clash, f"two rules for {source.name}"
        self.sources.append(source)
        self.known.setdefault(source.name, []).append(len(self.sources) - 1)
        return len(self.sources) - 1

    def add_sibling(self, first: int, source: Source) -> int:
        """Another use of the tensor that source `first` already uses."""
        self.sources.append(source)
        index = len(self.sources) - 1
        owner = self.sources[first]
        self.sources[first] = replace(owner, siblings=(*owner.siblings, index))
        return index

    def add_use(self, source: Source) -> int:
        """A sibling of the source of the same name, dtype and layers, or a source of its own."""
        for index in self.known.get(source.name, ()):
            owner = self.sources[index]
            if (owner.dtype, owner.layers) == (source.dtype, source.layers):
                return self.add_sibling(index, source)
        return self.add(source)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def stored_size(logical: int, per: int) -> int:
    """Stored elements along a dim of `logical` elements."""
    return 1 if per == WHOLE else ceil_div(logical, per)
