"""What a server answers, as typed values; fields without a name here are in `document`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

ENDED = frozenset(
    {"active", "failed", "rolled_back", "cancelled", "poisoned", "interrupted", "retired"}
)
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """`document` is the JSON object as it came."""

    document: Document = field(repr=False)

    @classmethod
    def of(cls, document: Document) -> Self:
        """Missing fields are None: an older server may not have them."""
        return cls(document, **cls._named(document))

    @classmethod
    def _named(cls, document: Document) -> dict[str, Any]:
        names = (one.name for one in fields(cls) if one.name != "document")
        return {name: document.get(name) for name in names}


@dataclass(frozen=True, slots=True)
class UpdateRecord(Answer):
    """One update, GET /reloads/{id}; the blocks are as docs/http-api.md has them."""

    id: str
    state: str
    weights: str
    version: str
    previous: str | None
    atomicity: str | None
    can_roll_back: bool
    plan: Document
    buckets: Document
    delta: Document | None
    verify: Document
    phases_s: Mapping[str, float]
    stopped_serving_s: float
    failure: Document | None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def changed_pct(self) -> float | None:
        """Share of the elements that the update changed; None if that was not measured."""
        return None if self.delta is None else self.delta.get("elements_changed_pct")


@dataclass(frozen=True, slots=True)
class Receipt(Answer):
    """The answer to one bucket: `received` of the `expected` tensors are there by now."""

    bucket: int
    repeated: bool
    tensors: int
    bytes: int
    received: int
    expected: int
    groups_open: int


@dataclass(frozen=True, slots=True)
class Current(Answer):
    """What is served: `version` and `update` are None before the first weights."""

    version: str | None
    update: str | None
    digest: str | None
    state: str
    pending: Document | None
    roles: Mapping[str, Document]

    @classmethod
    def of(cls, document: Document) -> Self:
        served = document.get("current") or {}
        return cls(document, **cls._named({**document, **served}))


@dataclass(frozen=True, slots=True)
class Version(Answer):
    """A version that was served; `by` is commit or rollback."""

    version: str
    update: str
    committed_t: float
    digest: str | None
    by: str


@dataclass(frozen=True, slots=True)
class Checksums(Answer):
    """Of what stands in memory. `not_comparable`: names that have none, with the reason."""

    algorithm: str
    overall: str
    tensors: Mapping[str, str]
    not_comparable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an update; `detail` is its data."""

    id: int
    kind: str
    detail: Document


class UpdateRefused(Exception):
    """Why the server refused a request, or how an update failed that it had accepted.

    `code` is one of docs/http-api.md. `status`: of the HTTP answer; None if the update failed
    afterwards, then `weights` says what stands in the server's memory. `update`: the one that it is
    about, for `reload_in_progress` the one that is open.
    """

    def __init__(self, told: Document, status: int | None, weights: str | None = None) -> None:
        self.code = str(told.get("code"))
        self.message = str(told.get("message") or told.get("detail") or "")
        self.names: tuple[str, ...] = tuple(told.get("names") or ())
        self.expected: str | None = told.get("expected")
        self.got: str | None = told.get("got")
        self.bucket: int | None = told.get("bucket")
        self.fix = str(told.get("fix") or "")
        self.update: str | None = told.get("update")
        self.status, self.weights, self.document = status, weights, told
        super().__init__(f"{self.code}: {self.message}" + (f"; {self.fix}" if self.fix else ""))
