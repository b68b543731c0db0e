"""Live events of updates: nothing but progress is ever lost, and nobody waits for anybody."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from fastapi.sse import ServerSentEvent

from loadscope.app.store import Store
from loadscope.app.updates.feed import PROGRESS_EVERY_S, Feed
from loadscope.app.updates.feeds import Feeds
from loadscope.app.updates.log import UpdateEvent, UpdateLog

PATIENCE_S = 5.0


class Memory:
    """A log in memory; can be told to fail, or to wait."""

    def __init__(self) -> None:
        self.stored: dict[int, list[UpdateEvent]] = {}
        self.batches: list[list[int]] = []
        self.is_broken = False
        self.may_write = threading.Event()
        self.may_write.set()

    def append_events(self, update: int, events: Sequence[UpdateEvent]) -> None:
        assert self.may_write.wait(PATIENCE_S)
        if self.is_broken:
            raise sqlite3.OperationalError("disk I/O error")
        self.batches.append([event.seq for event in events])
        self.stored[update] = [*self.stored.get(update, []), *events]

    def events(self, update: int, after_seq: int, limit: int) -> list[UpdateEvent]:
        return [one for one in self.stored.get(update, []) if one.seq > after_seq][:limit]

    def last_seq(self, update: int) -> int:
        return max((event.seq for event in self.stored.get(update, [])), default=0)


async def take(frames: AsyncIterator[ServerSentEvent], count: int) -> list[ServerSentEvent]:
    return [await asyncio.wait_for(anext(frames), PATIENCE_S) for _ in range(count)]


async def rest(frames: AsyncIterator[ServerSentEvent]) -> list[ServerSentEvent]:
    """All frames to the end of the stream, which must come."""

    async def collect() -> list[ServerSentEvent]:
        return [frame async for frame in frames]

    return await asyncio.wait_for(collect(), PATIENCE_S)


def seen(frames: Sequence[ServerSentEvent]) -> list[tuple[str | None, str | None]]:
    return [(frame.id, frame.event) for frame in frames]


def numbers(frames: Sequence[ServerSentEvent]) -> list[int]:
    """`n` of each frame's data."""
    return [json.loads(frame.raw_data or "")["n"] for frame in frames]


def attached(feed: Feed) -> Feed:
    feed.attach(asyncio.get_running_loop())
    return feed


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "still waiting"
        time.sleep(0.001)


def test_a_reader_gets_what_is_known_and_then_what_comes() -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        feed.publish("state", {"state": "planning"})
        frames = feed.frames(None)
        (first,) = await take(frames, 1)
        assert (first.id, first.event, first.raw_data) == ("1", "state", '{"state":"planning"}')
        waiting = asyncio.create_task(take(frames, 2))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: [feed.publish("bucket", {"n": n}) for n in (1, 2)])
        thread.start()
        assert seen(await waiting) == [("2", "bucket"), ("3", "bucket")]
        thread.join()

    asyncio.run(scenario())


def test_a_stream_ends_after_done() -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        frames = feed.frames(None)
        waiting = asyncio.create_task(rest(frames))
        await asyncio.sleep(0)
        feed.publish("bucket", {})
        feed.publish("done", {})
        assert seen(await waiting) == [("1", "bucket"), ("2", "done")]
        assert seen(await rest(feed.frames(None))) == [("1", "bucket"), ("2", "done")]
        assert await rest(feed.frames("2")) == []

    asyncio.run(scenario())


def test_an_update_that_is_rolled_back_after_its_end_has_a_second_end() -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        feed.publish("done", {})
        feed.publish("state", {})
        frames = feed.frames("1")
        assert seen(await take(frames, 1)) == [("2", "state")]
        feed.publish("done", {})
        assert seen(await rest(frames)) == [("3", "done")]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("last_id", "first"),
    [(None, "1"), ("", "1"), ("0", "1"), ("1", "2"), ("3", "4"), ("99", "1"), ("-1", "1"),
     ("x.1.2", "1"), ("1.0", "1"), ("٢", "1"), ("²", "1"), ("9" * 5_000, "1")],
)  # fmt: skip
def test_resume_by_id(last_id: str | None, first: str) -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        for n in range(4):
            feed.publish("bucket", {"n": n})
        assert (await take(feed.frames(last_id), 1))[0].id == first

    asyncio.run(scenario())


