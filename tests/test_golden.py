"""What one rank holds after a load equals what the reference loader left, element by element.

Every deviation from a record is a value; a claim fails on those that not exactly one row of the
table of intended differences explains.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import VARIANTS
from support.golden_compare import Deviation, deviations
from support.golden_differences import DIFFERENCES, counts, unexplained
from support.golden_loads import load_record, write_all
from support.golden_matrix import Cell, cells, empty_cells, formats_of, table
from support.golden_records import (
    comparable,
    layout_of,
    like_awq_marlin,
    recorded_files,
    records,
)

Found = Callable[[str], dict[str, Any]]
Deviations = Callable[[str], list[Deviation]]
IDS = comparable()


@pytest.fixture(scope="module")
def golden_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def found(golden_folders: dict[str, Path]) -> Found:
    """The load of a record by its id, made once, of the record's own rank alone."""
    return cache(lambda key: load_record(records()[key], golden_folders))


@pytest.fixture(scope="module")
def differing(found: Found) -> Deviations:
    return cache(lambda key: deviations(records()[key], found(key)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_generator_writes_the_recorded_bytes(
    variant: str, golden_folders: dict[str, Path]
) -> None:
    hashes = {
        f"{variant}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in golden_folders[variant].iterdir()
    }
    recorded = recorded_files()
    assert hashes == {name: recorded[name] for name in recorded if name.startswith(f"{variant}/")}


@pytest.mark.parametrize("key", IDS)
def test_the_model_is_loaded(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "refused") == []


@pytest.mark.parametrize("key", IDS)
def test_parameters_have_the_recorded_names(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "parameter") == []


@pytest.mark.parametrize("key", IDS)
def test_parameters_have_the_recorded_shape_stride_and_dtype(
    key: str, differing: Deviations
) -> None:
    assert unexplained(differing(key), "shape", "stride", "dtype") == []


@pytest.mark.parametrize("key", IDS)
def test_fully_written_parameters_have_the_recorded_bytes(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "sha256", "after_post") == []


@pytest.mark.parametrize("key", IDS)
def test_as_many_elements_stay_unwritten_as_recorded(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "unwritten") == []


@pytest.mark.parametrize("key", IDS)
def test_what_the_reference_leaves_unwritten_has_an_initial_value(
    key: str, differing: Deviations
) -> None:
    assert unexplained(differing(key), "fill") == []


@pytest.mark.parametrize("key", IDS)
def test_derived_tensors_equal_the_recorded_ones(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "derived") == []


@pytest.mark.parametrize("key", IDS)
def test_scalars_and_flags_equal_the_recorded_ones(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "scalar", "flag") == []


@pytest.mark.parametrize("key", IDS)
def test_every_checkpoint_tensor_has_the_recorded_outcome(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "outcome") == []


@pytest.mark.parametrize("key", IDS)
def test_every_checkpoint_tensor_goes_where_recorded(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "destination") == []


@pytest.mark.parametrize("key", IDS)
def test_a_golden_load_has_no_unexpected_findings(key: str, differing: Deviations) -> None:
    assert unexplained(differing(key), "finding") == []


@pytest.mark.parametrize("key", [key for key in IDS if key.startswith("v3-awq__")])
def test_awq_that_is_not_ordered_is_loaded_as_awq_marlin(key: str, found: Found) -> None:
    like = records()[like_awq_marlin(key)]
    assert unexplained(deviations(like, found(key))) == []


def test_every_listed_difference_is_met_as_often_as_it_says(differing: Deviations) -> None:
    met = counts(d for key in IDS for d in differing(key))
    listed = {(row.name, row.what): row.count for row in DIFFERENCES}
    for (name, what), count in met.items():
        print(f"{count:5} {name}: {what}")  # noqa: T201
    assert dict(met) == listed


def test_every_format_is_compared_in_every_kind_of_parameter_and_layout(
    found: Found, differing: Deviations
) -> None:
    counted: Counter[Cell] = Counter()
    for key, record in ((key, records()[key]) for key in IDS):
        for form in formats_of(record):
            compared = _compared(found(key), differing(key))
            counted.update(cells(form, layout_of(record), compared))
    print(table(counted))  # noqa: T201
    assert empty_cells(counted) == []


def _compared(found: dict[str, Any], differing: list[Deviation]) -> list[str]:
    """Fully written parameters whose bytes are as recorded, or as an intended difference says."""
    wrong = {d.name for d in unexplained(differing, "sha256", "parameter", "unwritten")}
    return [
        name
        for name, held in found.get("params", {}).items()
        if name not in wrong and held["written"] == held["numel"]
    ]
