"""Faults of files to findings: grouped by code and file, thousands of faults in a few lines."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loadscope.loader.findings import Finding, Level, finding
from loadscope.loader.strict_json import kind_of

EXAMPLES = 5
FILES_NAMED_APART = 8
_HOLES = (
    (re.compile(r"(?<=\blayers\.)\d+"), "{layer}"),
    (re.compile(r"(?<=\bexperts\.)\d+"), "{expert}"),
)
_AGAIN = "copy or download the file again"
_REWRITE = "write the file again with the safetensors library"

FIXES: dict[str, str] = {
    "LS101": "copy the missing file beside the index, or download the checkpoint again",
    "LS102": "write the index again from the shards, or restore the shard that had the tensor",
    "LS103": f"the file is cut short: {_AGAIN}",
    "LS104": f"{_AGAIN}; if it stays the same, {_REWRITE}",
    "LS105": _REWRITE,
    "LS106": f"correct the shape or the dtype, or {_REWRITE}",
    "LS107": "convert the tensor to a dtype of the safetensors format",
    "LS108": f"{_AGAIN}; if it stays the same, {_REWRITE}",
    "LS109": f"the file is cut short or is no safetensors file: {_AGAIN}",
    "LS110": "remove one of the two entries: which one counts is undefined",
    "LS111": "name a file of the same directory, without any path",
    "LS112": "restore the file that the link names, or replace the link by the file",
    "LS113": _AGAIN,
    "LS114": "add an index that decides, or remove one of the two tensors",
    "LS115": "nothing, if the index is right; otherwise correct the index",
    "LS116": "add the tensors to the index if they are wanted; they are not used now",
    "LS117": "nothing: the bytes that the headers state are used",
    "LS118": "copy config.json into the directory of the shards",
    "LS119": "copy the *.safetensors files beside config.json",
    "LS120": "write the index again from the shards, or remove it: the shards are complete alone",
    "LS121": "make it a file that this user may read",
    "LS122": _REWRITE,
    "LS201": "copy config.json from the model's publisher again",
}


@dataclass(slots=True)
class _Group:
    text: str
    level: Level | None
    count: int = 0
    tensors: list[str] = field(default_factory=list)
    patterns: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Faults:
    """Collects faults; the first one of a group speaks, the others are counted."""

    groups: dict[tuple[str, str], _Group] = field(default_factory=dict)

    def add(
        self,
        code: str,
        file: str,
        text: str,
        *,
        tensor: str | None = None,
        count: int = 1,
        level: Level | None = None,
    ) -> None:
        group = self.groups.setdefault((code, file), _Group(text, level))
        group.count += count
        if tensor is not None:
            _note_tensor(group, tensor)

    def add_names(self, code: str, file: str, text: str, names: Iterable[str]) -> None:
        """One fault per tensor name, all with the same text."""
        for name in names:
            self.add(code, file, text, tensor=name)

    def add_duplicates(self, file: str, keys: Iterable[str]) -> None:
        for key in keys:
            text = f"found the key {plain(key)} twice; expected unique keys"
            self.add("LS110", file, text, tensor=key)

    def has_errors(self) -> bool:
        return any(made.level == "error" for made in self.findings())

    def findings(self) -> tuple[Finding, ...]:
        by_code: dict[str, list[str]] = {}
        for code, file in self.groups:
            by_code.setdefault(code, []).append(file)
        return tuple(made for code in sorted(by_code) for made in self._of(code, by_code[code]))

    def _of(self, code: str, files: list[str]) -> Iterator[Finding]:
        if len(files) > FILES_NAMED_APART:
            yield self._merged(code, files)
            return
        for file in files:
            group = self.groups[code, file]
            more = f" ({group.count - 1:,} more like it)" if group.count > 1 else ""
            yield _finding(code, plain(file), f"{plain(file)}: {group.text}{more}", group, {})

    def _merged(self, code: str, files: list[str]) -> Finding:
        groups = [self.groups[code, file] for file in files]
        whole = _Group(groups[0].text, groups[0].level, sum(group.count for group in groups))
        for tensor in (tensor for group in groups for tensor in group.tensors):
            _note_tensor(whole, tensor)
        named = [plain(file) for file in files[:FILES_NAMED_APART]]
        message = f"{named[0]}: {whole.text}; the same in {len(files) - 1:,} other files: "
        message += ", ".join(named[1:]) + (" …" if len(files) > len(named) else "")
        return _finding(code, f"{len(files):,} files", message, whole, {"files": named})


def _note_tensor(group: _Group, tensor: str) -> None:
    if len(group.tensors) < EXAMPLES:
        group.tensors.append(plain(tensor))
    if len(group.patterns) < 2:
        group.patterns.add(pattern_of(plain(tensor)))


def _finding(
    code: str, subject: str, message: str, group: _Group, evidence: dict[str, object]
) -> Finding:
    return finding(
        code,
        subject,
        message,
        fix=FIXES[code],
        level=group.level,
        pattern=next(iter(group.patterns)) if len(group.patterns) == 1 else None,
        count=group.count,
        example=group.tensors[0] if group.tensors else None,
        evidence={**evidence, "examples": group.tensors} if group.tensors else evidence,
    )


def pattern_of(name: str) -> str:
    """`layers.3.mlp.experts.7.up_proj` to `layers.{layer}.mlp.experts.{expert}.up_proj`."""
    for indices, hole in _HOLES:
        name = indices.sub(hole, name)
    return name


def plain(text: str, limit: int = 200) -> str:
    """The text as it is, if a terminal and JSON can show it, else escaped; cut at `limit`."""
    start = text[:limit]
    shown = start if start.isprintable() else ascii(start)[1:-1]
    return shown if len(text) <= limit else f"{shown}…"


def shown(value: object, limit: int = 60) -> str:
    """A value of unknown size and kind, short enough to stand in a sentence."""
    if isinstance(value, int) and abs(value) > 1 << 64:
        return "a number beyond 64 bits"
    if isinstance(value, list) and len(value) <= 8 and not any(map(_is_nested, value)):
        return "[" + ", ".join(shown(item, 20) for item in value) + "]"
    if _is_nested(value):
        return kind_of(value)
    return plain(repr(value[:limit] if isinstance(value, str) else value), limit)


def _is_nested(value: object) -> bool:
    return isinstance(value, list | dict)
