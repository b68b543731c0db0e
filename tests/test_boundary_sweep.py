"""One update cut at every tensor boundary and in any order: the bytes of a load, or the old ones.

Every tensor goes through one buffer, which is spoilt as soon as the next one is asked for.
"""

import re
from collections.abc import Iterable, Sequence

import pytest
import torch
from support.updates import EP2, Files, OneBuffer, Weights, addresses, pieces, whole
from torch import Tensor

from loadscope.loader.freshness import check_freshness
from loadscope.loader.outcomes import deliveries
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.topology import Layout
from loadscope.loader.update import Finished

pytestmark = pytest.mark.usefixtures("one_thread")

VARIANTS = ("v3-bf16", "v3-fp8-block", "v3-nvfp4", "v32-fp8-block")
SEATS = {"all": (Layout(), 0), "rank 0 of 2": (EP2, 0), "rank 1 of 2": (EP2, 1)}
DRAFT = "model.layers.3."


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("sweep"))


def raw(store: ParameterStore) -> dict[str, Tensor]:
    """Every parameter and derived tensor as bytes, row by row."""
    tensors = {**store.parameters, **store.derived}
    return {n: t.contiguous().reshape(-1).view(torch.uint8) for n, t in tensors.items()}


class Sweep:
    """A ready store that gets one of two versions after the other, again and again."""

    def __init__(self, files: Files, variant: str, seat: str, *, with_draft: bool = True) -> None:
        layout, rank = SEATS[seat]
        self.store = files.ready(variant, layout, rank)
        self.addresses = addresses(self.store)
        self.number = 1
        weights = [files.weights(variant, version) for version in (1, 2)]
        self.names = [n for n in weights[0] if with_draft or not n.startswith(DRAFT)]
        self._buffers = [OneBuffer(version) for version in weights]
        loaded = [files.loaded(variant, layout, rank, version=version) for version in (1, 2)]
        self._expected = [raw(store) for store in loaded]
        same = {n for n, old in self._expected[0].items() if torch.equal(old, self._expected[1][n])}
        # else a lost tensor would not be seen: scales of the cache are in no file
        assert same <= self.store.initial.keys()

    def update(self, calls: Iterable[Sequence[str]]) -> Finished:
        """Names of the version that is not there, in these calls."""
        update = self.store.open_update(version=str(self.number + 1))
        buffer = self._buffers[self.number % 2]
        for names in calls:
            update.load_weights(buffer.lend(names))
        finished = self.store.finish_update()
        self.number += finished.weights == "new"
        return finished

    def wrong(self) -> set[str]:
        """Tensors whose bytes are not those of a load of the version that should be there."""
        now, expected = raw(self.store), self._expected[(self.number + 1) % 2]
        assert now.keys() == expected.keys()
        return {name for name, value in now.items() if not torch.equal(value, expected[name])}

    def flaws(self, finished: Finished) -> list[object]:
        """What a whole update must not leave behind."""
        found: list[object] = [*sorted(self.wrong()), *finished.held]
        found += [finding for finding in finished.findings if finding.level == "error"]
        found += check_freshness(self.store) + list(finished.partial)
        if (finished.weights, self.store.version) != ("new", str(self.number)):
            found.append((finished.weights, self.store.version))
        if self.store.epoch != 2 * self.number or addresses(self.store) != self.addresses:
            found.append(self.store.epoch)
        return found


def sweep_boundaries(sweep: Sweep, start: int = 0, every: int = 1) -> dict[int, list[object]]:
    """Flaws by cut, of every cut of all names in two calls."""
    flaws = {}
    for cut in range(start, len(sweep.names) + 1, every):
        finished = sweep.update([sweep.names[:cut], sweep.names[cut:]])
        flaws[cut] = sweep.flaws(finished)
    return {cut: found for cut, found in flaws.items() if found}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_may_be_cut_at_every_tensor_boundary(variant: str, files: Files) -> None:
    """Without the draft's layer, which a target skips: the long test has it."""
    sweep = Sweep(files, variant, "all", with_draft=False)
    assert sweep_boundaries(sweep) == {}
    assert sweep.number > 90


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_of_two_ranks_may_be_cut_at_boundaries_of_its_own(variant: str, files: Files) -> None:
    for start, seat in ((0, "rank 0 of 2"), (2, "rank 1 of 2")):
        sweep = Sweep(files, variant, seat, with_draft=False)
        assert sweep_boundaries(sweep, start, 4) == {}


@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_tensor_may_have_a_call_of_its_own(variant: str, seat: str, files: Files) -> None:
    sweep = Sweep(files, variant, seat)
    for names in (sweep.names, sorted(sweep.names), sweep.names[::-1]):
        assert sweep.flaws(sweep.update([[name] for name in names])) == []


@pytest.mark.long
@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_with_a_draft_may_be_cut_at_every_tensor_boundary(
    variant: str, seat: str, files: Files
) -> None:
    assert sweep_boundaries(Sweep(files, variant, seat)) == {}


def sweep_orders(sweep: Sweep, seeds: range) -> dict[int, list[object]]:
    """Flaws by seed, of shuffled names in one to twelve calls."""
    flaws = {}
    for seed in seeds:
        finished = sweep.update(pieces(sweep.names, seed, 1 + seed % 12))
        flaws[seed] = sweep.flaws(finished)
    return {seed: found for seed, found in flaws.items() if found}


