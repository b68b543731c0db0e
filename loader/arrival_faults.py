"""Why the tensors of a bucket are refused, in rows for machines and one sentence for people."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadscope.loader.findings import Finding

MAX_ROWS = 50
MAX_SUGGESTED_PATTERNS = 10
# what is told first where a bucket has several faults
CODES = ("unknown_tensor", "shape_mismatch", "dtype_mismatch", "duplicate_tensor")
BY_FINDING = {"LS401": "shape_mismatch", "LS402": "dtype_mismatch", "LS403": "dtype_mismatch"}


class ArrivalError(ValueError):
    """A bucket that is refused as a whole.

    `code`: unknown_tensor, shape_mismatch, dtype_mismatch or duplicate_tensor. `count`: how many
    tensors have that fault; `rows`: the first 50, each `name`, `expected`, `got` and `bucket`,
    unknown ones also `nearest`, a list of names. `fix`: what to do about the first.
    """

    def __init__(
        self, code: str, message: str, rows: list[dict[str, Any]], *, fix: str, count: int
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.rows = rows
        self.fix = fix
        self.count = count


@dataclass(slots=True)
class _Fault:
    """All tensors with one code; the first one speaks."""

    text: str
    fix: str
    count: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Faults:
    """The faults of one bucket by code."""

    found: dict[str, _Fault] = field(default_factory=dict)
    nearest: dict[str, list[str]] = field(default_factory=dict)

    def add_unknown(self, name: str, pattern: str, nearest: Callable[[], list[str]]) -> None:
        """`nearest` is asked once per pattern: it compares with every known name."""
        if pattern not in self.nearest:
            is_asked = len(self.nearest) < MAX_SUGGESTED_PATTERNS
            self.nearest[pattern] = nearest() if is_asked else []
        like = self.nearest[pattern]
        hint = f"; nearest known names: {', '.join(like)}" if like else ""
        row = {"expected": "a name of the plan", "got": "no rule knows it", "nearest": like}
        text = f"no rule has a place for {name}{hint}"
        fix = "rename the tensor, leave it out, or name it in the list of what to ignore"
        self._add("unknown_tensor", name, text, fix, row)

    def add_wrong(self, name: str, wrong: Finding) -> None:
        expected, got = wrong.evidence["expected"], wrong.evidence["found"]
        row = {"expected": str(expected), "got": str(got)}
        self._add(BY_FINDING[wrong.code], name, wrong.message, wrong.fix, row)

    def add_again(self, name: str, earlier: str, bucket: int) -> None:
        """`earlier`: the name under which the same came, maybe this one."""
        came = f"{'it' if earlier == name else earlier} came in bucket {bucket}"
        row = {"expected": "once in an update", "got": f"again: {came}"}
        fix = "send every tensor once, under one name"
        self._add("duplicate_tensor", name, f"{name} comes again: {came}", fix, row)

    def raise_any(self, bucket: int) -> None:
        code = next((code for code in CODES if code in self.found), None)
        if code is None:
            return
        fault = self.found[code]
        more = f" ({fault.count - 1:,} more like it)" if fault.count > 1 else ""
        rows = [{**row, "bucket": bucket} for row in fault.rows]
        message = f"bucket {bucket}: {fault.text}{more}"
        raise ArrivalError(code, message, rows, fix=fault.fix, count=fault.count)

    def _add(self, code: str, name: str, text: str, fix: str, row: Mapping[str, Any]) -> None:
        fault = self.found.setdefault(code, _Fault(text, fix))
        fault.count += 1
        if len(fault.rows) < MAX_ROWS:
            fault.rows.append({"name": name, **row})
