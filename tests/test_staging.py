"""A second copy is loaded beside the live weights, swapped in whole, and swapped back."""

from collections.abc import Iterator

import pytest
import torch
from support.updates import (
    ATTN,
    EP2,
    EXPERTS,
    KV_B,
    LOADED,
    O_PROJ,
    WK,
    Files,
    Part,
    addresses,
    contents,
    differing,
    load_into,
    stopping,
    whole,
)

from loadscope.loader import rank_load, staging
from loadscope.loader.derive import derive_all
from loadscope.loader.freshness import check_freshness
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.staging import Staging
from loadscope.loader.topology import Layout
from loadscope.loader.writing import Writing

pytestmark = pytest.mark.usefixtures("one_thread")

SECOND = Writing(version="2")
# permuted derived tensors, scales of no dims, codes that stay in blocks, a fused indexer
KINDS = ["v3-bf16", "v3-fp8-tensor", "v32-fp8-block", "v3-int8-channel"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("staging"))


def staged(files: Files, live: ParameterStore, variant: str, version: int = 2) -> Staging:
    """All weights of a version, loaded beside the live ones."""
    beside = Staging(live)
    load_beside(files, beside, variant, version)
    return beside


def load_beside(files: Files, beside: Staging, variant: str, version: int = 2) -> None:
    plan = files.plan(variant, beside.live.plan.layout, version=version)
    files.load(beside.open(plan, None), variant, version, Writing(version=str(version)))


@pytest.mark.parametrize("variant", LOADED)
@pytest.mark.parametrize(("layout", "rank"), [(Layout(), 0), (EP2, 1)], ids=["tp 1", "tp 2 ep 2"])
def test_contents_change_places_and_come_back(
    variant: str, layout: Layout, rank: int, files: Files
) -> None:
    live = files.ready(variant, layout, rank)
    old, new = whole(live), files.loaded(variant, layout, rank, version=2)
    beside = staged(files, live, variant)
    assert beside.store is not None
    assert (whole(live), live.epoch) == (old, 2)
    names = beside.swap()
    assert set(names) == {*live.parameters, *live.derived}
    assert differing(live, new) == set()
    assert (live.scalars, live.flags) == (new.scalars, new.flags)
    assert (live.state, live.version, live.epoch) == ("ready", "2", 4)
    assert contents(beside.store) == old.contents
    assert beside.swap_back() == names
    assert (whole(live), live.epoch) == (old, 6)
    assert differing(beside.store, new) == set()
    assert check_freshness(live) == []


@pytest.mark.gpu
@pytest.mark.parametrize("variant", KINDS)
def test_contents_change_places_on_an_accelerator(
    variant: str, breaking: "Breaking", files: Files
) -> None:
    live = files.ready(variant, device="cuda")
    old, new = whole(live), files.loaded(variant, version=2)
    beside = staged(files, live, variant)
    breaking.fail_at(60)
    with pytest.raises(Broken):
        beside.swap()
    assert whole(live) == old
    breaking.fail_at()
    beside.swap()
    assert differing(live, new) == set()
    beside.swap_back()
    assert whole(live) == old


def test_the_plan_and_the_lineage_go_with_the_contents(files: Files) -> None:
    live = files.ready("v3-bf16")
    first, lineage = live.plan, live.stamps.copy()
    beside = staged(files, live, "v3-bf16")
    assert beside.store is not None
    second = beside.store.plan
    assert second.label == files.folder("v3-bf16", 2).name != first.label
    beside.swap()
    assert live.plan is second
    assert {stamp.version for stamp in live.stamps.written.values()} == {"2"}
    assert check_freshness(live) == []
    beside.swap_back()
    assert (live.plan, live.stamps) == (first, lineage)