@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_may_come_in_any_order(variant: str, seat: str, files: Files) -> None:
    assert sweep_orders(Sweep(files, variant, seat), range(20)) == {}


@pytest.mark.long
@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_may_come_in_any_of_many_orders(variant: str, seat: str, files: Files) -> None:
    assert sweep_orders(Sweep(files, variant, seat), range(20, 120)) == {}


# tensors that one conversion needs together; what they have in common comes first
CONVERTED = {
    "v32-fp8-block": r"(.*\.indexer\.wk\.)(weight|weight_scale_inv)",
    "v3-nvfp4": r"(.*\.experts\.\d+\.)(gate_proj|up_proj)\.input_scale",
}
# tensors that lie side by side in one parameter, or of which one scales the other
PAIRED = r"(q_a_proj|kv_a_proj_with_mqa|kv_b_proj|gate_proj|up_proj|indexer\.\w+)\."


def is_half(name: str) -> bool:
    """Of anything that pairs; of the experts, which are alike, one."""
    return re.search(PAIRED, name) is not None and not re.search(r"\.experts\.[1-7]\.", name)


def partners(variant: str, name: str, names: Iterable[str]) -> set[str]:
    """The others of a tensor's conversion: they wait for it."""
    pattern = CONVERTED.get(variant)
    own = re.fullmatch(pattern, name) if pattern is not None else None
    if own is None or pattern is None:
        return set()
    matches = [found for other in names if (found := re.fullmatch(pattern, other))]
    return {found[0] for found in matches if found[1] == own[1] and found[0] != name}


def flaws_without(sweep: Sweep, variant: str, name: str) -> list[object]:
    """An update in which one tensor is missing fails, or leaves room for that tensor alone."""
    rest = [other for other in sweep.names if other != name]
    waiting, before = partners(variant, name, rest), whole(sweep.store)
    finished = sweep.update([rest])
    if waiting:
        codes = [(f.code, f.subject) for f in finished.findings if f.level == "error"]
        expected = ("rolled_back", waiting, [("LS504", name) for name in waiting])
        is_right = (finished.weights, set(finished.held), codes) == expected
        return [] if is_right and whole(sweep.store) == before else [finished]
    missed = sweep.wrong()
    sweep.number -= 1
    sweep.update([[name]])
    is_one_place = len(missed & sweep.store.parameters.keys()) == 1
    return [*sweep.wrong()] if is_one_place else [finished.weights, missed]


def sweep_missing(sweep: Sweep, variant: str, names: Iterable[str]) -> dict[str, list[object]]:
    flaws = {name: flaws_without(sweep, variant, name) for name in names}
    return {name: found for name, found in flaws.items() if found}


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_a_ready_store_an_update_fails_only_where_a_half_waits(
    variant: str, files: Files
) -> None:
    sweep = Sweep(files, variant, "all", with_draft=False)
    paired = [n for n in sweep.names if partners(variant, n, sweep.names) or is_half(n)]
    assert sweep_missing(sweep, variant, paired) == {}
    waiting = [name for name in paired if partners(variant, name, sweep.names)]
    assert len(waiting) == {"v32-fp8-block": 6, "v3-nvfp4": 32}.get(variant, 0)


@pytest.mark.long
@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_of_a_ready_store_any_tensor_may_be_missing_but_a_half(
    variant: str, seat: str, files: Files
) -> None:
    sweep = Sweep(files, variant, seat, with_draft=False)
    here = [name for name in sweep.names if places(sweep.store, name)]
    assert sweep_missing(sweep, variant, here) == {}


def places(store: ParameterStore, name: str) -> set[str]:
    """The parameters that a tensor fills on this rank."""
    found = store.plan.find(name)
    assert found is not None
    return {one.param for one in deliveries(store.plan, *found, [store.rank])}


def refuses_without(store: ParameterStore, variant: str, weights: Weights, name: str) -> bool:
    """Whether all weights but one are refused by a store that held none, and for the one's sake."""
    rest = {other: tensor for other, tensor in weights.items() if other != name}
    waiting = partners(variant, name, rest)
    store.load_weights(rest.items())
    finished = store.finish_update()
    errors = [(f.code, f.subject) for f in finished.findings if f.level == "error"]
    blamed = [("LS504", one) for one in waiting] or [("LS501", one) for one in places(store, name)]
    return (finished.weights, store.state, errors) == ("poisoned", "poisoned", blamed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_store_that_held_none_needs_every_half(variant: str, files: Files) -> None:
    store, weights = files.empty(variant, *SEATS["all"]), files.weights(variant)
    needed = [name for name in weights if is_half(name) and places(store, name)]
    assert [n for n in needed if not refuses_without(store, variant, weights, n)] == []
    store.load_weights(weights.items())
    assert store.finish_update().weights == "new"


@pytest.mark.long
@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_store_that_held_none_needs_every_tensor(variant: str, seat: str, files: Files) -> None:
    store, weights = files.empty(variant, *SEATS[seat]), files.weights(variant)
    held = {name: places(store, name) for name in weights}
    needed = [name for name, found in held.items() if found and not found & store.initial.keys()]
    assert [n for n in needed if not refuses_without(store, variant, weights, n)] == []
