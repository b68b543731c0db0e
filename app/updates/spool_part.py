"""The body of one bucket to a file: hashed while it is written, gone if it breaks off."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import xxhash

from loadscope.app.content_digest import ContentDigest, DigestMismatch
from loadscope.app.updates.bad_bucket import BadBucket

# less is hashed and written at once: handing it to a thread would take longer
INLINE_BYTES = 256 * 2**10
COALESCED_BYTES = 2**20
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SpoolFull(Exception):
    """There is no room for the bucket; the message has the sizes."""


class Part:
    """One file that is not whole yet. `create` opens it; `claim` may refuse more bytes.

    `nbytes`: what came so far. `mark`: the XXH3 of it, to compare whatever digests were sent.
    """

    def __init__(
        self,
        number: int,
        path: Path,
        digest: ContentDigest,
        create: Callable[["Part"], int],
        claim: Callable[["Part", int], None],
        max_bytes: int | None,
    ) -> None:
        self.number, self.path, self.digest = number, path, digest
        self.nbytes = 0
        self._create, self._claim, self._max_bytes = create, claim, max_bytes
        self._mark = xxhash.xxh3_128()
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._is_over = False
        self._writing: asyncio.Future[None] | None = None

    @property
    def mark(self) -> bytes:
        return self._mark.digest()

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        """The whole body to the file; BadBucket if it is too large, or not what was said.

        At most two batches of about a MiB are in memory: one that is written, one that comes.
        """
        batch: list[bytes] = []
        waiting = 0
        async for chunk in chunks:
            self._count(len(chunk))
            batch.append(chunk)
            waiting += len(chunk)
            if waiting >= COALESCED_BYTES:
                await self._write_behind(batch)
                batch, waiting = [], 0
        if self.nbytes <= INLINE_BYTES:
            self._write(batch)
        else:
            await self._write_behind(batch)
            await self._settle()
        self._check_digest()

    def _count(self, more: int) -> None:
        if self._max_bytes is not None and self.nbytes + more > self._max_bytes:
            found = f"found more than max_bucket_bytes = {self._max_bytes:,}"
            raise BadBucket("too_large", self.number, found)
        self._claim(self, more)
        self.nbytes += more

    def _check_digest(self) -> None:
        try:
            self.digest.check()
        except DigestMismatch as error:
            raise BadBucket(
                "checksum_mismatch", self.number, str(error), error.expected, error.got
            ) from None

    async def _write_behind(self, batch: list[bytes]) -> None:
        await self._settle()
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(None, self._write, batch)

    async def _settle(self) -> None:
        """Wait for the batch that is being written. A cancelled task leaves it to `drop`."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            done, self._writing = self._writing, None
            done.result()

    def _write(self, batch: list[bytes]) -> None:
        with self._lock:
            if self._is_over:
                return
            joined = b"".join(batch)
            self._mark.update(joined)
            self.digest.update(joined)
            try:
                if self._descriptor is None:
                    self._descriptor = self._create(self)
                _write_all(self._descriptor, joined)
            except OSError as error:
                if error.errno in OUT_OF_ROOM:
                    raise self._full() from None
                raise

    def _full(self) -> SpoolFull:
        room = os.statvfs(self.path.parent)
        return SpoolFull(
            f"bucket {self.number}: the spool folder is full: {self.nbytes:,} bytes came, "
            f"{room.f_bavail * room.f_frsize:,} of {room.f_blocks * room.f_frsize:,} bytes are free"
        )

    def close(self) -> None:
        """No more is written; the file stays."""
        with self._lock:
            self._is_over = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    async def drop(self) -> None:
        """Close and remove the file, once the batch that is being written is through."""
        try:
            if self._writing is not None:
                await asyncio.wait([self._writing])
                self._writing.exception()
        finally:
            self.close()
            self.path.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
