"""What this loader does where the reference raised, and where it refuses what the reference loads.

Every record with an error has exactly one row of the table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import write_golden_checkpoint
from support.golden_compare import deviations
from support.golden_differences import unexplained
from support.golden_loads import load_record
from support.golden_records import layout_of, options_of, records, variant_of
from support.loaded import plan_of

RAISED = sorted(key for key, record in records().items() if record["error"] is not None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is done instead of raising: refused with a finding, or loaded as another record says."""

    records: str
    raised: str
    why: str
    code: str | None = None
    message: str = ""
    like: str | None = None


ANSWERS = (
    Answer(
        r"v3-fp8-block-oddq.*",
        raised="AssertionError",
        why="rows of q_a_proj end inside a block, so kv_a_proj has no block grid of its own",
        code="LS207",
        message="192 rows",
    ),
    Answer(
        r"v3-w4afp8.*__sef1",
        raised="RuntimeError",
        why="the shared expert is fp8 in blocks and does not fit a slot of four-bit experts",
        code="LS215",
        message="w4afp8",
    ),
    Answer(
        r"v3-awq@generic.*",
        raised="ValueError",
        why="the codes are decoded in plain torch where a platform has no kernel for it",
        like="v3-awq__tp1r0__ep1__pp1r0__nextn0__sef0",
    ),
)
REFUSED = [key for key in RAISED if next(a for a in ANSWERS if re.fullmatch(a.records, key)).code]
LOADED = [key for key in RAISED if key not in REFUSED]
AWQ = sorted(key for key in records() if key.startswith("v3-awq__"))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("refused")
    return cache(lambda variant: write_golden_checkpoint(variant, root / variant))


@pytest.mark.parametrize("key", RAISED)
def test_every_record_with_an_error_has_one_answer(key: str) -> None:
    assert [a.raised for a in ANSWERS if re.fullmatch(a.records, key)] == [
        records()[key]["error"].partition(":")[0]
    ]


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_loaded_is_refused_before_a_byte_is_read(
    key: str, folder_of: Callable[[str], Path]
) -> None:
    answer = _answer(key)
    found = _load(key, folder_of)
    assert found["refused"]
    assert any(
        (f["code"], f["level"]) == (answer.code, "error") and answer.message in f["message"]
        for f in found["findings"]
    ), found["findings"]


@pytest.mark.parametrize("key", LOADED)
def test_what_the_reference_could_not_decode_is_loaded(
    key: str, folder_of: Callable[[str], Path]
) -> None:
    like = records()[str(_answer(key).like)]
    assert unexplained(deviations(like, _load(key, folder_of))) == []


@pytest.mark.parametrize("key", AWQ)
def test_plain_awq_is_refused_with_the_reason(key: str, folder_of: Callable[[str], Path]) -> None:
    record = records()[key]
    options = replace(options_of(record), quantization="awq")
    plan = plan_of(folder_of("v3-awq"), layout_of(record), options)
    errors = [finding for finding in plan.findings if finding.level == "error"]
    assert [(f.code, "expert" in f.message) for f in errors] == [("LS205", True)]


def test_a_draft_without_draft_tensors_is_refused(folder_of: Callable[[str], Path]) -> None:
    key = "v2lite-bf16__tp1r0__ep1__pp1r0__nextn1__sef0"
    errors = [f for f in _load(key, folder_of)["findings"] if f["level"] == "error"]
    assert [(f["code"], "draft" in f["message"]) for f in errors] == [("LS214", True)]


def _answer(key: str) -> Answer:
    return next(answer for answer in ANSWERS if re.fullmatch(answer.records, key))


def _load(key: str, folder_of: Callable[[str], Path]) -> dict[str, Any]:
    variant = variant_of(records()[key])
    return load_record(records()[key], {variant: folder_of(variant)})
