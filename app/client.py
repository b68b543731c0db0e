"""A trainer's side of weight updates: tensors to buckets, buckets to a server, proof of equality.

    with Client("http://127.0.0.1:8787") as client:
        with client.update(version="128", expect_current="127") as upload:
            upload.send(model.state_dict())
            record = upload.commit()

Needs httpx, torch and the loader; no server code.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack

import httpx

from loadscope.app.client_answers import (
    Checksums,
    Current,
    Event,
    Receipt,
    UpdateRecord,
    UpdateRefused,
    Version,
)
from loadscope.app.client_packing import Algorithm, Bucket, Weights, pack
from loadscope.app.client_wire import Wire
from loadscope.loader.checksums import overall

__all__ = [
    "Checksums",
    "Client",
    "Current",
    "Event",
    "Receipt",
    "UpdateRecord",
    "UpdateRefused",
    "Upload",
    "Version",
]

BUCKET_BYTES = 256 << 20
WAIT_S = 600.0
Level = Literal["none", "headers", "bytes", "loaded"]
Item = TypeVar("Item")
Made = TypeVar("Made")


class Options(TypedDict, total=False):
    """Fields of POST /reload that go to the server as they are (docs/http-api.md)."""

    force: bool
    unknown: str
    atomic: Literal["require", "prefer", "off"]
    rollback: Literal["auto", "manual", "none"]
    quiesce: Mapping[str, Any]
    retain_previous: bool
    stats: Literal["none", "summary", "full"]
    deadline_s: float


class Client:
    """One server. May be used from several threads; `close` it, or use it in a `with`.

    `timeout_s`: how long a server may be silent. `retries`: how often a request is sent again when
    the connection breaks or the server fails, if it does no harm when it comes twice: reading,
    opening with the same key, a bucket with the same number and digest, commit, cancel. Methods
    raise UpdateRefused, or ConnectionError if no answer comes.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        *,
        retries: int = 5,
        backoff_s: float = 0.2,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._wire = Wire(url, api_key, timeout_s, retries, backoff_s, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    def current(self) -> Current:
        """The version that is served, and the update that is open."""
        return Current.of(self._wire.get("/versions/current"))

    def versions(self) -> list[Version]:
        """Every version that was served, newest first."""
        found: list[Version] = []
        cursor: str | None = None
        while True:
            page = self._wire.get("/versions", cursor=cursor)
            found += map(Version.of, page["items"])
            cursor = page["next"]
            if cursor is None:
                return found

    def record(self, update: str) -> UpdateRecord:
        return UpdateRecord.of(self._wire.get(f"/reloads/{update}"))

    def checksums(self, names: Iterable[str] | None = None) -> Checksums:
        """Of the weights in the server's memory, by checkpoint name; all of them, or the named."""
        chosen = None if names is None else ",".join(names)
        return Checksums.of(self._wire.get("/weights/checksums", names=chosen))

    def reload(
        self,
        path: str,
        *,
        version: str | None = None,
        expect_current: str | None = None,
        verify: Level = "bytes",
        wait_s: float = WAIT_S,
        wait_for_slot_s: float = 0.0,
        **options: Unpack[Options],
    ) -> UpdateRecord:
        """Weights from a checkpoint that the server can read; `path` as in POST /reload.

        Raises UpdateRefused if it fails. The record has not ended if `wait_s` was too short.
        """
        source = {"type": "disk", "path": path}
        asked = {"version": version, "expect_current": expect_current, **options}
        update = self._open(
            {"source": source, "verify": {"level": verify}, **asked}, wait_for_slot_s
        )
        return good(self.wait(update["id"], wait_s))

    def dry_run(self, path: str, **options: Unpack[Options]) -> Mapping[str, Any]:
        """What `reload` would do: `plan`, `would_switch`, `needs_bytes`, `problems` and more."""
        body = {"source": {"type": "disk", "path": path}, "dry_run": True, **options}
        found: Mapping[str, Any] = self._wire.ask("POST", "/reload", json=body)
        return found

    @contextmanager
    def update(
        self,
        version: str | None = None,
        *,
        scope: Literal["full", "partial"] = "full",
        expect_current: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: Algorithm = "xxh3-128",
        overlap: bool = False,
        wait_for_slot_s: float = 0.0,
        **options: Unpack[Options],
    ) -> Iterator["Upload"]:
        """An upload for the time of a `with`: left without a commit, it is cancelled.

        `wait_for_slot_s`: how long to wait for another update that is open. `overlap`: pack a
        bucket while the last one is sent, which takes memory for two. `algorithm`: of checksums and
        digests.
        """
        asked = {"version": version, "expect_current": expect_current, "scope": scope, **options}
        opened = self._open({"source": {"type": "upload"}, **asked}, wait_for_slot_s)
        upload = Upload(self, self._wire, opened, bucket_bytes, algorithm, overlap=overlap)
        try:
            yield upload
        finally:
            upload.close()

    def rollback(self, update: str) -> UpdateRecord:
        """The version before this update again; returns the record of what was rolled back."""
        path = f"/reloads/{update}/rollback"
        return UpdateRecord.of(self._wire.ask("POST", path, is_repeatable=False))

    def cancel(self, update: str) -> UpdateRecord:
        """End an open update before the switch."""
        return UpdateRecord.of(self._wire.ask("DELETE", f"/reloads/{update}"))

    def events(self, update: str, after: int | None = None) -> Iterator[Event]:
        """Events of an update as they happen, to its end; `after`: the number of the last seen."""
        return self._wire.events(f"/reloads/{update}/events", after, None)

    def wait(self, update: str, timeout_s: float = WAIT_S) -> UpdateRecord:
        """The record once the update has ended, or as it is after so long."""
        until = time.monotonic() + timeout_s
        record = self.record(update)
        if record.has_ended or timeout_s <= 0:
            return record
        with suppress(TimeoutError):
            for event in self._wire.events(f"/reloads/{update}/events", None, until):
                if event.kind == "done":
                    break
        return self.record(update)

    def _open(self, asked: Mapping[str, Any], wait_for_slot_s: float) -> Mapping[str, Any]:
        """POST /reload, once however often it is sent; waits for the update that is open."""
        body = {name: value for name, value in asked.items() if value is not None}
        key = {"idempotency-key": str(uuid.uuid4())}
        until = time.monotonic() + wait_for_slot_s
        while True:
            try:
                opened: Mapping[str, Any] = self._wire.ask(
                    "POST", "/reload", json=body, headers=key
                )
                return opened
            except UpdateRefused as refused:
                left_s = until - time.monotonic()
                if refused.code != "reload_in_progress" or left_s <= 0:
                    raise
                if refused.update is not None:
                    self.wait(refused.update, left_s)
            # its record ends a moment before the next may begin
            self._wire.pause(1)


class Upload:
    """An open update that takes tensors. `sent_bytes`, `buckets`: what was sent so far."""

    def __init__(
        self,
        client: Client,
        wire: Wire,
        opened: Mapping[str, Any],
        bucket_bytes: int,
        algorithm: Algorithm,
        *,
        overlap: bool,
    ) -> None:
        self.id: str = opened["id"]
        self.version: str = opened["version"]
        self.checksums: dict[str, str] = {}
        self.buckets = self.sent_bytes = 0
        self._client, self._wire = client, wire
        self._bucket_bytes, self._algorithm, self._overlap = bucket_bytes, algorithm, overlap
        self._is_open = True

    @property
    def overall(self) -> str:
        """One digest of everything that was sent, as the server computes it."""
        return overall(self.checksums, self._algorithm)

    def send(self, weights: Weights) -> list[Receipt]:
        """Send tensors, by checkpoint name, in as many buckets as they take.

        Whole tensors of any device, dtype and strides, in any order and number of calls; each is
        copied as it comes, and all of them are at the server when this returns. ValueError for a
        name that was sent before.
        """
        buckets = pack(self._new(weights), self._bucket_bytes, self._algorithm)
        return list(_ahead(self._put, buckets) if self._overlap else map(self._put, buckets))

    def _new(self, weights: Weights) -> Iterator[tuple[str, Any]]:
        seen = set(self.checksums)
        for name, tensor in weights.items() if isinstance(weights, Mapping) else weights:
            if name in seen:
                raise ValueError(f"{name}: was sent before in this update; send each tensor once")
            seen.add(name)
            yield name, tensor

    def _put(self, bucket: Bucket) -> Receipt:
        number = self.buckets
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(bucket.nbytes),
            "content-digest": bucket.digest,
        }
        path = f"/reloads/{self.id}/buckets/{number}"
        answer = self._wire.ask("PUT", path, bucket.blocks, headers=headers)
        self.buckets += 1
        self.sent_bytes += bucket.nbytes
        self.checksums |= bucket.checksums
        return Receipt.of(answer)

    def commit(self, wait_s: float = WAIT_S, verify: Level = "loaded") -> UpdateRecord:
        """No more tensors: the server compares all with what was sent, then changes its weights.

        Checksums of every tensor go with it. `loaded`: also of what stands in the server's memory
        afterwards. Raises UpdateRefused if it fails; the weights are then what its `weights` says.
        The record has not ended if `wait_s` was too short.
        """
        manifest = {
            "algorithm": self._algorithm,
            "checksums": self.checksums,
            "overall": self.overall,
        }
        body = {"verify": {"level": verify, **manifest}}
        try:
            self._wire.ask("POST", f"/reloads/{self.id}/commit", json=body)
        except UpdateRefused as refused:
            # an answer may have been lost, and the commit come twice: the record knows
            if refused.code != "not_receiving":
                raise
        self._is_open = False
        return good(self._client.wait(self.id, wait_s))

    def close(self) -> None:
        """Cancel it, unless it was committed or has ended. Raises nothing."""
        if self._is_open:
            self._is_open = False
            with suppress(UpdateRefused, ConnectionError):
                self._wire.ask("DELETE", f"/reloads/{self.id}", is_repeatable=False)


def good(record: UpdateRecord) -> UpdateRecord:
    """The record; UpdateRefused with its failure if it has one."""
    if record.failure is not None:
        raise UpdateRefused({**record.failure, "update": record.id}, None, record.weights)
    return record


def _ahead(work: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """`work` of each item in another thread, while the next item is made in this one."""
    with ThreadPoolExecutor(1, "upload") as pool:
        running: Future[Made] | None = None
        for item in items:
            if running is not None:
                yield running.result()
            running = pool.submit(work, item)
        if running is not None:
            yield running.result()
