"""Which modules a quantisation config lists: its entries, in every spelling in use, looked up fast.

An entry names a module and with it everything inside. It is one of

    model.layers.3.self_attn       a name from the root: it starts with a wrapper
    self_attn, layers.3.mlp.gate   whole segments, anywhere in a name
    *self_attn*, model.layers.3*   a glob, for a full name or one segment
    re:.*mlp\\.gate$                a regular expression from the start of a full name
    Linear                         the class of every quantisable module
"""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

WRAPPERS = frozenset({"model", "language_model"})
# Longest first: each of the others ends one of the first two, so a glob that starts with `*` and
# fits any of them fits one of those two.
PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
# The head stands beside `model`: a glob `model.*` does not mean it.
HEAD, HEAD_PREFIXES = "lm_head", ("language_model.", "")
EVERY_MODULE = "Linear"
ENDINGS = (".weight", ".*", ".")
WILDCARD = re.compile(r"[*?\[]")


@dataclasses.dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one list, as written; `field` is where the config has it, for messages.

    Class names other than Linear mean no module. ValueError if an entry is no regular expression.
    """

    texts: tuple[str, ...] = ()
    field: str = "quantization_config"
    _index: "_Index" = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", _Index(self.texts, self.field))

    def find(self, module: str) -> str | None:
        """The first entry that means this module (a full dotted name) or one that holds it."""
        positions = self._index.positions(module)
        return self.texts[positions[0]] if positions else None

    def find_any(self, modules: Iterable[str]) -> str | None:
        """What the first of the modules that is listed is listed by."""
        return next((text for text in map(self.find, modules) if text is not None), None)

    def find_all(self, module: str) -> tuple[str, ...]:
        """Every entry that means this module, in the list's order."""
        return tuple(self.texts[position] for position in self._index.positions(module))


def read_entries(config: Mapping[str, Any], fields: Sequence[str], prefix: str) -> Entries:
    """The list under the first of the fields that is there and not null; without any, no entry.

    ValueError if it is no list of non-empty strings, or holds an invalid regular expression.
    """
    name = next((name for name in fields if config.get(name) is not None), None)
    if name is None:
        return Entries((), f"{prefix}.{fields[0]}")
    value, field = config[name], f"{prefix}.{name}"
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise ValueError(f"{field} is {_shown(value)}; expected a list of module names")
    return Entries(tuple(value), field)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def matched(entries: Entries, modules: Iterable[str]) -> set[str]:
    """The entries that mean at least one of the modules, also where an earlier entry does too."""
    return {text for module in modules for text in entries.find_all(module)}


class _Index:
    """The positions of the entries that mean a module; each module is looked up once."""

    def __init__(self, texts: Sequence[str], field: str) -> None:
        self._names = _Names()
        self._patterns = _Patterns()
        self._known: dict[str, tuple[int, ...]] = {}
        for position, text in enumerate(texts):
            self._add(position, text, field)

    def _add(self, position: int, text: str, field: str) -> None:
        name = _without_ending(text)
        if text.startswith("re:"):
            self._patterns.add_regex(position, text.removeprefix("re:"), field)
        elif text == EVERY_MODULE:
            self._patterns.add_glob(position, "*")
        elif WILDCARD.search(name) or not _unwrapped(name):
            self._patterns.add_glob(position, name)
        else:
            self._names.add(position, name)

    def positions(self, module: str) -> tuple[int, ...]:
        found = self._known.get(module)
        if found is None:
            bare = _unwrapped(module)
            hits = {*self._names.positions(bare), *self._patterns.positions(bare)}
            found = self._known[module] = tuple(sorted(hits))
        return found


def _without_ending(text: str) -> str:
    for ending in ENDINGS:
        if text.endswith(ending) and len(text) > len(ending):
            return _without_ending(text.removesuffix(ending))
    return text


def _unwrapped(name: str) -> str:
    """The name without the wrappers before it: they differ from exporter to exporter."""
    segments = name.split(".")
    while segments and segments[0] in WRAPPERS:
        del segments[0]
    return ".".join(segments)


