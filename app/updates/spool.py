"""The buckets of one update as files: whole and checked, or not there.

    <root>/<update>/bucket-000004.1.part        while it comes
    <root>/<update>/bucket-000004.safetensors   since it is whole

Each delivery has a file of its own until it is whole. Of two that come at once the first to be
whole counts; the other is then a repetition or a conflict, and nobody waits.
"""

import asyncio
import os
import re
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from loadscope.app.content_digest import ContentDigest
from loadscope.app.updates.bad_bucket import BadBucket, read_headers
from loadscope.app.updates.spool_part import INLINE_BYTES, Part, SpoolFull
from loadscope.loader.checkpoint import Tensor

__all__ = ["BadBucket", "BucketConflict", "Received", "Spool", "SpoolFull", "SpoolRemoved"]

UPDATE = re.compile(r"u-[0-9A-Za-z]+")


class BucketConflict(Exception):
    """Another body came under this number before."""


class SpoolRemoved(BadBucket):
    """The update ended while the bucket came."""

    def __init__(self, number: int) -> None:
        super().__init__("not_receiving", number, "the update ended while it came")


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery. `repeated`: the same bytes had come before, nothing changed."""

    number: int
    path: Path
    nbytes: int
    digest: str
    repeated: bool


@dataclass(slots=True)
class _Kept:
    """A whole bucket. `digests`: all that senders gave for it, by algorithm."""

    path: Path
    nbytes: int
    mark: bytes
    headers: dict[str, Tensor] | None
    digests: dict[str, str] = field(default_factory=dict)


class Spool:
    """Takes, keeps and removes the buckets of one update; the folder is this user's alone.

    `receive`, `headers` and `discard` belong to the event loop; `remove` to any thread.
    """

    def __init__(self, root: Path, update: str, max_bytes: int | None = None) -> None:
        assert UPDATE.fullmatch(update), update
        make_root(root)
        self.folder = root / update
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._kept: dict[int, _Kept] = {}
        self._parts = count(1)
        self._lock = threading.Lock()
        self._is_removed = False
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)

    @property
    def names(self) -> tuple[str, ...]:
        """Files of the buckets that are there, by number."""
        return tuple(self._kept[number].path.name for number in sorted(self._kept))

    async def receive(
        self,
        number: int,
        chunks: AsyncIterator[bytes],
        digest: ContentDigest,
        max_bucket_bytes: int | None = None,
    ) -> Received:
        """Keep this body as bucket `number`, or nothing of it.

        Raises BadBucket (too large, another digest, no safetensors file, the update has ended),
        BucketConflict and SpoolFull; what the chunks raise passes through.
        """
        kept = self._kept.get(number)
        if kept is not None and digest.algorithm in kept.digests:
            return await self._repeat(number, kept, chunks, digest)
        path = self.folder / f"bucket-{number:06d}.{next(self._parts)}.part"
        part = Part(number, path, digest, self._create, self._claim, max_bucket_bytes)
        is_kept = False
        try:
            await part.take(chunks)
            part.close()
            headers = await _headers_of(part)
            # from here on nothing waits: whoever asks next finds the bucket counted
            kept, is_kept = self._keep(part, headers)
        finally:
            if not is_kept:
                self._nbytes -= part.nbytes
                await part.drop()
        return Received(number, kept.path, part.nbytes, str(digest), repeated=not is_kept)

    async def _repeat(
        self, number: int, kept: _Kept, chunks: AsyncIterator[bytes], digest: ContentDigest
    ) -> Received:
        """A bucket that is there by its digest: the body passes unseen."""
        if kept.digests[digest.algorithm] != str(digest):
            raise _conflict(number, kept, digest)
        async for _ in chunks:
            self._check_open(number)
        return Received(number, kept.path, kept.nbytes, str(digest), repeated=True)

    def _claim(self, part: Part, more: int) -> None:
        self._check_open(part.number)
        if self._max_bytes is not None and self._nbytes + more > self._max_bytes:
            raise SpoolFull(
                f"bucket {part.number}: {self._nbytes:,} bytes of the update are here and "
                f"{more:,} more came; expected at most max_update_bytes = {self._max_bytes:,}"
            )
        self._nbytes += more

    def _check_open(self, number: int) -> None:
        if self._is_removed:
            raise SpoolRemoved(number)

    def _create(self, part: Part) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock:
            self._check_open(part.number)
            return os.open(part.path, flags, 0o600)

    def _keep(self, part: Part, headers: dict[str, Tensor]) -> tuple[_Kept, bool]:
        """The bucket under its number, and whether it is this part."""
        number, digest = part.number, part.digest
        with self._lock:
            self._check_open(number)
            kept = self._kept.get(number)
            if kept is not None:
                if kept.mark != part.mark:
                    raise _conflict(number, kept, digest)
                kept.digests[digest.algorithm] = str(digest)
                return kept, False
            path = self.folder / f"bucket-{number:06d}.safetensors"
            part.path.rename(path)
            kept = _Kept(path, part.nbytes, part.mark, headers)
            kept.digests[digest.algorithm] = str(digest)
            self._kept[number] = kept
        return kept, True

    def headers(self, number: int) -> dict[str, Tensor]:
        """Tensors of a bucket that is there, by name; BadBucket if its file is no use any more."""
        kept = self._kept[number]
        headers, kept.headers = kept.headers, None
        return headers if headers is not None else read_headers(number, kept.path)

    def discard(self, number: int) -> None:
        """Forget a bucket, so that another may come under its number."""
        kept = self._kept.pop(number, None)
        if kept is not None:
            self._nbytes -= kept.nbytes
            kept.path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder; bodies that still come are refused. May be called again."""
        with self._lock:
            self._is_removed = True
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def sweep(root: Path, alive: Container[str]) -> list[str]:
        """Remove what updates that are not alive have left behind; their names."""
        dead = [
            path
            for path in sorted(root.glob("u-*"))
            if UPDATE.fullmatch(path.name) and path.name not in alive
        ]
        for path in dead:
            # a link is not followed: rmtree refuses it
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in dead]


def make_root(root: Path) -> None:
    """A folder that only this user may write to; ValueError if there is something else."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise ValueError(f"{root}: no folder for buckets: {error.strerror}") from None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{root}: expected a folder that only this user may write to; remove it, or choose "
            "another place with --spool-dir"
        )


async def _headers_of(part: Part) -> dict[str, Tensor]:
    if part.nbytes <= INLINE_BYTES:
        return read_headers(part.number, part.path)
    return await asyncio.to_thread(read_headers, part.number, part.path)


def _conflict(number: int, kept: _Kept, digest: ContentDigest) -> BucketConflict:
    before = kept.digests.get(digest.algorithm, " ".join(kept.digests.values()))
    return BucketConflict(f"bucket {number} came before with {before}; now it has {digest}")
