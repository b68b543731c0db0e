"""How an update is made whole: what is chosen, what comes back, what memory it takes."""

from collections.abc import Callable, Mapping

import pytest
from support.updates import (
    ATTN,
    EP2,
    EXPERTS,
    KV_B,
    O_PROJ,
    Files,
    Part,
    Whole,
    addresses,
    contents,
    differing,
    load_into,
    some,
    stopping,
    whole,
)

from loadscope.loader.budget import Budget, OverBudget, in_words
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.execute import open_reader, run_load
from loadscope.loader.keeper import Atomicity, Choice, Keeper, Order, Wanted
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan
from loadscope.loader.rank_load import ReaderFactory
from loadscope.loader.staging import Staging
from loadscope.loader.writing import Writing

pytestmark = pytest.mark.usefixtures("one_thread")

GIB = 1 << 30
VARIANT = "v3-fp8-block"
Stores = dict[int, ParameterStore]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("keeper"))


def plenty(_device: str) -> int:
    return GIB


class Process:
    """Two ranks with weights of version 1, and a keeper."""

    def __init__(
        self,
        files: Files,
        budget: Budget | None = None,
        free: Callable[[str], int | None] = plenty,
    ) -> None:
        self.files = files
        self.budget = Budget(GIB) if budget is None else budget
        self.keeper = Keeper(self.budget, free)
        self.stores: Stores = {rank: files.ready(VARIANT, EP2, rank) for rank in (0, 1)}

    def order(self, plan: Plan, part: Part | None = None) -> Order:
        touched = {rank: None if part is None else part.touched(rank) for rank in self.stores}
        return Order("target", plan, self.stores, touched)

    def choose(
        self, wanted: Wanted = "prefer", part: Part | None = None, *, is_verified: bool = True
    ) -> Choice:
        plan = self.files.plan(VARIANT, EP2, version=2) if part is None else part.plan
        return self.keeper.choose(wanted, [self.order(plan, part)], is_verified=is_verified)

    def begin(self, way: Atomicity | None = None, part: Part | None = None) -> None:
        """Prepare an update: the way that is chosen, or a given one."""
        choice = self.choose(part=part)
        if way is not None:
            choice = Choice(way, "asked for", choice.needs_bytes, choice.holds_bytes)
        self.keeper.prepare(choice)

    def load(
        self,
        version: int = 2,
        part: Part | None = None,
        readers: Mapping[int, ReaderFactory] | None = None,
        name: str | None = None,
    ) -> Stores:
        """Load both ranks; `readers` of single ranks may fail."""
        plan = self.files.plan(VARIANT, EP2, version=version) if part is None else part.plan
        folder = self.files.folder(VARIANT, version) if part is None else part.folder
        opened = self.keeper.open(self.order(plan, part))
        writing = Writing(
            name if name is not None else str(version),
            self.keeper.keeps_old_bytes,
            None if part is None else part.files,
        )
        left = iter([(readers or {}).get(rank, open_reader) for rank in opened])
        run_load(
            plan, open_checkpoint(folder), opened, lambda *_, **__: None,
            make_reader=lambda *given: next(left)(*given), writing=writing,
        )  # fmt: skip
        return opened

    def update(self, version: int = 2, part: Part | None = None, *, retain: bool = True) -> None:
        self.begin(part=part)
        self.load(version, part)
        self.keeper.switch()
        self.keeper.settle(retain=retain)

    def whole(self) -> list[Whole]:
        return [whole(store) for store in self.stores.values()]

    def holds(self, version: int) -> bool:
        return all(
            differing(store, self.files.loaded(VARIANT, EP2, rank, version=version)) == set()
            for rank, store in self.stores.items()
        )

    @property
    def nbytes(self) -> int:
        return sum(sum(map(len, contents(store).values())) for store in self.stores.values())


@pytest.fixture
def process(files: Files) -> Process:
    return Process(files)


def on_device(files: Files, device: str) -> list[Order]:
    """Whole weights that take no memory here, if the device is another one."""
    plan = files.plan(VARIANT, EP2)
    stores = {rank: ParameterStore(plan, rank, device) for rank in (0, 1)}
    for store in stores.values():
        store.state = "ready"
    return [Order("target", plan, stores, {0: None, 1: None})]


