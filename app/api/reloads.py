"""Updates of the weights: open, send buckets, commit, cancel, roll back, follow."""

import hashlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from loadscope.app.api import reload_examples
from loadscope.app.api.reload_body import Commit, Reload, Wait
from loadscope.app.api.requests import Cursor, Json, Limit, collection, decode_cursor, encode_cursor
from loadscope.app.api.who import who_of
from loadscope.app.content_digest import DigestError, parse_content_digest
from loadscope.app.problems import Problem
from loadscope.app.services import Services, ServicesDep
from loadscope.app.updates.asked import Asked
from loadscope.app.updates.audit import Who
from loadscope.app.updates.names import name_of, number_of
from loadscope.app.updates.refusal import Refusal

router: APIRouter = APIRouter(tags=["updates"])

UpdateId = Annotated[str, Path(pattern=r"^u-[1-9][0-9]{0,15}$", examples=["u-7"])]
Number = Annotated[int, Path(ge=0, lt=1_000_000)]
Key = Annotated[str | None, Header(max_length=200, description="same key, same body: same update")]
RETRY = {"reload_in_progress": "1", "bucket_conflict": "1"}


def as_problem(refusal: Refusal, update: str | None = None) -> Problem:
    """The refusal as a problem document; `update` is the one that it ended or belongs to."""
    facts = dict(refusal.facts)
    told = update or facts.pop("update", None)
    facts.pop("update", None)
    return Problem(
        refusal.status,
        refusal.code.replace("_", "-"),
        refusal.message,
        {"retry-after": RETRY[refusal.code]} if refusal.code in RETRY else None,
        **{
            key: value
            for key, value in {
                "update": told,
                "names": list(refusal.names),
                "expected": refusal.expected,
                "got": refusal.got,
                "bucket": refusal.bucket,
                "fix": refusal.fix,
                "load": refusal.load,
                "role": refusal.role,
                "url": None if refusal.load is None else f"/loads/{refusal.load}",
                "findings": [one.as_json() for one in refusal.findings],
                **facts,
            }.items()
            if value not in (None, [], "")
        },
    )


def _audit(
    services: Services, who: Who, what: str, number: int | None, refusal: Refusal | None = None
) -> None:
    """One line per mutation: who, what, version, digest, outcome."""
    found = services.jobs.document(number) if number is not None else None
    services.audit.record(
        what,
        refusal.code if refusal is not None else str(found["state"] if found else "ok"),
        who,
        update=None if number is None else name_of(number),
        version=found["version"] if found else None,
        digest=found["verify"]["overall"] if found else None,
    )


@router.post("/reload", status_code=202, responses=reload_examples.RELOAD_RESPONSES)
def reload(
    services: ServicesDep,
    request: Request,
    order: Reload,
    idempotency_key: Key = None,
) -> Json:
    """Open an update: from a checkpoint on disk, from differences, or for buckets to come.

    What is on disk is planned first: a plan that fails, or does not fit, is refused and the weights
    stay as they are. Parameters keep their addresses. `dry_run` answers what would happen.
    """
    who = who_of(request)
    asked = order.asked(services.roots)
    if order.dry_run:
        return Json(_tried(services, asked))
    body = hashlib.sha256(order.model_dump_json(exclude={"wait_s"}).encode()).hexdigest()
    try:
        number = services.jobs.open(asked, idempotency_key, body, who)
    except Refusal as refusal:
        _audit(services, who, "reload", None, refusal)
        raise as_problem(refusal) from None
    _audit(services, who, "reload", number)
    return _answer(services, number, order.wait_s)


def _tried(services: Services, asked: Asked) -> dict[str, Any]:
    try:
        return services.jobs.try_out(asked)
    except Refusal as refusal:
        raise as_problem(refusal) from None


def _answer(services: Services, number: int, wait_s: float) -> Json:
    """200 with the whole record if it ended while we waited, else 202 with where to look."""
    has_ended = wait_s > 0 and services.jobs.wait_for(number, wait_s)
    document = services.jobs.document(number)
    assert document is not None, "it was just opened"
    location = {"location": f"/reloads/{name_of(number)}"}
    if has_ended:
        return Json(document, 200, location)
    loads = document["loads"]
    first = {"load": loads[0], "loads": loads} if loads else {}
    facts = {key: document[key] for key in ("id", "state", "version", "url", "events")}
    return Json({**facts, **first}, 202, location)


