"""Old bytes that a load keeps bring back everything it has written, wherever it stops."""

import pytest
import torch
from support.updates import (
    ATTN,
    EP2,
    KV_B,
    LOADED,
    O_PROJ,
    Files,
    addresses,
    differing,
    load_into,
    stopping,
    whole,
)

from loadscope.loader.topology import Layout
from loadscope.loader.undo import UndoLog
from loadscope.loader.writing import Writing

pytestmark = pytest.mark.usefixtures("one_thread")

SECOND = Writing(version="2", undo=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("undo"))


@pytest.mark.parametrize("variant", LOADED)
@pytest.mark.parametrize(("layout", "rank"), [(Layout(), 0), (EP2, 1)], ids=["tp 1", "tp 2 ep 2"])
def test_after_a_load_the_version_before_comes_back(
    variant: str, layout: Layout, rank: int, files: Files
) -> None:
    store = files.ready(variant, layout, rank)
    before = whole(store)
    files.load(store, variant, 2, SECOND)
    assert (store.state, store.version, store.epoch) == ("ready", "2", 4)
    assert differing(store, files.loaded(variant, layout, rank, version=2)) == set()
    assert differing(store, files.loaded(variant, layout, rank)) != set()
    store.roll_back()
    assert (whole(store), store.epoch, store.undo) == (before, 6, None)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", LOADED)
def test_the_version_before_comes_back_from_the_host(variant: str, files: Files) -> None:
    store = files.ready(variant, device="cuda")
    before = whole(store)
    files.load(store, variant, 2, SECOND)
    assert store.version == "2"
    assert store.undo is not None
    assert {tensor.device.type for tensor in store.undo.kept.values()} == {"cpu"}
    store.roll_back()
    assert whole(store) == before


@pytest.mark.parametrize("variant", ["v3-bf16", "v3-fp8-tensor", "v32-fp8-block", "v3-nvfp4"])
@pytest.mark.parametrize("chunks", [1, 2, 20, 40])
def test_a_load_that_stopped_is_undone(variant: str, chunks: int, files: Files) -> None:
    store = files.ready(variant)
    before = whole(store)
    ends = files.load(store, variant, 2, SECOND, stopping(chunks))
    assert "the disk is gone" in ends[0]["reason"]
    assert (store.state, store.epoch) == ("poisoned", 4)
    assert store.touched
    assert differing(store, files.loaded(variant)) <= {*store.touched, *store.derived}
    store.roll_back()
    assert (whole(store), store.epoch) == (before, 6)


def test_a_load_that_stopped_while_it_derived_is_undone(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(derive: object, layer: int) -> list[str]:
        if layer == 2:
            raise RuntimeError("no memory for layer 2")
        return real(derive, layer)  # type: ignore[arg-type]

    import loadscope.loader.derive as module

    real = module.input_names
    store = files.ready("v3-int8-channel")
    before = whole(store)
    with monkeypatch.context() as patch:
        patch.setattr(module, "input_names", stop)
        files.load(store, "v3-int8-channel", 2, SECOND)
    assert store.state == "poisoned"
    assert ATTN + "w_kc" in differing(store, files.loaded("v3-int8-channel"))
    store.roll_back()
    assert whole(store) == before


def test_a_load_that_touched_nothing_has_nothing_to_undo(files: Files) -> None:
    store = files.ready("v3-bf16")
    before = whole(store)
    files.load(store, "v3-bf16", 2, SECOND, stopping(0))
    assert (whole(store), store.epoch) == (before, 4)
    assert store.undo is not None
    assert store.undo.nbytes == 0


def test_only_what_a_partial_load_touches_is_kept(files: Files) -> None:
    names = [KV_B + "weight", KV_B + "weight_scale_inv", O_PROJ, O_PROJ + "_scale_inv"]
    part = files.part("v3-fp8-block", *names)
    store = files.ready("v3-fp8-block")
    before = whole(store)
    load_into(store, part.plan, part.folder, part.writing("2", undo=True))
    kept = {*names, ATTN + "w_kc", ATTN + "w_vc"}
    assert store.undo is not None
    assert store.undo.kept.keys() == kept == differing(store, files.loaded("v3-fp8-block"))
    assert store.undo.nbytes == sum(len(before.contents[name]) for name in kept)
    assert store.undo.version == "1"
    store.roll_back()
    assert whole(store) == before


def test_scalars_and_flags_come_back(files: Files) -> None:
    store = files.ready("v3-bf16")
    before = whole(store)
    store.begin("2", undo=True)
    store.scalars["model.layers.0.self_attn.w_scale"] = 0.5
    store.flags["model.layers.0.self_attn.use_deep_gemm_bmm"] = True
    store.finish()
    assert store.scalars != before.scalars
    assert store.flags != before.flags
    store.roll_back()
    assert whole(store) == before


def test_what_is_kept_is_a_copy_in_the_same_memory_order(files: Files) -> None:
    store = files.ready("v3-bf16")
    w_kc = store.derived[ATTN + "w_kc"]
    assert not w_kc.is_contiguous()
    log = UndoLog(store)
    log.keep(ATTN + "w_kc")
    first = w_kc.clone()
    w_kc.zero_()
    log.keep(ATTN + "w_kc")
    kept = log.kept[ATTN + "w_kc"]
    assert torch.equal(kept, first)
    assert (kept.stride(), kept.device.type) == (w_kc.stride(), "cpu")
    assert kept.data_ptr() != w_kc.data_ptr()


def test_what_was_not_there_is_not_kept(files: Files) -> None:
    store = files.empty("v3-bf16")
    log = UndoLog(store)
    log.keep(ATTN + "w_kc")
    assert log.kept == {}


def test_a_store_without_old_bytes_says_so(files: Files) -> None:
    store = files.ready("v3-bf16")
    before = whole(store)
    with pytest.raises(ValueError, match="rank 1 keeps no undo log"):
        store.roll_back()
    files.load(store, "v3-bf16", 2, SECOND)
    store.roll_back()
    with pytest.raises(ValueError, match="its old bytes are gone"):
        store.roll_back()
    assert whole(store) == before


def test_the_next_load_lets_the_old_bytes_go(files: Files) -> None:
    store = files.ready("v3-bf16")
    files.load(store, "v3-bf16", 2, SECOND)
    files.load(store, "v3-bf16", 1, Writing(version="3"))
    with pytest.raises(ValueError, match="keeps no undo log"):
        store.roll_back()
    assert store.version == "3"


def test_loads_and_their_undoing_move_nothing(files: Files) -> None:
    store = files.ready("v3-fp8-block")
    before, first = whole(store), addresses(store)
    for number in range(6):
        version = 2 - number % 2
        files.load(store, "v3-fp8-block", version, SECOND)
        assert differing(store, files.loaded("v3-fp8-block", version=version)) == set()
        store.roll_back()
        assert (whole(store), addresses(store)) == (before, first)
    assert store.epoch == 2 + 6 * 4