LITTLE = 1000
# device, bytes free there, bytes free on the host → what is chosen if it is preferred, required
CHOICES: dict[tuple[str, int | None, int | None], tuple[Atomicity, Atomicity | None]] = {
    ("cpu", GIB, GIB): ("staged", "staged"),
    ("cpu", None, None): ("staged", "staged"),
    ("cpu", LITTLE, LITTLE): ("validated_in_place", None),
    ("meta", GIB, GIB): ("staged", "staged"),
    ("meta", GIB, LITTLE): ("staged", "staged"),
    ("meta", None, LITTLE): ("staged", "staged"),
    ("meta", LITTLE, GIB): ("undo_log", "undo_log"),
    ("meta", LITTLE, None): ("undo_log", "undo_log"),
    ("meta", LITTLE, LITTLE): ("validated_in_place", None),
}


@pytest.mark.parametrize(("device", "free", "on_host"), CHOICES)
@pytest.mark.parametrize("is_verified", [True, False])
def test_the_best_way_that_fits_is_chosen(
    device: str, free: int | None, on_host: int | None, is_verified: bool, files: Files
) -> None:
    room = {"cpu": on_host, device: free}
    keeper, orders = Keeper(Budget(GIB), room.__getitem__), on_device(files, device)
    preferred, required = CHOICES[device, free, on_host]
    if preferred == "validated_in_place" and not is_verified:
        preferred = "none"
    assert keeper.choose("prefer", orders, is_verified=is_verified).atomicity == preferred
    off = keeper.choose("off", orders, is_verified=is_verified)
    assert off.atomicity == ("validated_in_place" if is_verified else "none")
    assert off.reason == "asked for: atomic is off"
    if required is None:
        with pytest.raises(OverBudget, match="a second copy of the weights"):
            keeper.choose("require", orders, is_verified=is_verified)
    else:
        assert keeper.choose("require", orders, is_verified=is_verified).atomicity == required


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("lacks", [0, 1])
def test_the_budget_decides_to_the_byte(device: str, lacks: int, files: Files) -> None:
    orders = on_device(files, device)
    needs = sum(orders[0].nbytes(rank) for rank in (0, 1))
    budget = Budget(needs - lacks)
    choice = Keeper(budget, plenty).choose("prefer", orders, is_verified=True)
    assert choice.atomicity == ("validated_in_place" if lacks else "staged")
    assert choice.needs_bytes == {"staged": needs, "undo_log": needs, "validated_in_place": 0}
    # a choice is a question: nothing was taken
    assert (budget.held_bytes, budget.peak_bytes) == (0, 0)


def test_the_reason_says_what_did_not_fit(files: Files) -> None:
    room = {"cpu": GIB, "meta": LITTLE}
    keeper, orders = Keeper(Budget(GIB), room.__getitem__), on_device(files, "meta")
    size = in_words(sum(orders[0].nbytes(rank) for rank in (0, 1)))
    assert keeper.choose("prefer", orders, is_verified=True).reason == (
        f"a second copy of the weights needs {size}, 1000 bytes are free; the old bytes fit on the "
        "host"
    )
    keeper = Keeper(Budget(LITTLE), plenty)
    assert keeper.choose("prefer", orders, is_verified=True).reason == (
        f"a second copy of the weights needs {size}, 1000 bytes are free of a budget of 1000 bytes"
    )


@pytest.mark.parametrize("wanted", ["require", "prefer", "off"])
@pytest.mark.parametrize("state", ["empty", "poisoned"])
def test_where_no_whole_weights_are_nothing_is_kept(
    wanted: Wanted, state: str, process: Process
) -> None:
    process.stores[1].state = state
    choice = process.choose(wanted)
    assert (choice.atomicity, choice.reason) == ("none", "no whole weights were there to keep")


def test_what_is_needed_is_what_will_be_taken(process: Process) -> None:
    choice = process.choose()
    assert choice.needs_bytes["staged"] == choice.holds_bytes == process.nbytes
    process.update()
    assert process.keeper.held_bytes == process.nbytes


KV_B_OF_1 = (KV_B + "weight", KV_B + "weight_scale_inv")
EXPERT_5 = tuple(
    EXPERTS + f"5.{name}_proj.{leaf}"
    for name in ("gate", "up", "down")
    for leaf in ("weight", "weight_scale_inv")
)


