"""Buckets of an update on disk: whole and checked, or not there at all."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.buckets import bucket, sha256, xxh3

from loadscope.app.content_digest import ContentDigest
from loadscope.app.updates import spool_part
from loadscope.app.updates.spool import (
    BadBucket,
    BucketConflict,
    Received,
    Spool,
    SpoolFull,
    SpoolRemoved,
    make_root,
)

MIB = 2**20


async def chunks(body: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
    yield b""


async def breaking_off(body: bytes) -> AsyncIterator[bytes]:
    async for chunk in chunks(body):
        yield chunk
    raise ConnectionResetError("the client left")


def put(
    spool: Spool,
    number: int,
    body: bytes,
    digest: ContentDigest | None = None,
    limit: int | None = None,
) -> Received:
    return asyncio.run(spool.receive(number, chunks(body), digest or sha256(body), limit))


def files(spool: Spool) -> list[str]:
    return sorted(path.name for path in spool.folder.iterdir())


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool", "u-7", None)
    yield made
    made.remove()


@pytest.mark.parametrize("nbytes", [0, 1, 300_000, 2 * MIB - 1, 3 * MIB + 7])
def test_a_bucket_is_kept_byte_for_byte(spool: Spool, nbytes: int) -> None:
    body = bucket(5, nbytes)
    received = put(spool, 4, body)
    assert received.path == spool.folder / "bucket-000004.safetensors"
    assert received.path.read_bytes() == body
    assert (received.number, received.nbytes, received.repeated) == (4, len(body), False)
    assert received.digest == str(sha256(body))
    assert files(spool) == ["bucket-000004.safetensors"]


def test_folder_and_files_are_this_users_alone(spool: Spool) -> None:
    path = put(spool, 0, bucket()).path
    assert spool.folder.stat().st_mode & 0o777 == 0o700
    assert spool.folder.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_names_are_in_the_order_of_numbers(spool: Spool) -> None:
    for number in (11, 2, 7):
        put(spool, number, bucket(number))
    assert spool.names == (
        "bucket-000002.safetensors",
        "bucket-000007.safetensors",
        "bucket-000011.safetensors",
    )


def test_headers_are_those_of_the_file(spool: Spool) -> None:
    put(spool, 3, bucket(1, 8, "a.weight"))
    for _ in range(2):
        (tensor,) = spool.headers(3).values()
        assert (tensor.dtype, tensor.shape, tensor.stop - tensor.start) == ("U8", (8,), 8)


def test_a_bucket_without_tensors_is_fine(spool: Spool) -> None:
    put(spool, 0, (2).to_bytes(8, "little") + b"{}")
    assert spool.headers(0) == {}


def test_the_same_bucket_again_changes_nothing(spool: Spool) -> None:
    body = bucket(1, 700_000)
    first = put(spool, 4, body)
    stamp = first.path.stat()
    again = put(spool, 4, body)
    assert (again.repeated, again.nbytes, again.path) == (True, len(body), first.path)
    after = first.path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)


def test_the_same_bytes_under_another_algorithm_are_a_repetition(spool: Spool) -> None:
    body = bucket(1)
    put(spool, 4, body, sha256(body))
    assert put(spool, 4, body, xxh3(body)).repeated
    assert files(spool) == ["bucket-000004.safetensors"]


def test_other_bytes_under_another_algorithm_are_a_conflict(spool: Spool) -> None:
    put(spool, 4, bucket(1))
    with pytest.raises(BucketConflict):
        put(spool, 4, bucket(2), xxh3(bucket(2)))
    assert files(spool) == ["bucket-000004.safetensors"]


def test_another_digest_is_a_conflict_before_the_body_is_read(spool: Spool) -> None:
    first, second = bucket(1), bucket(2)
    put(spool, 4, first)

    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("read")
        yield b""

    with pytest.raises(BucketConflict, match="bucket 4") as refused:
        asyncio.run(spool.receive(4, unread(), sha256(second)))
    assert str(sha256(first)) in str(refused.value)
    assert str(sha256(second)) in str(refused.value)
    assert (spool.folder / spool.names[0]).read_bytes() == first


def test_a_discarded_number_is_free_again(spool: Spool) -> None:
    put(spool, 4, bucket(1))
    spool.discard(4)
    assert (files(spool), spool.names) == ([], ())
    assert not put(spool, 4, bucket(2)).repeated
    spool.discard(5)


@pytest.mark.parametrize("nbytes", [64, 5 * MIB])
def test_a_body_that_breaks_off_leaves_nothing(spool: Spool, nbytes: int) -> None:
    body = bucket(1, nbytes)
    with pytest.raises(ConnectionResetError):
        asyncio.run(spool.receive(4, breaking_off(body), sha256(body)))
    assert files(spool) == []
    assert not put(spool, 4, body).repeated


@pytest.mark.parametrize("nbytes", [64, 5 * MIB])
def test_a_wrong_digest_names_both_and_leaves_nothing(spool: Spool, nbytes: int) -> None:
    body, other = bucket(1, nbytes), bucket(2, nbytes)
    with pytest.raises(BadBucket, match="bucket 4") as refused:
        put(spool, 4, body, sha256(other))
    assert refused.value.code == "checksum_mismatch"
    assert f"sha-256=:{refused.value.expected}:" == str(sha256(other))
    assert f"sha-256=:{refused.value.got}:" == str(sha256(body))
    assert files(spool) == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "truncated"),
        (b"\x10\0\0", "truncated"),
        (bucket()[:20], "truncated"),
        (bucket()[:-1], "truncated"),
        (bucket() + b"\0", "invalid_request"),
        (b"PK\3\4" + bytes(60), "unsupported_format"),
        (b"\x80\4\x95" + bytes(60), "unsupported_format"),
        ((3).to_bytes(8, "little") + b"{x}", "invalid_request"),
        (bucket().replace(b'"U8"', b'"Q8"'), "unsupported_format"),
        (bucket().replace(b"[0, 64]", b"[0, 63]"), "invalid_request"),
    ],
)
def test_what_is_no_whole_safetensors_file_is_refused(spool: Spool, body: bytes, code: str) -> None:
    with pytest.raises(BadBucket, match="^bucket 9: .*found") as refused:
        put(spool, 9, body)
    assert refused.value.code == code
    assert str(spool.folder) not in str(refused.value)
    assert ".part" not in str(refused.value)
    assert files(spool) == []


def test_a_bucket_beyond_its_limit_is_refused_as_it_comes(spool: Spool) -> None:
    body, taken = bucket(1, 4 * MIB), 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal taken
        async for chunk in chunks(body):
            taken += len(chunk)
            yield chunk

    with pytest.raises(BadBucket, match="max_bucket_bytes = 1,048,576") as refused:
        asyncio.run(spool.receive(4, counted(), sha256(body), MIB))
    assert refused.value.code == "too_large"
    assert MIB < taken <= MIB + 65_536
    assert files(spool) == []


def test_the_limit_of_an_update_counts_what_is_there(tmp_path: Path) -> None:
    body = bucket(1, 1000)
    spool = Spool(tmp_path, "u-1", 2 * len(body))
    put(spool, 0, body)
    with pytest.raises(BadBucket):
        put(spool, 1, body, sha256(b"other"))
    put(spool, 1, body)
    with pytest.raises(SpoolFull, match=f"max_update_bytes = {2 * len(body):,}"):
        put(spool, 2, body)
    assert put(spool, 1, body).repeated
    spool.discard(0)
    assert not put(spool, 2, body).repeated


@pytest.mark.parametrize("nbytes", [64, 5 * MIB])
def test_a_full_disk_is_told_with_sizes(
    spool: Spool, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(spool_part, "_write_all", write)
    with pytest.raises(SpoolFull, match=r"bucket 4: the spool folder is full: [\d,]+ bytes came"):
        put(spool, 4, bucket(1, nbytes))
    assert files(spool) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_an_operating_system_without_room_is_told_with_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, "u-1")
    monkeypatch.setattr(Spool, "_create", lambda self, part: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(SpoolFull, match="bytes are free"):
        put(spool, 4, bucket())


@pytest.mark.parametrize("nbytes", [64, 3 * MIB])
@pytest.mark.parametrize(("second", "outcome"), [(1, "repeated"), (2, "conflict")])
def test_of_two_deliveries_at_once_one_counts(
    spool: Spool, nbytes: int, second: int, outcome: str
) -> None:
    async def both() -> list[Received | BaseException]:
        first_is_in, go = asyncio.Event(), asyncio.Event()

        async def held(body: bytes) -> AsyncIterator[bytes]:
            yield body[:10]
            first_is_in.set()
            await go.wait()
            yield body[10:]

        bodies = bucket(1, nbytes), bucket(second, nbytes)
        slow = asyncio.create_task(spool.receive(4, held(bodies[0]), sha256(bodies[0])))
        await first_is_in.wait()
        quick = await spool.receive(4, chunks(bodies[1]), sha256(bodies[1]))
        go.set()
        return [quick, *await asyncio.gather(slow, return_exceptions=True)]

    quick, slow = asyncio.run(both())
    assert isinstance(quick, Received)
    assert not quick.repeated
    if outcome == "repeated":
        assert isinstance(slow, Received)
        assert slow.repeated
    else:
        assert isinstance(slow, BucketConflict)
    assert quick.path.read_bytes() == bucket(second, nbytes)
    assert files(spool) == ["bucket-000004.safetensors"]


def test_a_cancelled_delivery_leaves_nothing_even_while_a_batch_is_written(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_write = threading.Event(), threading.Event()
    write_all = spool_part._write_all

    def slow(descriptor: int, data: bytes) -> None:
        is_writing.set()
        assert may_write.wait(10)
        write_all(descriptor, data)

    monkeypatch.setattr(spool_part, "_write_all", slow)

    async def cancelled() -> None:
        body = bucket(1, 4 * MIB)
        task = asyncio.create_task(spool.receive(4, chunks(body), sha256(body)))
        assert await asyncio.to_thread(is_writing.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        may_write.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert files(spool) == []


def test_a_removed_spool_takes_nothing_more(spool: Spool) -> None:
    async def removed_half_way() -> None:
        body = bucket(1, 4 * MIB)

        async def half() -> AsyncIterator[bytes]:
            yield body[: 2 * MIB]
            spool.remove()
            yield body[2 * MIB :]

        await spool.receive(4, half(), sha256(body))

    with pytest.raises(SpoolRemoved):
        asyncio.run(removed_half_way())
    with pytest.raises(SpoolRemoved) as refused:
        put(spool, 5, bucket())
    assert refused.value.code == "not_receiving"
    assert not spool.folder.exists()
    spool.remove()


def test_the_loop_goes_on_while_a_large_bucket_is_written(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write_all = spool_part._write_all

    def slow(descriptor: int, data: bytes) -> None:
        assert may_write.wait(10), "the loop stood still"
        write_all(descriptor, data)

    monkeypatch.setattr(spool_part, "_write_all", slow)

    async def beside() -> None:
        body = bucket(1, 4 * MIB)
        task = asyncio.create_task(spool.receive(4, chunks(body), sha256(body)))
        # only a loop that goes on comes here
        asyncio.get_running_loop().call_later(0.01, may_write.set)
        await task

    asyncio.run(beside())


def test_large_bodies_are_written_in_batches(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write_all = spool_part._write_all

    def noted(descriptor: int, data: bytes) -> None:
        sizes.append(len(data))
        write_all(descriptor, data)

    monkeypatch.setattr(spool_part, "_write_all", noted)
    body = bucket(1, 8 * MIB)
    put(spool, 0, body)
    assert sum(sizes) == len(body)
    assert max(sizes) <= MIB + 65_536
    assert len(sizes) <= 9


def test_a_sweep_removes_dead_updates_and_nothing_else(tmp_path: Path) -> None:
    for name in ("u-1", "u-2", "other", "u-"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    outside = tmp_path / "other"
    (tmp_path / "u-3").symlink_to(outside)
    Spool.sweep(tmp_path, alive={"u-2"})
    assert not (tmp_path / "u-1").exists()
    assert all((tmp_path / name / "file").exists() for name in ("u-2", "other", "u-"))
    Spool.sweep(tmp_path / "nowhere", alive=())


def test_what_a_dead_process_left_under_the_same_name_is_gone(tmp_path: Path) -> None:
    (tmp_path / "u-1").mkdir()
    (tmp_path / "u-1" / "bucket-000000.1.part").write_bytes(b"x")
    assert files(Spool(tmp_path, "u-1")) == []


def test_a_root_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to(tmp_path)
    for root in (shared, link):
        with pytest.raises(ValueError, match="--spool-dir"):
            make_root(root)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file: no folder"):
        make_root(tmp_path / "file")
