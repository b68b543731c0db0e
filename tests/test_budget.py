"""The memory budget: never over its limit, refusals in words, everything given back."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadscope.loader.budget import Budget, Lease, OverBudget, in_words

GIB = 1 << 30
LIMIT = 100
NAMES = ("copies", "old bytes", "uploads")
# what to do, to which lease of those that are open, with how many bytes
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "grow", "release", "release twice"]),
        st.integers(0, 9),
        st.integers(0, 70),
    )
)


@given(limit=st.one_of(st.none(), st.integers(0, LIMIT)), steps=STEPS)
def test_any_takes_grows_and_releases_stay_below_the_limit(
    limit: int | None, steps: list[tuple[str, int, int]]
) -> None:
    budget = Budget(limit)
    open_leases: list[tuple[Lease, int]] = []
    peak = 0
    for what, index, nbytes in steps:
        held = sum(size for _lease, size in open_leases)
        fits = limit is None or held + nbytes <= limit
        at = index % len(open_leases) if open_leases else None
        if what == "take" and fits:
            open_leases.append((budget.take(nbytes, NAMES[index % 3]), nbytes))
        elif what == "take":
            with pytest.raises(OverBudget):
                budget.take(nbytes, NAMES[index % 3])
        elif at is not None and what == "grow":
            lease, size = open_leases[at]
            if fits:
                lease.grow(nbytes)
                open_leases[at] = lease, size + nbytes
            else:
                with pytest.raises(OverBudget):
                    lease.grow(nbytes)
        elif at is not None:
            lease, _size = open_leases.pop(at)
            lease.release()
            if what == "release twice":
                lease.release()
        expected = by_name(open_leases)
        peak = max(peak, sum(expected.values()))
        assert budget.held() == {name: size for name, size in expected.items() if size}
        assert [lease.nbytes for lease, _ in open_leases] == [size for _, size in open_leases]
        assert (budget.held_bytes, budget.peak_bytes) == (sum(expected.values()), peak)
        assert budget.free_bytes == (None if limit is None else limit - budget.held_bytes)
        assert limit is None or peak <= limit
    for lease, _size in open_leases:
        lease.release()
    assert (budget.held(), budget.held_bytes) == ({}, 0)


def by_name(leases: list[tuple[Lease, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for lease, size in leases:
        found[lease.what] = found.get(lease.what, 0) + size
    return found


class SlowBudget(Budget):
    """Two threads that both ask what is free are told so before either has taken it."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.both_ask = threading.Barrier(2, timeout=0.2)

    @property
    def free_bytes(self) -> int | None:
        free = super().free_bytes
        with suppress(threading.BrokenBarrierError):
            self.both_ask.wait()
        return free


def test_two_threads_do_not_take_the_same_bytes() -> None:
    budget, refused = SlowBudget(LIMIT), []

    def work() -> None:
        try:
            budget.take(60, "uploads")
        except OverBudget as error:
            refused.append(error.free_bytes)

    in_threads([work, work])
    assert (budget.held_bytes, budget.peak_bytes, refused) == (60, 60, [40])


def in_threads(work: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_many_threads_stay_below_the_limit_and_give_all_back() -> None:
    budget, seen = Budget(LIMIT), [0]

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(300):
            with suppress(OverBudget), budget.take(random.randint(1, 40), NAMES[seed % 3]) as lease:
                lease.grow(random.randint(0, 40))
                seen.append(budget.held_bytes)

    in_threads([partial(work, seed) for seed in range(4)])
    assert max(seen) <= budget.peak_bytes <= LIMIT
    assert (budget.held(), budget.held_bytes) == ({}, 0)


class PausingBudget(Budget):
    """Whoever has been given bytes waits a little before the lease can note them."""

    def __init__(self) -> None:
        super().__init__(None)
        self.given, self.go_on = threading.Event(), threading.Event()

    def _add(self, nbytes: int, what: str) -> None:
        super()._add(nbytes, what)
        self.given.set()
        self.go_on.wait(0.2)


def test_a_lease_that_is_released_while_it_grows_gives_all_back() -> None:
    budget = PausingBudget()
    budget.go_on.set()
    lease = budget.take(1, "uploads")
    budget.given.clear()
    budget.go_on.clear()
    growing = threading.Thread(target=lease.grow, args=(5,))
    growing.start()
    budget.given.wait()
    lease.release()
    growing.join()
    assert (budget.peak_bytes, lease.nbytes, budget.held()) == (6, 0, {})


def test_leaving_the_block_gives_back_whatever_happened() -> None:
    budget = Budget(LIMIT)
    with pytest.raises(KeyError), budget.take(LIMIT, "copies"):
        raise KeyError
    assert budget.free_bytes == LIMIT


def test_a_refusal_says_what_is_wanted_what_is_free_and_what_to_do() -> None:
    budget = Budget(4 * GIB)
    budget.take(3 * GIB // 2, "old bytes")
    with pytest.raises(OverBudget) as refused:
        budget.take(3 * GIB, "a second copy of the weights")
    error = refused.value
    assert str(error) == (
        "a second copy of the weights needs 3.0 GiB, 2.5 GiB are free of a budget of 4.0 GiB"
    )
    assert (error.what, error.needed_bytes) == ("a second copy of the weights", 3 * GIB)
    assert (error.free_bytes, error.limit_bytes) == (5 * GIB // 2, 4 * GIB)
    assert "more memory" in error.fix
    assert budget.held() == {"old bytes": 3 * GIB // 2}


def test_where_there_is_no_limit_a_refusal_names_none() -> None:
    assert str(OverBudget("uploads", 2, -1, None)) == "uploads needs 2 bytes, 0 bytes are free"


@pytest.mark.parametrize("wrong", [lambda: Budget(-1), lambda: Budget(9).take(-1, "uploads")])
def test_less_than_nothing_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match="found -1 bytes|found a budget of -1 bytes"):
        wrong()


def test_a_lease_that_was_given_back_does_not_grow() -> None:
    budget = Budget(LIMIT)
    lease = budget.take(1, "uploads")
    lease.release()
    with pytest.raises(AssertionError, match="uploads is released"):
        lease.grow(1)
    assert budget.held_bytes == 0


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (1536, "1.5 KiB"),
        (GIB, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_in_words(nbytes: int, words: str) -> None:
    assert in_words(nbytes) == words