def test_scalars_and_flags_go_with_the_contents(files: Files) -> None:
    live = files.ready("v3-bf16")
    live.scalars["w_scale"], live.flags["use_deep_gemm_bmm"] = 1.0, False
    old = whole(live)
    beside = staged(files, live, "v3-bf16")
    assert beside.store is not None
    beside.store.scalars["w_scale"], beside.store.flags["use_deep_gemm_bmm"] = 0.5, True
    assert whole(live) == old
    beside.swap()
    assert (live.scalars["w_scale"], live.flags["use_deep_gemm_bmm"]) == (0.5, True)
    beside.swap_back()
    assert whole(live) == old


def test_a_second_swap_back_is_refused(files: Files) -> None:
    beside = staged(files, files.ready("v3-bf16"), "v3-bf16")
    beside.swap()
    with pytest.raises(AssertionError, match="holds the version before"):
        beside.swap()
    beside.swap_back()
    with pytest.raises(AssertionError, match="does not hold the version before"):
        beside.swap_back()


@pytest.mark.parametrize("chunks", [0, 1, 30])
def test_a_load_that_stopped_beside_them_leaves_the_live_weights(chunks: int, files: Files) -> None:
    live = files.ready("v3-fp8-block")
    before = whole(live)
    beside = Staging(live)
    store = beside.open(files.plan("v3-fp8-block", version=2), None)
    files.load(store, "v3-fp8-block", 2, SECOND, stopping(chunks))
    assert (whole(live), live.epoch) == (before, 2)
    if chunks:
        with pytest.raises(AssertionError, match="is poisoned"):
            beside.swap()
    assert (whole(live), live.epoch) == (before, 2)
    load_beside(files, beside, "v3-fp8-block")
    beside.swap()
    assert differing(live, files.loaded("v3-fp8-block", version=2)) == set()


class Broken(Exception):
    pass


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> "Breaking":
    """Copies in small pieces, of which some fail half done."""
    real = Breaking(staging.copy_into)
    monkeypatch.setattr(staging, "copy_into", real)
    monkeypatch.setattr(staging, "CHUNK_BYTES", 1 << 12)
    return real


