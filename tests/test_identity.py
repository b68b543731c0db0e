"""Loading again leaves the same bytes at the same addresses; what does not is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from support.golden_checkpoint import VARIANTS
from support.loaded import load_rank
from support.updates import EP2, Files, addresses, contents, stopping
from typer.testing import CliRunner

from loadscope.app import identity_command
from loadscope.app.cli import app
from loadscope.loader import derive, identity
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.control import LoadError
from loadscope.loader.identity import Contents, Identity, Snapshot, reload_identity
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan
from loadscope.loader.topology import Layout
from loadscope.loader.writing import Writing

pytestmark = pytest.mark.usefixtures("one_thread")

REFUSED = "v3-fp8-block-oddq"
FAULTY = "v3-fp8-tensor"
DRAFT = Options(draft=True)
W_KC = "model.layers.1.self_attn.w_kc"
NORM = "model.norm.weight"
CASES = [
    *((name, Options()) for name in VARIANTS if name not in (REFUSED, "v3-fp8-block-mtponly")),
    *((name, DRAFT) for name in ("v3-fp8-block-mtponly", "v3-fp8-block", "v3-nvfp4")),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("identity"))


def check(files: Files, store: ParameterStore, variant: str = FAULTY, **facts: Any) -> Identity:
    return reload_identity(store.plan, open_checkpoint(files.folder(variant)), store, **facts)


@pytest.mark.parametrize(("variant", "options"), CASES, ids=str)
@pytest.mark.parametrize(("layout", "rank"), [(Layout(), 0), (EP2, 1)], ids=["tp 1", "tp 2 ep 2"])
def test_every_golden_variant_is_the_same_again(
    variant: str, options: Options, layout: Layout, rank: int, files: Files
) -> None:
    store = files.empty(variant, layout, rank, options)
    found = check(files, store, variant)
    assert found.differences == ()
    assert (found.is_identical, store.state) == (True, "ready")
    assert found.tensors == len(store.parameters) + len(store.derived)
    assert found.nbytes == sum(map(len, contents(store).values()))
    assert contents(store) == contents(load_rank(store.plan, files.folder(variant), rank))


@pytest.mark.parametrize("kept", ["none", "digest", "bytes"])
def test_a_ready_store_is_loaded_once_more_and_keeps_version_and_places(
    kept: Contents, files: Files
) -> None:
    store = files.ready(FAULTY, Layout(), 0)
    before = (contents(store), addresses(store), dict(store.scalars), dict(store.flags))
    found = check(files, store, contents=kept)
    assert found.is_identical
    assert (contents(store), addresses(store), store.scalars, store.flags) == before
    # one write for spoiling, one for the load
    assert (store.version, store.state, store.epoch) == ("1", "ready", 6)


Derive = Callable[..., Any]
right: Derive = derive.derive_layer


def accumulating(plan: Plan, store: ParameterStore, *where: Any) -> Any:
    """Adds to what stands there instead of replacing it."""
    before = {name: tensor.clone() for name, tensor in store.derived.items()}
    done = right(plan, store, *where)
    for name in done.names:
        if name in before:
            store.derived[name].copy_(store.derived[name].float() + before[name].float())
    return done


def reallocating(plan: Plan, store: ParameterStore, *where: Any) -> Any:
    """Makes the tensors of layer 1 anew and lets the old ones go."""
    if where[1] == 1:
        store.derived = {n: t for n, t in store.derived.items() if ".layers.1." not in n}
    return right(plan, store, *where)


def forgetful(plan: Plan, store: ParameterStore, *where: Any) -> Any:
    """Writes its tensors only when it makes them."""
    before = {name: tensor.clone() for name, tensor in store.derived.items()}
    done = right(plan, store, *where)
    for name in set(done.names) & set(before):
        store.derived[name].copy_(before[name])
    return done


def turned(plan: Plan, store: ParameterStore, *where: Any) -> Any:
    """The same values in another memory order every second time."""
    done = right(plan, store, *where)
    for name in set(done.names) & {W_KC}:
        tensor = store.derived[name]
        store.derived[name] = tensor.contiguous() if not tensor.is_contiguous() else tensor.clone()
    return done


def flipping() -> Derive:
    """Sets the flags of layer 1 from the second time on."""
    seen: list[int] = []

    def flip(plan: Plan, store: ParameterStore, *where: Any) -> Any:
        done = right(plan, store, *where)
        flags = [name for name in store.flags if f".layers.{where[1]}." in name]
        store.flags |= dict.fromkeys(flags, where[1] == 1 and 1 in seen)
        seen.append(where[1])
        return done

    return flip


@pytest.fixture
def store(files: Files) -> ParameterStore:
    """Loaded as it should be; the faults come after."""
    return files.ready(FAULTY, Layout(), 0)


def rows(found: Identity) -> dict[str, set[str]]:
    """What differs, by name."""
    return {
        one.name: {o.what for o in found.differences if o.name == one.name}
        for one in found.differences
    }


def test_a_derived_tensor_that_accumulates_is_named(
    store: ParameterStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive, "derive_layer", accumulating)
    found = check(files, store)
    assert rows(found) == {name: {"bytes"} for name in store.derived}
    first = next(one for one in found.differences if one.name == W_KC)
    assert (first.first_changed_element, first.first == first.second) == (0, False)
    assert not found.is_identical


def test_a_derived_tensor_that_only_survives_is_named(
    store: ParameterStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive, "derive_layer", forgetful)
    assert rows(check(files, store)) == {name: {"bytes"} for name in store.derived}


@pytest.mark.parametrize("kept", ["none", "digest", "bytes"])
def test_a_derived_tensor_that_moves_is_named(
    kept: Contents, store: ParameterStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = addresses(store)
    monkeypatch.setattr(derive, "derive_layer", reallocating)
    found = check(files, store, contents=kept)
    assert rows(found) == {n: {"address"} for n in store.derived if ".layers.1." in n}
    assert W_KC in rows(found)
    assert {one.name: one.first for one in found.differences} == {n: before[n] for n in rows(found)}


def test_another_memory_order_is_named(
    store: ParameterStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    stride = list(store.derived[W_KC].stride())
    monkeypatch.setattr(derive, "derive_layer", turned)
    found = check(files, store)
    assert rows(found) == {W_KC: {"address", "stride"}}
    assert next(one.first for one in found.differences if one.what == "stride") == stride


def test_a_flag_that_flips_is_named(
    store: ParameterStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive, "derive_layer", flipping())
    empty = files.empty(FAULTY, Layout(), 0)
    found = check(files, empty)
    flags = {name for name in store.flags if ".layers.1." in name}
    assert flags
    assert rows(found) == {name: {"flag"} for name in flags}
    assert {(one.first, one.second) for one in found.differences} == {(False, True)}


def test_an_initial_value_that_only_survives_is_named(
    store: ParameterStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParameterStore, "reset_initial", lambda _store: None)
    found = check(files, store)
    assert set(store.initial)
    assert rows(found) == {name: {"bytes"} for name in store.initial}


def test_scalars_and_flags_that_only_survive_are_named(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = files.ready("v3-bf16", Layout(), 0)
    store.scalars["left over"], store.flags["from before"] = float("nan"), False
    found = check(files, store, "v3-bf16")
    kinds = [(one.what, one.name, str(one.first), one.second) for one in found.differences]
    assert kinds == [("scalar", "left over", "nan", None), ("flag", "from before", "False", None)]


def moved_bit(store: ParameterStore) -> None:
    store.parameters[NORM].view(torch.uint8)[2 * 5 + 1] ^= 0x80


def gone(store: ParameterStore) -> None:
    del store.parameters[NORM]


def another(store: ParameterStore) -> None:
    store.derived["new"] = torch.zeros(2)


def other_dtype(store: ParameterStore) -> None:
    store.parameters[NORM] = store.parameters[NORM].view(torch.float16)


def other_shape(store: ParameterStore) -> None:
    store.parameters[NORM] = store.parameters[NORM][:-1]


def minus_zero(store: ParameterStore) -> None:
    store.scalars["zero"] = -0.0


FAULTS: list[tuple[Callable[[ParameterStore], None], str, str]] = [
    (moved_bit, "bytes", NORM),
    (gone, "name", NORM),
    (another, "name", "new"),
    (other_dtype, "dtype", NORM),
    (other_shape, "shape", NORM),
    (minus_zero, "scalar", "zero"),
]


@pytest.mark.parametrize(("fault", "what", "name"), FAULTS)
def test_a_snapshot_names_what_changed_since(
    fault: Callable[[ParameterStore], None], what: str, name: str, store: ParameterStore
) -> None:
    store.scalars["zero"] = 0.0
    for kept in ("bytes", "digest"):
        assert Snapshot.take(store, kept).compare(store).is_identical
    before = Snapshot.take(store)
    fault(store)
    found = before.compare(store)
    assert rows(found) == {name: {what}}
    assert before.compare(store).as_json()["verdict"] == "fail"


def test_the_first_changed_element_is_that_of_the_row_major_order(store: ParameterStore) -> None:
    before, hashed = Snapshot.take(store), Snapshot.take(store, "digest")
    permuted = store.derived[W_KC]
    assert not permuted.is_contiguous()
    permuted[1, 2, 3] = 17.0
    permuted[2, 0, 0] = 17.0
    (found,) = before.compare(store).differences
    assert found.first_changed_element == (1 * permuted.size(1) + 2) * permuted.size(2) + 3
    assert found.as_json()["first_changed_element"] == found.first_changed_element
    (same,) = hashed.compare(store).differences
    assert (same.first, same.second) == (found.first, found.second)
    assert same.as_json() == {
        "what": "bytes", "name": W_KC, "first": found.first, "second": found.second,
    }  # fmt: skip


def test_large_tensors_are_compared_piece_by_piece(
    store: ParameterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "CHUNK_BYTES", 6)
    store.parameters, store.derived = {NORM: store.parameters[NORM]}, {}
    before = Snapshot.take(store)
    assert before.compare(store).is_identical
    moved_bit(store)
    (found,) = before.compare(store).differences
    assert found.first_changed_element == 5


def test_an_update_is_compared_by_addresses_alone(store: ParameterStore, files: Files) -> None:
    places, values = Snapshot.take(store, "none"), Snapshot.take(store, "digest")
    assert files.load(store, FAULTY, 2, Writing("2"))[0]["kind"] == "load_finished"
    assert places.compare(store).is_identical
    assert {one.what for one in values.compare(store).differences} == {"bytes"}


def test_a_snapshot_keeps_an_address_from_being_given_again(store: ParameterStore) -> None:
    before = Snapshot.take(store, "none")
    size = store.parameters[NORM].shape
    del store.parameters[NORM]
    store.parameters[NORM] = torch.empty(size, dtype=torch.bfloat16)
    assert rows(before.compare(store)) == {NORM: {"address"}}


def test_a_load_that_fails_leaves_a_store_that_must_not_be_read(
    store: ParameterStore, files: Files
) -> None:
    for chunks in (0, 3):
        with pytest.raises(LoadError, match="the disk is gone"):
            check(files, store, make_reader=stopping(chunks))
        assert store.state == "poisoned"
        assert check(files, store).is_identical


def test_the_document_counts_what_was_compared(store: ParameterStore, files: Files) -> None:
    assert check(files, store, contents="digest").as_json() == {
        "verdict": "pass",
        "contents": "digest",
        "tensors": len(store.parameters) + len(store.derived),
        "bytes": sum(map(len, contents(store).values())),
        "scalars": len(store.scalars),
        "flags": len(store.flags),
        "differences": [],
    }


@pytest.fixture
def model(files: Files, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    return files.folder(FAULTY)


def run(model: Path, state_dir: Path, *more: str) -> Result:
    arguments = ["load", str(model), "--state-dir", str(state_dir), "--check-reload", *more]
    return CliRunner().invoke(app, arguments)


def test_the_command_says_that_a_second_load_is_the_same(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path)
    loaded, again = done.stdout.splitlines()[-2:]
    assert (done.exit_code, loaded[:4]) == (0, "PASS")
    assert again.startswith("PASS  a second load left the same bytes at the same addresses: ")


def test_the_document_of_the_command_has_the_verdict(model: Path, tmp_path: Path) -> None:
    prints = tmp_path / "prints.json"
    done = run(model, tmp_path / "state", "--json", "--tp-size", "2", "--fingerprints", str(prints))
    found = json.loads(done.stdout)["reload_identity"]
    written = json.loads(prints.read_text())
    assert (done.exit_code, done.stderr, found["verdict"]) == (0, "", "pass")
    assert found["tensors"] == len(written["params"]) + len(written["derived"])
    assert (found["contents"], found["differences"], found["reason"]) == ("bytes", [], None)


def test_the_command_names_what_differs_and_ends_with_1(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive, "derive_layer", reallocating)
    done = run(model, tmp_path)
    head, *lines = [
        line for line in done.stdout.splitlines() if "FAIL" in line or "address" in line
    ]
    assert (done.exit_code, head[:4]) == (1, "FAIL")
    assert lines[0].startswith("  address of model.layers.1.self_attn.w_kc: ")
    found = json.loads(run(model, tmp_path, "--json").stdout)["reload_identity"]
    assert {one["what"] for one in found["differences"]} == {"address"}
    assert len(found["differences"]) == len(lines)


def test_a_second_load_that_fails_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_facts: Any) -> Identity:
        raise LoadError("model.safetensors: the disk is gone")

    monkeypatch.setattr(identity_command, "reload_identity", fail)
    done = run(model, tmp_path)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == (
        "FAIL  the second load failed: model.safetensors: the disk is gone"
    )


def test_where_the_first_load_fails_there_is_nothing_to_compare(
    files: Files, model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    min(broken.glob("*.safetensors")).unlink()
    done = run(broken, tmp_path / "state", "--json")
    assert (done.exit_code, json.loads(done.stdout)["reload_identity"]) == (1, None)


def test_hashes_are_compared_where_a_copy_has_no_room(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_command, "available_bytes", lambda _device: 1000)
    found = json.loads(run(model, tmp_path, "--json").stdout)["reload_identity"]
    assert (found["contents"], found["verdict"]) == ("digest", "pass")
