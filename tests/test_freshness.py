"""Derived tensors that are older than their inputs, and tensors that have moved, are found."""

from collections.abc import Callable

import pytest
import torch
from support.updates import ATTN, EP2, KV_B, LOADED, O_PROJ, Files, some

from loadscope.loader.findings import Finding
from loadscope.loader.freshness import check_freshness, lineage
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.stamps import NEVER, Stamp, Stamps

pytestmark = pytest.mark.usefixtures("one_thread")

W_KC, W_VC = ATTN + "w_kc", ATTN + "w_vc"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("freshness"))


def told(findings: list[Finding]) -> list[tuple[str, str, str | None, int]]:
    return [(f.code, f.subject, f.pattern, f.count) for f in findings]


def write_only(store: ParameterStore, version: str | None, *names: str) -> None:
    """What a fast path would do that goes past the loader: parameters, nothing derived."""
    store.begin(version)
    for name in names:
        store.touch(name)
    store.finish()


@pytest.mark.parametrize("variant", LOADED)
def test_a_loaded_store_is_fresh(variant: str, files: Files) -> None:
    store = files.ready(variant)
    assert store.stamps.inputs.keys() == store.derived.keys()
    assert check_freshness(store) == []


@pytest.mark.parametrize("variant", ["v3-bf16", "v3-fp8-block", "v3-int8-channel", "v3-awq"])
def test_an_update_leaves_a_fresh_store(variant: str, files: Files) -> None:
    weights = files.weights(variant, 2)
    store = files.ready(variant)
    for begin in (ATTN + "o_proj.", KV_B, ""):
        store.load_weights((name, w) for name, w in weights.items() if name.startswith(begin))
        assert store.finish_update().weights == "new"
        assert check_freshness(store) == []


def test_an_input_that_was_written_alone_makes_what_comes_from_it_stale(files: Files) -> None:
    store = files.ready("v3-fp8-block")
    write_only(store, "2", KV_B + "weight_scale_inv", O_PROJ)
    found = check_freshness(store)
    pattern = W_KC.replace(".1.", ".{layer}."), W_VC.replace(".1.", ".{layer}.")
    assert told(found) == [("LS701", W_KC, pattern[0], 1), ("LS701", W_VC, pattern[1], 1)]
    assert found[0].level == "error"
    assert found[0].message == (
        f"{W_KC} was made from {KV_B}weight_scale_inv of version 1, which holds 2 now"
    )
    made_from, now = {"version": "1", "epoch": 1}, {"version": "2", "epoch": 3}
    stale = {KV_B + "weight_scale_inv": {"made_from": made_from, "now": now}}
    assert found[0].evidence == {"rank": 1, "inputs": stale, "names": [W_KC]}


def test_stale_layers_are_one_finding_a_pattern(files: Files) -> None:
    store = files.ready("v3-bf16")
    names = [name for name in store.parameters if ".kv_b_proj." in name]
    write_only(store, "2", *names)
    found = check_freshness(store)
    assert [(f.code, f.count) for f in found] == [("LS701", len(names))] * 2
    assert found[0].evidence["names"] == [f"model.layers.{n}.self_attn.w_kc" for n in range(3)]


@pytest.mark.parametrize("version", [None, "1"])
def test_writes_of_one_version_or_none_are_told_apart_by_epoch(
    version: str | None, files: Files
) -> None:
    store = files.ready("v3-bf16")
    write_only(store, version, KV_B + "weight")
    assert check_freshness(store)[0].message == (
        f"{W_KC} was made from {KV_B}weight of epoch 1, which holds epoch 3 now"
    )


def test_what_a_poisoned_update_did_not_derive_is_stale(files: Files) -> None:
    weights = files.weights("v3-fp8-block", 2)
    store = files.ready("v3-fp8-block")
    store.open_update(version="2", undo=False)
    store.load_weights([(O_PROJ, weights[O_PROJ][:-1]), *some(weights, KV_B + "weight")])
    store.finish_update()
    # its scale did not come, so the layer was derived at the end, from what stood there
    assert (store.state, check_freshness(store)) == ("poisoned", [])
    store.load_weights(some(weights, KV_B + "weight"))
    assert store.finish_update().weights == "poisoned"
    assert {f.subject for f in check_freshness(store)} == {W_KC, W_VC}
    store.load_weights(weights.items())
    assert store.finish_update().weights == "new"
    assert check_freshness(store) == []