def test_closing_ends_waiting_readers_and_events_are_still_taken() -> None:
    async def scenario() -> None:
        memory = Memory()
        feed = attached(Feed(7, memory))
        waiting = [asyncio.create_task(rest(feed.frames(None))) for _ in range(3)]
        await asyncio.sleep(0)
        feed.publish("bucket", {})
        threading.Thread(target=feed.close).start()
        assert [seen(await one) for one in waiting] == [[("1", "bucket")]] * 3
        feed.publish("done", {})
        feed.flush()
        assert memory.last_seq(7) == 2

    asyncio.run(scenario())


def test_progress_comes_four_times_a_second_and_the_last_one_always() -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        frames = feed.frames(None)
        begun = time.monotonic()
        thread = threading.Thread(target=publish_progress, args=(feed, 3_000))
        thread.start()
        shown = []
        while not shown or shown[-1] != 3_000:
            shown += numbers(await take(frames, 1))
        thread.join()
        assert shown == sorted(set(shown))
        assert shown[0] == 1
        assert 2 <= len(shown) <= 2 + (time.monotonic() - begun) / PROGRESS_EVERY_S

    def publish_progress(feed: Feed, count: int) -> None:
        for n in range(1, count + 1):
            feed.publish("progress", {"n": n})
            time.sleep(0.0001)

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["done", "close"])
def test_the_last_progress_comes_before_the_end(end: str) -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        for n in range(100):
            feed.publish("progress", {"n": n})
        feed.publish("done", {"n": -1}) if end == "done" else feed.close()
        frames = await rest(feed.frames(None))
        progress = [frame for frame in frames if frame.event == "progress"]
        # whoever comes late needs only the newest
        assert numbers(progress) == [99]
        assert frames[-1].event == ("done" if end == "done" else "progress")

    asyncio.run(scenario())


def test_progress_after_the_end_is_dropped() -> None:
    async def scenario() -> None:
        feed = attached(Feed(7, Memory()))
        feed.publish("done", {})
        feed.publish("progress", {"n": 1})
        assert seen(await rest(feed.frames(None))) == [("1", "done")]

    asyncio.run(scenario())


def test_a_slow_reader_misses_progress_and_nothing_else() -> None:
    async def scenario() -> None:
        memory = Memory()
        feed = attached(Feed(7, memory, kept=5))
        slow = feed.frames(None)
        feed.publish("bucket", {"n": 0})
        await take(slow, 1)
        for n in range(1, 1_000):
            feed._next_progress = 0.0
            feed.publish("progress", {"n": -n})
            feed.publish("bucket", {"n": n})
            feed.flush()
        feed.publish("done", {"n": 1_000})
        frames = await rest(slow)
        others = [frame for frame in frames if frame.event != "progress"]
        assert numbers(others) == list(range(1, 1_001))
        assert [int(frame.id or "") for frame in frames] == sorted(int(f.id or "") for f in frames)
        assert len(feed._events) <= 6

    asyncio.run(scenario())


def test_memory_lets_go_only_of_what_is_stored() -> None:
    async def scenario() -> None:
        memory = Memory()
        memory.is_broken = True
        feed = attached(Feed(7, memory, kept=5))
        for n in range(100):
            feed.publish("bucket", {"n": n})
        with pytest.raises(sqlite3.OperationalError):
            feed.flush()
        assert numbers(await take(feed.frames(None), 100)) == list(range(100))
        memory.is_broken = False
        feed.flush()
        assert len(feed._events) == 5
        assert numbers(await take(feed.frames(None), 100)) == list(range(100))

    asyncio.run(scenario())