class Breaking:
    def __init__(self, copy: object) -> None:
        self._copy = copy
        self.count = 0
        self.fails_at: set[int] = set()

    def __call__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.count += 1
        if self.count in self.fails_at:
            target[: len(target) // 2] = 0x5A
            raise Broken
        assert callable(self._copy)
        self._copy(target, source)

    def fail_at(self, *numbers: int) -> None:
        self.count, self.fails_at = 0, set(numbers)


def points(copies: int) -> list[int]:
    """The first copies, the last, and some between."""
    return sorted({1, 2, 3, 4, 5, *range(7, copies, copies // 7), copies - 1, copies})


@pytest.mark.parametrize("variant", KINDS)
def test_an_error_in_the_middle_of_a_swap_puts_everything_back(
    variant: str, breaking: Breaking, files: Files
) -> None:
    live = files.ready(variant)
    beside = staged(files, live, variant)
    assert beside.store is not None
    old, new = whole(live), contents(beside.store)
    breaking.fail_at()
    beside.swap()
    beside.swap_back()
    copies = breaking.count // 2
    assert copies > 2 * len(old.contents)
    for number in points(copies):
        breaking.fail_at(number)
        with pytest.raises(Broken):
            beside.swap()
        assert (whole(live), live.epoch % 2, beside.is_swapped) == (old, 0, False), number
        assert contents(beside.store) == new, number
    breaking.fail_at()
    beside.swap()
    assert differing(live, files.loaded(variant, version=2)) == set()
    assert live.version == "2"


@pytest.mark.parametrize("variant", KINDS)
def test_an_error_in_the_middle_of_a_swap_back_keeps_the_new_weights(
    variant: str, breaking: Breaking, files: Files
) -> None:
    live = files.ready(variant)
    old = whole(live)
    beside = staged(files, live, variant)
    breaking.fail_at()
    beside.swap()
    new, copies = whole(live), breaking.count
    for number in points(copies):
        breaking.fail_at(number)
        with pytest.raises(Broken):
            beside.swap_back()
        assert (whole(live), live.epoch % 2, beside.is_swapped) == (new, 0, True), number
    breaking.fail_at()
    beside.swap_back()
    assert whole(live) == old


def test_where_putting_back_fails_too_the_store_is_poisoned(
    breaking: Breaking, files: Files
) -> None:
    live = files.ready("v3-bf16")
    beside = staged(files, live, "v3-bf16")
    breaking.fail_at(20, 25)
    with pytest.raises(Broken):
        beside.swap()
    assert (live.state, live.epoch % 2) == ("poisoned", 0)
    assert set(live.touched) == set(live.parameters)


def test_the_epoch_is_odd_and_the_state_writing_while_contents_change_places(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = files.ready("v3-bf16")
    seen = set()
    real = staging.copy_into

    def look(target: torch.Tensor, source: torch.Tensor) -> None:
        seen.add((live.state, live.epoch))
        real(target, source)

    beside = staged(files, live, "v3-bf16")
    monkeypatch.setattr(staging, "copy_into", look)
    beside.swap()
    assert seen == {("writing", 3)}


def test_the_memory_is_used_again_and_nothing_moves(files: Files) -> None:
    live = files.ready("v3-fp8-block")
    beside = staged(files, live, "v3-fp8-block")
    assert beside.store is not None
    first, held, second = addresses(live), beside.nbytes, addresses(beside.store)
    assert held == sum(map(len, contents(live).values()))
    for number in range(6):
        version = 2 - number % 2
        load_beside(files, beside, "v3-fp8-block", version)
        assert (addresses(live), addresses(beside.store), beside.nbytes) == (first, second, held)
        beside.swap()
        assert differing(live, files.loaded("v3-fp8-block", version=version)) == set()
        beside.swap_back()
        beside.swap()
    assert live.version == "1"


def test_memory_that_is_not_there_leaves_the_live_weights(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = files.ready("v3-bf16")
    before = whole(live)

    def refuse(_like: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch, "empty_like", refuse)
    with pytest.raises(RuntimeError, match="no room"):
        Staging(live).open(files.plan("v3-bf16", version=2), None)
    assert (whole(live), live.epoch) == (before, 2)


def test_what_is_dropped_takes_no_memory(files: Files) -> None:
    live = files.ready("v3-bf16")
    beside = staged(files, live, "v3-bf16")
    beside.swap()
    new = whole(live)
    beside.drop()
    assert (beside.nbytes, beside.store, beside.is_swapped) == (0, None, False)
    assert whole(live) == new


# what arrives, and the layers whose derived tensors come from it
PARTS = {
    "a projection": ("v3-fp8-block", [O_PROJ, O_PROJ + "_scale_inv"], set()),
    "kv_b of one layer": ("v3-fp8-block", [KV_B + "weight", KV_B + "weight_scale_inv"], {1}),
    "kv_b and others": ("v3-bf16", [KV_B + "weight", "model.norm.weight", O_PROJ], {1}),
    "kv_b of two layers": (
        "v3-int8-channel",
        [
            f"model.layers.{n}.self_attn.kv_b_proj.{leaf}"
            for n in (0, 2)
            for leaf in ("weight", "weight_scale")
        ],
        {0, 2},
    ),
    "one expert of four": (
        "v3-bf16",
        [EXPERTS + f"5.{name}_proj.weight" for name in ("gate", "up", "down")],
        set(),
    ),
    "nothing of this rank": ("v3-bf16", [EXPERTS + "0.down_proj.weight"], set()),
    "a fused indexer": (
        "v32-fp8-block",
        [WK + "weight", WK + "weight_scale_inv", ATTN + "indexer.weights_proj.weight"],
        set(),
    ),
}


def load_part(part: Part, beside: Staging, version: str = "2") -> None:
    store = beside.open(part.plan, part.touched(beside.live.rank))
    ends = load_into(store, part.plan, part.folder, part.writing(version))
    assert store.state == "ready", ends


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of everything that loads derive."""
    made: list[str] = []

    def note(plan: Plan, store: ParameterStore) -> Iterator[object]:
        for done in derive_all(plan, store):
            made.extend(done.names)
            yield done

    monkeypatch.setattr(rank_load, "derive_all", note)
    return made


@pytest.mark.parametrize("what", PARTS)
def test_a_part_changes_what_arrived_and_what_comes_from_it(
    what: str, derived: list[str], files: Files
) -> None:
    variant, names, layers = PARTS[what]
    part = files.part(variant, *names)
    live = files.ready(variant)
    old, stamps, expected = contents(live), live.stamps.copy(), _loaded(files, part)
    derived.clear()
    beside = Staging(live)
    load_part(part, beside)
    assert contents(live) == old
    touched = part.touched(1)
    refreshed = {n for n in live.derived if int(n.split(".")[2]) in layers}
    assert sorted(derived) == sorted(refreshed)
    assert set(beside.swap()) == touched | refreshed
    assert differing(live, expected) == set()
    assert {n for n, was in old.items() if contents(live)[n] != was} == touched | refreshed
    new = {n for n, stamp in live.stamps.written.items() if stamp != stamps.written[n]}
    assert (new, live.version) == (touched | refreshed, "2")
    assert check_freshness(live) == []
    beside.swap_back()
    assert (contents(live), live.version, live.stamps) == (old, "1", stamps)


def _loaded(files: Files, part: Part) -> ParameterStore:
    """The same mixture, read whole into a store of its own."""
    store = ParameterStore(part.plan, 1)
    load_into(store, part.plan, part.folder)
    return store


@pytest.mark.parametrize("what", PARTS)
def test_a_part_takes_memory_for_what_it_touches_alone(what: str, files: Files) -> None:
    variant, names, layers = PARTS[what]
    part = files.part(variant, *names)
    live = files.ready(variant)
    beside = Staging(live)
    load_part(part, beside)
    sizes = {name: len(content) for name, content in contents(live).items()}
    refreshed = {n for n in live.derived if int(n.split(".")[2]) in layers}
    assert beside.nbytes == sum(sizes[name] for name in part.touched(1) | refreshed)
    assert beside.reused_bytes(part.touched(1)) == beside.nbytes
    assert beside.reused_bytes(set()) == sum(sizes[name] for name in refreshed)


def test_parts_and_wholes_follow_one_another(files: Files) -> None:
    """The second copy of an earlier update must not be taken for the live values."""
    live = files.ready("v3-fp8-block")
    beside = staged(files, live, "v3-fp8-block")
    held = beside.nbytes
    beside.swap()
    expert = [EXPERTS + f"5.{name}_proj.{leaf}" for name in ("gate", "up") for leaf in LEAVES]
    load_beside(files, beside, "v3-fp8-block", 1)
    beside.swap()
    part = files.part("v3-fp8-block", *expert)
    load_part(part, beside, "3")
    beside.swap()
    assert differing(live, _loaded(files, part)) == set()
    second = files.part("v3-fp8-block", *expert, O_PROJ, O_PROJ + "_scale_inv")
    load_part(second, beside, "4")
    beside.swap()
    assert differing(live, _loaded(files, second)) == set()
    beside.swap_back()
    assert differing(live, _loaded(files, part)) == set()
    assert (live.version, beside.nbytes) == ("3", held)
    assert check_freshness(live) == []


LEAVES = ("weight", "weight_scale_inv")


def test_half_of_a_pair_is_refused_beside_the_live_weights(files: Files) -> None:
    part = files.part("v3-bf16", ATTN + "q_a_proj.weight")
    live = files.ready("v3-bf16")
    before = whole(live)
    beside = Staging(live)
    store = beside.open(part.plan, part.touched(1))
    ends = load_into(store, part.plan, part.folder, part.writing("2"))
    assert "still wait for their partner" in ends[0]["reason"]
    assert (whole(live), live.epoch) == (before, 2)