def test_an_update_that_was_rolled_back_leaves_a_fresh_store(files: Files) -> None:
    weights = files.weights("v3-fp8-block", 2)
    store = files.ready("v3-fp8-block")
    own = [name for name in weights if name.startswith(KV_B)]
    assert store.load_weights(some(weights, *own)).refreshed
    store.load_weights([(O_PROJ, weights[O_PROJ][:-1])])
    assert store.finish_update().weights == "rolled_back"
    assert check_freshness(store) == []


def replace_parameter(store: ParameterStore) -> str:
    store.parameters[O_PROJ] = store.parameters[O_PROJ].clone()
    return O_PROJ


def replace_derived(store: ParameterStore) -> str:
    store.derived[W_KC] = store.derived[W_KC].clone()
    return W_KC


def swap_storage(store: ParameterStore) -> str:
    store.parameters[O_PROJ].set_(store.parameters[O_PROJ].clone())
    return O_PROJ


@pytest.mark.parametrize("move", [replace_parameter, replace_derived, swap_storage])
def test_a_tensor_that_moved_is_found_by_name(
    move: Callable[[ParameterStore], str], files: Files
) -> None:
    store = files.ready("v3-bf16")
    before = dict(store.addresses)
    name = move(store)
    (found,) = check_freshness(store)
    assert (found.code, found.subject, found.count) == ("LS702", name, 1)
    now = {**store.parameters, **store.derived}[name].data_ptr()
    assert found.message == f"{name} moved from {before[name]:#x} to {now:#x}"


def test_a_tensor_that_is_gone_is_found(files: Files) -> None:
    store = files.ready("v3-bf16")
    del store.derived[W_VC]
    (found,) = check_freshness(store)
    assert (found.code, found.message) == ("LS702", f"{W_VC} is gone")


def test_every_tensor_has_an_address_from_its_allocation(files: Files) -> None:
    store = files.empty("v3-fp8-block")
    assert store.addresses.keys() == store.parameters.keys()
    store.load_weights(files.weights("v3-fp8-block").items())
    store.finish_update()
    assert store.addresses.keys() == {*store.parameters, *store.derived}


def test_lineage_gives_the_write_of_each_input(files: Files) -> None:
    store = files.ready("v3-fp8-block", EP2, 0)
    store.open_update(version="2")
    store.load_weights(some(files.weights("v3-fp8-block", 2), KV_B + "weight"))
    store.finish_update()
    made_from = {
        KV_B + "weight": {"version": "2", "epoch": 3},
        KV_B + "weight_scale_inv": {"version": "1", "epoch": 1},
    }
    assert lineage(store, W_KC) == {"inputs": made_from, "is_stale": False}
    write_only(store, "3", KV_B + "weight_scale_inv")
    assert lineage(store, W_KC) == {"inputs": made_from, "is_stale": True}
    assert lineage(store, W_KC.replace(".1.", ".2."))["is_stale"] is False


@pytest.mark.parametrize("name", [O_PROJ, "w_kc"])
def test_lineage_of_what_is_not_derived_is_refused(name: str, files: Files) -> None:
    with pytest.raises(ValueError, match=f"no derived tensor {name}; it has model.layers.0"):
        lineage(files.ready("v3-bf16"), name)
    with pytest.raises(ValueError, match="nor any other"):
        lineage(files.empty("v3-bf16"), name)


def test_an_input_that_nothing_wrote_is_not_newer_than_itself() -> None:
    stamps = Stamps()
    stamps.derive("w_kc", ["kv_b"])
    assert (stamps.inputs["w_kc"], stamps.stale()) == ({"kv_b": NEVER}, {})
    stamps.written["kv_b"] = Stamp("1", 1)
    assert stamps.stale() == {"w_kc": ["kv_b"]}


def test_copies_of_stamps_are_their_own() -> None:
    stamps = Stamps({"kv_b": Stamp("1", 1)})
    stamps.derive("w_kc", ["kv_b"])
    copy = stamps.copy()
    stamps.written["kv_b"] = Stamp("2", 3)
    stamps.derive("w_kc", ["kv_b"])
    assert copy == Stamps({"kv_b": Stamp("1", 1)}, {"w_kc": {"kv_b": Stamp("1", 1)}})


def test_bytes_do_not_matter_to_it(files: Files) -> None:
    """Lineage is of writes: who changes a parameter without the loader is not seen here."""
    store = files.ready("v3-bf16")
    store.parameters[KV_B + "weight"].add_(torch.ones(1, dtype=torch.bfloat16))
    assert check_freshness(store) == []