def test_a_part_needs_what_it_touches_and_room_for_derived_tensors(process: Process) -> None:
    part = process.files.part(VARIANT, *EXPERT_5)
    sizes = [{n: len(c) for n, c in contents(store).items()} for store in process.stores.values()]
    touched = sum(sizes[rank][name] for rank in (0, 1) for name in part.touched(rank))
    derived = sum(sizes[rank][n] for rank in (0, 1) for n in process.stores[rank].derived)
    assert part.touched(0) == set()
    assert process.choose(part=part).needs_bytes["staged"] == touched + derived


def test_a_staged_update_can_be_rolled_back_once(process: Process) -> None:
    before = process.whole()
    process.begin()
    opened = process.load()
    assert all(opened[rank] is not process.stores[rank] for rank in (0, 1))
    assert (process.whole(), process.keeper.is_switched) == (before, False)
    assert not process.keeper.can_roll_back
    process.keeper.switch()
    assert process.keeper.is_switched
    process.keeper.settle(retain=True)
    assert process.holds(2)
    assert process.keeper.can_roll_back
    process.keeper.roll_back()
    assert process.whole() == before
    assert not process.keeper.can_roll_back
    with pytest.raises(ValueError, match="no longer kept"):
        process.keeper.roll_back()
    assert process.whole() == before


def test_an_update_over_the_live_weights_can_be_rolled_back_once(process: Process) -> None:
    before = process.whole()
    process.begin("undo_log")
    assert process.load() == process.stores
    process.keeper.switch()
    process.keeper.settle(retain=True)
    assert process.holds(2)
    assert process.keeper.held_bytes == process.nbytes
    process.keeper.roll_back()
    assert process.whole() == before
    assert (process.keeper.held_bytes, process.keeper.can_roll_back) == (0, False)
    with pytest.raises(ValueError, match="no longer kept"):
        process.keeper.roll_back()
    process.budget.take(GIB, "all that there is").release()


@pytest.mark.parametrize("way", ["validated_in_place", "none"])
def test_an_update_in_place_cannot_be_rolled_back(way: Atomicity, process: Process) -> None:
    process.begin(way)
    process.load()
    process.keeper.switch()
    process.keeper.settle(retain=True)
    assert process.holds(2)
    assert (process.keeper.can_roll_back, process.keeper.held_bytes) == (False, 0)
    with pytest.raises(ValueError, match="no longer kept"):
        process.keeper.roll_back()


