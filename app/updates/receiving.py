"""Buckets of an upload as they come: spooled, checked by their headers, counted by group."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from loadscope.app.content_digest import ContentDigest
from loadscope.app.updates.record import Record
from loadscope.app.updates.refusal import Refusal
from loadscope.app.updates.spool import (
    BadBucket,
    BucketConflict,
    Spool,
    SpoolFull,
    SpoolRemoved,
)
from loadscope.loader.arrivals import Admitted, ArrivalError, Arrivals
from loadscope.loader.checkpoint import Tensor

MAX_NAMES = 20
MAX_GROUPS = 100
# names of one bucket that are checked without leaving the event loop
INLINE_NAMES = 1000
FIXES = {
    "checksum_mismatch": "send the bucket again; if it comes back, compare how both sides hash",
    "too_large": "send smaller buckets, or raise max_bucket_bytes on the server",
}


class Receiving:
    """What has come of one upload. `put` belongs to the event loop."""

    def __init__(
        self, record: Record, arrivals: Arrivals, spool: Spool, clock: Callable[[], float]
    ) -> None:
        self.arrivals, self.spool = arrivals, spool
        self.last_t = clock()
        self._record, self._clock = record, clock
        self._open: set[str] = set()
        record.arrived = self.as_json

    async def put(
        self, number: int, chunks: AsyncIterator[bytes], digest: ContentDigest
    ) -> dict[str, Any]:
        """Take one bucket whole or not at all; the same one again changes nothing."""
        record = self._record
        try:
            received = await self.spool.receive(number, self._seen(chunks), digest)
            admitted = None if received.repeated else await self._count(number)
        except BucketConflict as error:
            raise Refusal(
                "bucket_conflict", str(error), bucket=number, fix="number each bucket once"
            ) from None
        except SpoolFull as error:
            raise Refusal(
                "insufficient_memory",
                str(error),
                bucket=number,
                fix="make room, or name another folder with --spool-dir",
            ) from None
        except SpoolRemoved:
            raise not_receiving(record) from None
        except BadBucket as error:
            fix = FIXES.get(error.code, "send one whole safetensors file")
            raise Refusal(
                error.code, str(error), bucket=number, expected=error.expected, got=error.got,
                fix=fix,
            ) from None  # fmt: skip
        self.last_t = self._clock()
        with record.lock:
            facts = record.buckets
            facts["repeated"] += received.repeated
            facts["last"], facts["last_t"] = number, self.last_t
            if not received.repeated:
                facts["received"] += 1
                facts["bytes"] += received.nbytes
        if admitted is not None:
            self._tell(number, admitted, received.nbytes)
        return {
            "bucket": number,
            "repeated": received.repeated,
            "tensors": 0 if admitted is None else len(admitted.accepted),
            "bytes": received.nbytes,
            "received": self.arrivals.received,
            "expected": record.plan["tensors_expected"],
            "groups_open": self.arrivals.open_count,
        }

    async def _seen(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks; an upload whose bytes still come does not stand still."""
        async for chunk in chunks:
            self.last_t = self._clock()
            yield chunk

    async def _count(self, number: int) -> Admitted:
        headers = self.spool.headers(number)
        if len(headers) <= INLINE_NAMES:
            return self._admit(number, headers)
        return await asyncio.to_thread(self._admit, number, headers)

    def _admit(self, number: int, headers: Mapping[str, Tensor]) -> Admitted:
        try:
            # a commit in another thread ends the receiving under the same lock
            with self._record.lock:
                if self._record.state != "receiving":
                    raise not_receiving(self._record)
                return self.arrivals.admit(number, headers)
        except ArrivalError as error:
            self.spool.discard(number)
            first = error.rows[0] if error.rows else {}
            raise Refusal(
                error.code,
                str(error),
                names=[row["name"] for row in error.rows][:MAX_NAMES],
                expected=first.get("expected"),
                got=first.get("got"),
                bucket=number,
                fix=error.fix,
                rows=error.rows[:MAX_NAMES],
            ) from None

    def _tell(self, number: int, admitted: Admitted, nbytes: int) -> None:
        record = self._record
        record.publish(
            "bucket",
            {
                "bucket": number,
                "tensors": len(admitted.accepted),
                "bytes": nbytes,
                "received": self.arrivals.received,
                "of": record.plan["tensors_expected"],
                "groups_open": self.arrivals.open_count,
            },
        )
        for group in admitted.opened:
            self._open.add(group)
            record.publish("group", {"group": group, "event": "opened", "bucket": number})
        for group in admitted.completed:
            if group in self._open:
                self._open.discard(group)
                record.publish("group", {"group": group, "event": "completed", "bucket": number})

    def as_json(self) -> dict[str, Any]:
        """What has come, for the `plan` of the record."""
        arrivals = self.arrivals
        return {
            "tensors_received": arrivals.received,
            "ignored": dict(arrivals.ignored),
            "groups": arrivals.counts(MAX_GROUPS),
            "bytes": arrivals.received_bytes,
        }

    def check_whole(self) -> None:
        """No group is open; of a full update nothing is missing. Refusal with the names."""
        arrivals = self.arrivals
        missing = arrivals.missing() if self._record.asked.scope == "full" else []
        self._record.plan = {**self._record.plan, **self.as_json(), "missing": missing}
        self._record.arrived = None
        if open_groups := arrivals.open_groups():
            first = open_groups[0]
            names = [name for group in open_groups for name in group["waits_for"]]
            raise Refusal(
                "open_group",
                f"{len(open_groups):,} {'group is' if len(open_groups) == 1 else 'groups are'} "
                f"incomplete: {first['group']} has "
                f"{', '.join(first['have'])} and waits for {', '.join(first['waits_for'])}",
                names=names[:MAX_NAMES],
                bucket=first["since_bucket"],
                fix="send all members of a group in one update",
            )
        if missing:
            raise Refusal(
                "missing_tensor",
                f"{len(missing):,} of {self._record.plan['tensors_expected']:,} tensors did not "
                f"come, the first is {missing[0]}",
                names=missing[:MAX_NAMES],
                fix="send every tensor of the model, or ask for scope: partial",
            )
        if arrivals.received == 0:
            raise Refusal(
                "missing_tensor", "no tensor of the model came", fix="send some before the commit"
            )


def not_receiving(record: Record) -> Refusal:
    return Refusal(
        "not_receiving",
        f"update {record.id} takes no buckets: it is {record.state}",
        fix="open another update with POST /reload",
        state=record.state,
    )