def test_many_readers_and_publishers_lose_and_repeat_nothing() -> None:
    async def scenario() -> None:
        memory = Memory()
        feed = attached(Feed(7, memory, kept=20))
        readers = [asyncio.create_task(rest(feed.frames(None))) for _ in range(5)]
        threads = [threading.Thread(target=publish, args=(feed, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        feed.publish("done", {})
        feed.flush()
        for reader in readers:
            assert [int(frame.id or "") for frame in await reader] == list(range(1, 802))
        stored = [event.seq for event in memory.events(7, 0, 10_000)]
        assert stored == list(range(1, 802))

    def publish(feed: Feed, thread: int) -> None:
        for n in range(200):
            feed.publish("bucket", {"thread": thread, "n": n})
            if n % 20 == 0:
                feed.flush()

    asyncio.run(scenario())


def test_events_that_the_log_has_dropped_do_not_hold_up_a_reader() -> None:
    async def scenario() -> None:
        memory = Memory()
        feed = attached(Feed(7, memory, kept=2))
        for n in range(10):
            feed.publish("bucket", {"n": n})
        feed.flush()
        memory.stored.clear()
        assert numbers(await take(feed.frames(None), 2)) == [8, 9]

    asyncio.run(scenario())


def test_publishing_waits_neither_for_the_disk_nor_for_readers() -> None:
    async def scenario() -> None:
        memory = Memory()
        memory.may_write.clear()
        feeds = Feeds(memory)
        feeds.attach(asyncio.get_running_loop())
        feeds.start()
        feed = feeds.open(7)
        frames = feeds.frames(7, None)
        for n in range(100):
            feed.publish("bucket", {"n": n})
        assert numbers(await take(frames, 100)) == list(range(100))
        assert memory.batches == []
        memory.may_write.set()
        await asyncio.to_thread(until, lambda: memory.last_seq(7) == 100)
        assert len(memory.batches) < 100
        await asyncio.to_thread(feeds.close)

    asyncio.run(scenario())


def test_what_could_not_be_stored_is_stored_later() -> None:
    memory = Memory()
    memory.is_broken = True
    feeds = Feeds(memory)
    feeds.open(7).publish("bucket", {})
    assert not feeds.flush()
    memory.is_broken = False
    feeds.close()
    assert memory.last_seq(7) == 1


def test_old_feeds_leave_memory_once_they_are_over_and_stored() -> None:
    async def scenario() -> None:
        memory = Memory()
        feeds = Feeds(memory, kept=2)
        feeds.attach(asyncio.get_running_loop())
        running = feeds.open(1)
        running.publish("state", {})
        for update in range(2, 6):
            feed = feeds.open(update)
            feed.publish("bucket", {})
            feed.publish("done", {})
        assert feeds.flush()
        assert sorted(feeds._feeds) == [1, 4, 5]
        for update in range(2, 6):
            assert seen(await rest(feeds.frames(update, None))) == [("1", "bucket"), ("2", "done")]
        assert seen(await rest(feeds.frames(3, "1"))) == [("2", "done")]
        assert await rest(feeds.frames(99, None)) == []
        assert feeds.open(1) is running

    asyncio.run(scenario())


def test_a_feed_that_had_left_memory_goes_on_counting() -> None:
    async def scenario() -> None:
        memory = Memory()
        memory.stored[7] = [UpdateEvent(1, 1.0, "state", "{}"), UpdateEvent(5, 2.0, "done", "{}")]
        feeds = Feeds(memory)
        feeds.attach(asyncio.get_running_loop())
        feeds.open(7).publish("state", {})
        frames = feeds.frames(7, None)
        assert seen(await take(frames, 3)) == [("1", "state"), ("5", "done"), ("6", "state")]

    asyncio.run(scenario())


def test_closing_the_streams_ends_those_that_come_later_too() -> None:
    async def scenario() -> None:
        feeds = Feeds(Memory())
        feeds.attach(asyncio.get_running_loop())
        feeds.open(1).publish("bucket", {})
        waiting = asyncio.create_task(rest(feeds.frames(1, None)))
        await asyncio.sleep(0)
        feeds.close_streams()
        assert seen(await waiting) == [("1", "bucket")]
        feeds.open(2).publish("bucket", {})
        assert seen(await rest(feeds.frames(2, None))) == [("1", "bucket")]

    asyncio.run(scenario())


def test_a_restarted_process_replays_what_was_shown(tmp_path: Path) -> None:
    async def shown(feeds: Feeds) -> list[tuple[str | None, str | None, str | None]]:
        feeds.attach(asyncio.get_running_loop())
        frames = await rest(feeds.frames(update, None))
        return [(frame.id, frame.event, frame.raw_data) for frame in frames]

    store = Store(tmp_path, 2**20)
    log = UpdateLog(store)
    update = log.open(origin="native", source_type="upload", source="x", version=None, opened_t=1.0)
    log.save(update, "failed", {}, 2.0)
    feeds = Feeds(log)
    feeds.start()
    feed = feeds.open(update)
    for n in range(1_200):
        feed.publish("bucket", {"n": n})
        feed.publish("progress", {"n": n})
    feed.publish("done", {"state": "failed"})
    assert feeds.flush()
    before = asyncio.run(shown(feeds))
    feeds.close()
    store.close()
    again = Feeds(UpdateLog(Store(tmp_path, 2**20)))
    assert asyncio.run(shown(again)) == before
    kinds = [kind for _id, kind, _data in before]
    assert (kinds.count("bucket"), kinds.count("progress")) == (1_200, 1)