@router.get("/reloads", responses=reload_examples.RELOADS_RESPONSES)
def reloads(services: ServicesDep, limit: Limit = 20, cursor: Cursor = None) -> Json:
    """All updates, newest first, of this process and of those before it."""
    before = (decode_cursor(cursor, int) or (None,))[0]
    # one more than asked for tells whether there is another page
    found = services.jobs.documents(limit + 1, before)
    items = [_without_cells(item) for item in found[:limit]]
    more = len(found) > limit
    cursor = encode_cursor(number_of(items[-1]["id"])) if more else None
    return Json(collection(items, services.jobs.log.count(), cursor))


def _without_cells(document: dict[str, Any]) -> dict[str, Any]:
    delta = document.get("delta")
    if not delta:
        return document
    return {**document, "delta": {k: v for k, v in delta.items() if k not in ("cells", "by_layer")}}


@router.get("/reloads/{update}", responses=reload_examples.RELOAD_RECORD_RESPONSES)
def one(services: ServicesDep, update: UpdateId) -> Json:
    """Everything that is known about one update."""
    document = services.jobs.document(number_of(update))
    if document is None:
        raise as_problem(_unknown(update))
    return Json(document)


def _unknown(update: str) -> Refusal:
    return Refusal("unknown_reload", f"there is no update {update}", fix="see GET /reloads")


def known_update(services: ServicesDep, update: UpdateId) -> str:
    """Refused before a stream starts: then it is an ordinary answer that a client understands."""
    if services.jobs.document(number_of(update)) is None:
        raise as_problem(_unknown(update))
    return update


@router.get("/reloads/{update}/events", response_class=EventSourceResponse)
async def events(
    services: ServicesDep,
    update: Annotated[str, Depends(known_update)],
    last_event_id: Annotated[str | None, Header(description="id of the last one seen")] = None,
    after: Annotated[str | None, Query(max_length=40, description="the same as a query")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """`state`, `progress`, `bucket`, `group`, `warning`, `mismatch`, and `done` at the end."""
    last = last_event_id if last_event_id is not None else after
    async for frame in services.jobs.feeds.frames(number_of(update), last):
        yield frame


@router.put("/reloads/{update}/buckets/{bucket}", responses=reload_examples.BUCKET_RESPONSES)
async def put_bucket(
    services: ServicesDep,
    request: Request,
    update: UpdateId,
    bucket: Number,
    content_digest: Annotated[str | None, Header(max_length=1000)] = None,
) -> Json:
    """One safetensors file with any tensors of the model; the same bucket again is a no-op.

    `Content-Digest: sha-256=:…:` (or `sha-512`, `xxh3-128`) of the body is required. Headers are
    checked before the bucket counts; one that is refused leaves nothing behind.
    """
    try:
        digest = parse_content_digest(content_digest)
        receipt = await services.jobs.put(number_of(update), bucket, request.stream(), digest)
    except DigestError as error:
        raise Problem(400, "invalid-request", str(error), bucket=bucket) from None
    except Refusal as refusal:
        _audit(services, who_of(request), "bucket-refused", number_of(update), refusal)
        raise as_problem(refusal, update) from None
    return Json(receipt)


@router.post(
    "/reloads/{update}/commit", status_code=202, responses=reload_examples.COMMIT_RESPONSES
)
def commit(
    services: ServicesDep,
    request: Request,
    update: UpdateId,
    body: Annotated[Commit | None, Body()] = None,
) -> Json:
    """No more buckets: whole groups, a plan that passes, then the load. Refusals end the update."""
    order = body or Commit()
    who, number = who_of(request), number_of(update)
    verify = order.verify.asked(services.roots) if order.verify is not None else None
    try:
        services.jobs.commit(number, verify)
    except Refusal as refusal:
        _audit(services, who, "commit", number, refusal)
        raise as_problem(refusal, update) from None
    _audit(services, who, "commit", number)
    return _answer(services, number, order.wait_s)


@router.post("/reloads/{update}/rollback", responses=reload_examples.RELOAD_RECORD_RESPONSES)
def roll_back(
    services: ServicesDep,
    request: Request,
    update: UpdateId,
    body: Annotated[Wait | None, Body()] = None,
) -> Json:
    """The version before this update again, out of memory; no file is read."""
    return _end(services, request, update, "rollback")


@router.delete("/reloads/{update}", responses=reload_examples.RELOAD_RECORD_RESPONSES)
def cancel(services: ServicesDep, request: Request, update: UpdateId) -> Json:
    """End an open update before the switch; the weights stay as they are."""
    return _end(services, request, update, "cancel")


def _end(services: Services, request: Request, update: str, what: str) -> Json:
    who, number = who_of(request), number_of(update)
    act = services.jobs.roll_back if what == "rollback" else services.jobs.cancel
    try:
        act(number)
    except Refusal as refusal:
        _audit(services, who, what, number, refusal)
        raise as_problem(refusal, update) from None
    _audit(services, who, what, number)
    return Json(services.jobs.document(number))
