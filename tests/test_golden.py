"""What one rank holds after a load equals what the reference loader left, element by element."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import BASE, VARIANTS, write_golden_checkpoint
from support.golden_records import (
    DIFFERENCES,
    difference,
    expected_destination,
    expected_outcome,
    layout_of,
    rank_of,
    recorded_files,
    records,
    variant_of,
)
from support.loaded import fingerprints_of

Fingerprints = dict[str, Any]
IDS = sorted(records())
LAYERS = BASE["num_hidden_layers"]
FACTS = ("shape", "stride", "dtype")


@pytest.fixture(scope="module")
def golden_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("golden")
    return {variant: write_golden_checkpoint(variant, root / variant) for variant in VARIANTS}


@pytest.fixture(scope="module")
def measured(golden_folders: dict[str, Path]) -> dict[str, Fingerprints]:
    """One load per record, each of its own rank alone."""
    return {
        key: fingerprints_of(golden_folders[variant_of(record)], layout_of(record), rank_of(record))
        for key, record in records().items()
    }


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
def test_parameters_have_the_recorded_names(key: str, measured: dict[str, Fingerprints]) -> None:
    assert sorted(measured[key]["params"]) == sorted(records()[key]["params"])


@pytest.mark.parametrize("key", IDS)
def test_parameters_have_the_recorded_shape_stride_and_dtype(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    assert _facts(measured[key]["params"]) == _facts(records()[key]["params"])


@pytest.mark.parametrize("key", IDS)
def test_fully_written_parameters_have_the_recorded_bytes(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    recorded = {n: p["sha256"] for n, p in records()[key]["params"].items() if not p["unwritten"]}
    assert {name: measured[key]["params"][name]["sha256"] for name in recorded} == recorded


@pytest.mark.parametrize("key", IDS)
def test_as_many_elements_stay_unwritten_as_recorded(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    left = {n: p["numel"] - p["written"] for n, p in measured[key]["params"].items()}
    assert left == {n: p["unwritten"] for n, p in records()[key]["params"].items()}


@pytest.mark.parametrize("key", IDS)
def test_what_the_reference_leaves_unwritten_has_an_initial_value(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    unwritten = [n for n, p in records()[key]["params"].items() if p["unwritten"]]
    fills = {name: measured[key]["params"][name]["fill"] for name in unwritten}
    assert fills == dict.fromkeys(unwritten, "initial")


@pytest.mark.parametrize("key", IDS)
def test_derived_tensors_equal_the_recorded_ones(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    recorded = {
        f"{module}.{name}": value
        for module, values in records()[key]["derived"].items()
        for name, value in values.items()
        if isinstance(value, dict)
    }
    assert measured[key]["derived"] == recorded


@pytest.mark.parametrize("key", IDS)
def test_scalars_and_flags_equal_the_recorded_ones(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    derived = records()[key]["derived"]
    found = measured[key]
    assert (found["scalars"], found["flags"]) == (
        {f"{module}.w_scale": values["w_scale"] for module, values in derived.items()},
        {f"{m}.use_deep_gemm_bmm": values["use_deep_gemm_bmm"] for m, values in derived.items()},
    )


@pytest.mark.parametrize("key", IDS)
def test_every_checkpoint_tensor_has_the_recorded_outcome(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    expected = {
        name: expected_outcome(name, events[-1], LAYERS)
        for name, events in records()[key]["outcomes"].items()
    }
    found = measured[key]["tensors"]
    assert {n: (t["outcome"], t["reason"]) for n, t in found.items()} == expected


@pytest.mark.parametrize("key", IDS)
def test_every_checkpoint_tensor_goes_where_recorded(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    expected = {
        name: [d for d in [expected_destination(name, events[-1])] if d is not None]
        for name, events in records()[key]["outcomes"].items()
    }
    found = measured[key]["tensors"]
    assert {name: found[name]["destinations"] for name in found} == expected


@pytest.mark.parametrize("key", IDS)
def test_a_golden_load_has_no_errors_and_no_warnings(
    key: str, measured: dict[str, Fingerprints]
) -> None:
    assert [f for f in measured[key]["findings"] if f["level"] != "note"] == []


def test_every_listed_difference_is_met_as_often_as_it_says() -> None:
    met = [
        difference(name, events[-1])
        for record in records().values()
        for name, events in record["outcomes"].items()
    ]
    counts = {row.name: met.count(row) for row in DIFFERENCES}
    print(f"differences from the reference: {counts}")  # noqa: T201
    assert counts == {row.name: row.count for row in DIFFERENCES}


def _facts(params: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [param[fact] for fact in FACTS] for name, param in params.items()}
