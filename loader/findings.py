"""What can be wrong with a checkpoint, a layout or a load: codes, levels and their text form.

LS1xx files · LS2xx config and layout · LS3xx names · LS4xx shapes and dtypes
LS5xx proof · LS6xx execution · LS7xx updates
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Code:
    level: Level
    title: str


CODES: dict[str, Code] = {
    "LS101": Code("error", "index names a shard that is not there"),
    "LS102": Code("error", "index entry whose tensor is not in that shard"),
    "LS103": Code("error", "shard is shorter than its header says"),
    "LS104": Code("error", "shard has bytes past the end of its tensors"),
    "LS105": Code("error", "tensor offsets overlap, leave a hole or are out of range"),
    "LS106": Code("error", "shape times dtype is not the byte count"),
    "LS107": Code("error", "unknown dtype tag"),
    "LS108": Code("error", "header is not usable JSON"),
    "LS109": Code("error", "header length is beyond the file or the cap"),
    "LS110": Code("error", "duplicate key in JSON"),
    "LS111": Code("error", "index value is not a plain file name"),
    "LS112": Code("error", "link that points nowhere"),
    "LS113": Code("error", "file of zero bytes"),
    "LS114": Code("error", "one name in two shards and no index to decide"),
    "LS115": Code("warning", "one name in two shards: the index decides"),
    "LS116": Code("warning", "tensor in a shard but in no index entry"),
    "LS117": Code("note", "total_size differs from the payload"),
    "LS118": Code("error", "shards without a config.json"),
    "LS119": Code("error", "config.json without shards"),
    "LS120": Code("error", "index is not usable"),
    "LS121": Code("error", "file cannot be read"),
    "LS122": Code("error", "header entry that is not a tensor"),
    "LS201": Code("error", "config.json is not usable"),
    "LS202": Code("error", "config field missing or of the wrong type"),
    "LS203": Code("note", "config field defaulted"),
    "LS204": Code("error", "model type not supported"),
    "LS205": Code("error", "quantisation not supported"),
    "LS206": Code("error", "layout does not divide the model"),
    "LS207": Code("error", "cut inside a quantisation block"),
    "LS208": Code("error", "config contradicts the headers"),
    "LS209": Code("warning", "layers beyond the model"),
    "LS210": Code("note", "draft layer"),
    "LS211": Code("warning", "--set names a field that the loader does not use"),
    "LS212": Code("error", "fused parts disagree about quantisation"),
    "LS213": Code("note", "entries of an include or exclude list that mean no module"),
    "LS214": Code("error", "draft asked for but not in the files"),
    "LS215": Code("error", "shared experts cannot be fused"),
    "LS216": Code("error", "derived tensors cannot be computed"),
    "LS217": Code("note", "option without effect"),
    "LS301": Code("warning", "name that no rule knows"),
    "LS302": Code("warning", "rule that matched nothing"),
    "LS303": Code("note", "name accepted under another spelling"),
    "LS304": Code("error", "two names for one place"),
    "LS401": Code("error", "wrong shape"),
    "LS402": Code("error", "wrong dtype"),
    "LS403": Code("error", "quantised by the config but not in the file, or the reverse"),
    "LS404": Code("note", "exact widening"),
    "LS405": Code("warning", "narrowing cast"),
    "LS501": Code("error", "gap: elements that nothing writes"),
    "LS502": Code("error", "overlap: elements written more than once"),
    "LS503": Code("error", "lost: elements that reach no rank, or not every rank they should"),
    "LS504": Code("error", "pair that can never be completed"),
    "LS505": Code(
        "error", "misplaced: the slices do not follow the order of ranks, parts or experts"
    ),
    "LS506": Code("warning", "initial value kept in some layers, stored in others"),
    "LS601": Code("error", "load failed"),
    "LS602": Code("error", "checkpoint does not fit the loaded parameters"),
    "LS603": Code("warning", "scales that share one place differ"),
    "LS701": Code("error", "derived tensor that is older than what it comes from"),
    "LS702": Code("error", "tensor that has moved in memory"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact a user must know; grouped by pattern, `count` says how many names it stands for."""

    code: str
    level: Level
    subject: str
    message: str
    fix: str
    pattern: str | None = None
    count: int = 1
    example: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)
    rule: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "level": self.level,
            "subject": self.subject,
            "pattern": self.pattern,
            "count": self.count,
            "example": self.example,
            "message": self.message,
            "evidence": dict(self.evidence),
            "rule": self.rule,
            "fix": self.fix,
        }


def finding(
    code: str,
    subject: str,
    message: str,
    *,
    fix: str,
    level: Level | None = None,
    pattern: str | None = None,
    count: int = 1,
    example: str | None = None,
    evidence: Mapping[str, object] | None = None,
    rule: str | None = None,
) -> Finding:
    """A finding with the level that its code has, unless the case is milder or worse."""
    return Finding(
        code=code,
        level=CODES[code].level if level is None else level,
        subject=subject,
        message=message,
        fix=fix,
        pattern=pattern,
        count=count,
        example=example,
        evidence=evidence if evidence is not None else {},
        rule=rule,
    )


def sort_by_level(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors first, then by code; the order inside a code is kept."""
    return tuple(sorted(findings, key=lambda f: (LEVELS.index(f.level), f.code)))