class _Names:
    """Entries without wildcards, by name: one look-up per path of segments, however many."""

    def __init__(self) -> None:
        self._rooted: dict[str, list[int]] = {}
        self._anywhere: dict[str, list[int]] = {}
        self._starts: set[str] = set()

    def add(self, position: int, name: str) -> None:
        bare = _unwrapped(name)
        if bare != name:
            self._rooted.setdefault(bare, []).append(position)
            return
        self._anywhere.setdefault(bare, []).append(position)
        self._starts.add(bare.split(".")[0])

    def positions(self, bare: str) -> Iterator[int]:
        segments = bare.split(".")
        for path in _paths(segments) if self._rooted else ():
            yield from self._rooted.get(path, ())
        for start, segment in enumerate(segments):
            for path in _paths(segments[start:]) if segment in self._starts else ():
                yield from self._anywhere.get(path, ())


def _paths(segments: Sequence[str]) -> Iterator[str]:
    return accumulate(segments, lambda path, segment: f"{path}.{segment}")


class _Patterns:
    """Globs and regular expressions; a glob is tried only where its literal text is in the name."""

    def __init__(self) -> None:
        self._by_head: dict[str, list[tuple[int, re.Pattern[str]]]] = {}
        self._open: list[tuple[int, str, re.Pattern[str]]] = []
        self._single: list[tuple[int, re.Pattern[str]]] = []
        self._of_segment: dict[str, tuple[int, ...]] = {}
        self._regexes: list[tuple[int, Callable[[Iterable[object]], bool], re.Pattern[str]]] = []
        self._lengths: set[int] = set()

    def add_glob(self, position: int, glob: str) -> None:
        if "." not in glob:
            self._single.append((position, re.compile(fnmatch.translate(glob))))
        # names get a dot behind them: `.*` then fits the module itself and all that is inside
        literals = re.split(r"[*?]", (glob + ".").partition("[")[0])
        regex = re.compile(fnmatch.translate(glob + ".*"))
        if glob.startswith("*"):
            self._open.append((position, max(literals, key=len), regex))
        else:
            self._by_head.setdefault(literals[0], []).append((position, regex))
            self._lengths.add(len(literals[0]))

    def add_regex(self, position: int, text: str, field: str) -> None:
        try:
            regex = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{field} has {_shown('re:' + text)}: {error}; expected a regular expression"
            ) from error
        # `not such a name` must hold for every spelling: one of them is always another name
        is_negative = text.removeprefix("^").startswith("(?!")
        self._regexes.append((position, all if is_negative else any, regex))

    def positions(self, bare: str) -> Iterator[int]:
        if not (self._by_head or self._open or self._regexes):
            return
        segments = bare.split(".")
        prefixes = HEAD_PREFIXES if segments[0] == HEAD else PREFIXES
        names = [prefix + bare for prefix in prefixes]
        yield from (at for at, test, regex in self._regexes if test(map(regex.match, names)))
        dotted = [name + "." for name in names]
        yield from self._headed(dotted)
        yield from self._opened(dotted[:2])
        for segment in segments if self._single else ():
            yield from self._in_segment(segment)

    def _headed(self, names: Iterable[str]) -> Iterator[int]:
        cuts = [(name, name[:length]) for name in names for length in self._lengths]
        for name, head in [cut for cut in cuts if cut[1] in self._by_head]:
            yield from (at for at, regex in self._by_head[head] if regex.match(name))

    def _opened(self, names: Sequence[str]) -> Iterator[int]:
        both = "\n".join(names)
        for position, _, regex in [glob for glob in self._open if glob[1] in both]:
            if any(map(regex.match, names)):
                yield position

    def _in_segment(self, segment: str) -> tuple[int, ...]:
        if segment not in self._of_segment:
            hits = (at for at, regex in self._single if regex.match(segment))
            self._of_segment[segment] = tuple(hits)
        return self._of_segment[segment]