@pytest.mark.parametrize("way", ["staged", "undo_log"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("chunks", [0, 1, 30])
def test_a_load_that_failed_leaves_the_old_weights_on_all_ranks(
    way: Atomicity, rank: int, chunks: int, process: Process
) -> None:
    before = process.whole()
    process.begin(way)
    process.load(readers={rank: stopping(chunks)})
    assert process.keeper.undo()
    assert process.whole() == before
    assert [store.epoch % 2 for store in process.stores.values()] == [0, 0]
    assert not process.keeper.can_roll_back
    process.update()
    assert process.holds(2)


@pytest.mark.parametrize("way", ["validated_in_place", "none"])
@pytest.mark.parametrize(("rank", "chunks"), [(0, 1), (1, 0), (1, 20)])
def test_a_load_that_failed_in_place_is_owned_up_to(
    way: Atomicity, rank: int, chunks: int, process: Process
) -> None:
    process.begin(way)
    process.load(readers={rank: stopping(chunks)})
    assert not process.keeper.undo()
    assert {store.state for store in process.stores.values()} == {"poisoned"}


@pytest.mark.parametrize("way", ["validated_in_place", "none", "undo_log"])
def test_a_load_that_failed_before_the_first_byte_is_no_loss(
    way: Atomicity, process: Process
) -> None:
    before = process.whole()
    process.begin(way)
    process.load(readers={0: stopping(0)})
    assert process.keeper.undo()
    assert process.whole() == before


def test_poisoned_weights_stay_poisoned(process: Process) -> None:
    process.begin("none")
    process.load(readers={1: stopping(5)})
    assert not process.keeper.undo()
    process.begin()
    process.load(readers={0: stopping(0)})
    assert not process.keeper.undo()
    process.begin()
    process.load()
    process.keeper.settle(retain=True)
    assert process.holds(2)


class Broken(Exception):
    pass


def broken(real: Callable[[Staging], object], rank: int) -> Callable[[Staging], object]:
    """An exchange that does not work on one rank."""

    def exchange(beside: Staging) -> object:
        if beside.live.rank == rank:
            raise Broken
        return real(beside)

    return exchange


@pytest.mark.parametrize("rank", [0, 1])
def test_a_switch_that_fails_on_one_rank_is_none(
    rank: int, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process.whole()
    process.begin()
    process.load()
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "swap", broken(Staging.swap, rank))
        with pytest.raises(Broken):
            process.keeper.switch()
    assert (process.whole(), process.keeper.is_switched) == (before, False)
    assert process.keeper.undo()
    assert process.whole() == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rollback_that_fails_on_one_rank_is_none_and_may_be_tried_again(
    rank: int, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process.whole()
    process.update()
    new = process.whole()
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "swap_back", broken(Staging.swap_back, rank))
        with pytest.raises(Broken):
            process.keeper.roll_back()
    assert process.whole() == new
    process.keeper.roll_back()
    assert process.whole() == before


def test_what_fails_after_the_switch_is_undone(process: Process) -> None:
    before = process.whole()
    process.begin()
    process.load()
    process.keeper.switch()
    assert process.holds(2)
    assert process.keeper.undo()
    assert (process.whole(), process.keeper.is_switched) == (before, False)
    assert not process.keeper.can_roll_back


def test_after_another_write_the_version_before_is_no_longer_there(process: Process) -> None:
    process.update()
    store = process.stores[0]
    store.load_weights(some(process.files.weights(VARIANT), "model.norm.weight"))
    assert store.finish_update().weights == "new"
    assert not process.keeper.can_roll_back
    with pytest.raises(ValueError, match="no longer kept"):
        process.keeper.roll_back()


def test_the_next_update_gives_the_version_before_up(process: Process) -> None:
    process.update()
    process.begin()
    assert not process.keeper.can_roll_back
    process.load(1, name="3")
    process.keeper.switch()
    process.keeper.settle(retain=True)
    process.keeper.roll_back()
    assert process.holds(2)
    assert {store.version for store in process.stores.values()} == {"2"}


@pytest.mark.parametrize("way", ["staged", "undo_log"])
def test_what_is_not_retained_takes_no_memory(way: Atomicity, process: Process) -> None:
    process.begin(way)
    process.load()
    process.keeper.switch()
    process.keeper.settle(retain=False)
    assert process.holds(2)
    assert (process.keeper.held_bytes, process.keeper.can_roll_back) == (0, False)
    process.budget.take(GIB, "all that there is").release()


@pytest.mark.parametrize("way", ["staged", "undo_log"])
def test_the_budget_is_drawn_on_until_the_version_before_is_forgotten(
    way: Atomicity, process: Process
) -> None:
    process.begin(way)
    process.load()
    process.keeper.switch()
    process.keeper.settle(retain=True)
    process.budget.take(GIB - process.nbytes, "the rest").release()
    with pytest.raises(OverBudget):
        process.budget.take(GIB - process.nbytes + 1, "one byte more")
    process.keeper.forget()
    assert (process.keeper.held_bytes, process.keeper.can_roll_back) == (0, False)
    assert all(store.undo is None for store in process.stores.values())
    process.budget.take(GIB, "all that there is").release()
    assert process.holds(2)


def test_twenty_updates_in_a_row_take_the_memory_of_one(files: Files) -> None:
    process = Process(files, Budget(Process(files).nbytes))
    first = [addresses(store) for store in process.stores.values()]
    second: list[dict[str, int]] = []
    for number in range(20):
        version = 2 - number % 2
        process.begin()
        opened = process.load(version, name=str(number))
        process.keeper.switch()
        process.keeper.settle(retain=True)
        copies = [addresses(store) for store in opened.values()]
        second = second or copies
        assert copies == second
        assert [addresses(store) for store in process.stores.values()] == first
        assert process.keeper.held_bytes == process.nbytes
        assert process.holds(version)
        assert {store.version for store in process.stores.values()} == {str(number)}


def test_a_held_second_copy_needs_no_room_for_the_next_update(files: Files) -> None:
    room = {"cpu": GIB}
    process = Process(files, free=room.__getitem__)
    process.update()
    room["cpu"] = 0
    assert process.choose("require").atomicity == "staged"
    part = files.part(VARIANT, *KV_B_OF_1)
    assert process.choose("require", part).atomicity == "staged"
    process.keeper.forget()
    assert process.choose("prefer", part).atomicity == "validated_in_place"


def test_parts_one_after_another_add_up(process: Process) -> None:
    """The second copy of one part is no room for another part."""
    experts = process.files.part(VARIANT, *EXPERT_5)
    other = process.files.part(VARIANT, O_PROJ, O_PROJ + "_scale_inv")
    process.update(part=experts)
    first = process.keeper.held_bytes
    choice = process.choose(part=other)
    assert choice.holds_bytes > max(first, choice.needs_bytes["staged"])
    process.update(part=other)
    assert first < process.keeper.held_bytes <= choice.holds_bytes
    with pytest.raises(OverBudget):
        process.budget.take(GIB - choice.holds_bytes + 1, "what is held")


def test_another_way_lets_go_of_what_the_last_one_kept(process: Process) -> None:
    process.update()
    assert process.keeper.held_bytes
    process.begin("undo_log")
    assert process.keeper.held_bytes == 0
    process.load(1)
    process.keeper.settle(retain=True)
    assert process.keeper.held_bytes
    process.begin("staged")
    assert process.keeper.held_bytes == 0
    assert all(store.undo is None for store in process.stores.values())


def test_room_that_has_gone_since_the_choice_is_refused(process: Process) -> None:
    process.update(part=process.files.part(VARIANT, *EXPERT_5))
    before, choice = process.whole(), process.choose()
    other = process.budget.take(GIB - process.budget.held_bytes, "another update's uploads")
    with pytest.raises(OverBudget):
        process.keeper.prepare(choice)
    assert (process.whole(), process.keeper.held_bytes) == (before, 0)
    other.release()
    process.update()
    assert process.holds(2)


def test_what_is_written_is_known_at_every_moment(process: Process) -> None:
    every = {rank: list(store.parameters) for rank, store in process.stores.items()}
    process.begin()
    assert process.keeper.written() == {}
    process.load()
    assert process.keeper.written() == {"target": {0: [], 1: []}}
    process.keeper.switch()
    assert process.keeper.written() == {"target": every}
    part = process.files.part(VARIANT, *KV_B_OF_1, *EXPERT_5)
    process.begin("validated_in_place", part)
    process.load(part=part)
    written = process.keeper.written()["target"]
    assert {rank: set(names) for rank, names in written.items()} == {
        rank: part.touched(rank) for rank in (0, 1)
    }


def test_a_part_changes_its_parameters_and_comes_back(process: Process) -> None:
    part = process.files.part(VARIANT, *KV_B_OF_1, *EXPERT_5)
    before = process.whole()
    process.update(part=part)
    derived = {ATTN + "w_kc", ATTN + "w_vc"}
    for rank, store in process.stores.items():
        changed = differing(store, process.files.loaded(VARIANT, EP2, rank))
        assert changed == part.touched(rank) | derived
    process.keeper.roll_back()
    assert process.whole() == before


def roles(files: Files) -> dict[str, tuple[Plan, Stores]]:
    """Target and draft of one checkpoint, one rank each."""
    found = {}
    for role, options in (("target", None), ("draft", Options(draft=True))):
        plan = files.plan(VARIANT, EP2, options, 2)
        found[role] = (plan, {1: files.ready(VARIANT, EP2, 1, options)})
    return found


@pytest.mark.parametrize("fails", [None, "target", "draft"])
@pytest.mark.parametrize("way", ["staged", "undo_log"])
def test_roles_change_together_or_not_at_all(
    way: Atomicity, fails: str | None, files: Files
) -> None:
    keeper, both = Keeper(Budget(GIB), plenty), roles(files)
    orders = [Order(role, plan, stores, {1: None}) for role, (plan, stores) in both.items()]
    before = {role: whole(stores[1]) for role, (_plan, stores) in both.items()}
    choice = keeper.choose("require", orders, is_verified=True)
    keeper.prepare(Choice(way, "", choice.needs_bytes, choice.holds_bytes))
    writing = Writing("2", keeper.keeps_old_bytes)
    for order in orders:
        reader = stopping(9) if order.role == fails else open_reader
        (store,) = keeper.open(order).values()
        load_into(store, order.plan, files.folder(VARIANT, 2), writing, reader)
    if fails is not None:
        assert keeper.undo()
        assert {role: whole(stores[1]) for role, (_plan, stores) in both.items()} == before
        return
    keeper.switch()
    keeper.settle(retain=True)
    assert {stores[1].version for _plan, stores in both.values()} == {"2"}
    keeper.roll_back()
    assert {role: whole(stores[1]) for role, (_plan, stores) in both.items()} == before
