"""Which version is served, which is coming, which were there before."""

from fastapi import APIRouter

from loadscope.app.api import reload_examples
from loadscope.app.api.requests import Cursor, Json, Limit, collection, decode_cursor, encode_cursor
from loadscope.app.services import ServicesDep
from loadscope.app.updates.names import name_of

router: APIRouter = APIRouter(tags=["updates"])


@router.get("/versions", responses=reload_examples.VERSIONS_RESPONSES)
def versions(services: ServicesDep, limit: Limit = 100, cursor: Cursor = None) -> Json:
    """The history of what was served, newest first; a rollback enters it again."""
    before = (decode_cursor(cursor, int) or (None,))[0]
    log = services.jobs.log
    found = log.versions(limit + 1, before)
    rows = found[:limit]
    items = [
        {
            "version": row.version,
            "update": name_of(row.update),
            "committed_t": row.committed_t,
            "digest": row.digest,
            "by": dict(row.detail).get("what"),
        }
        for row in rows
    ]
    last = encode_cursor(rows[-1].seq) if len(found) > limit else None
    return Json(collection(items, log.count_versions(), last))


@router.get("/versions/current", responses=reload_examples.CURRENT_RESPONSES)
def current(services: ServicesDep) -> Json:
    """`current` is what is served, `pending` the open update; `roles` may hold different ones."""
    jobs = services.jobs
    newest, pending = jobs.standing.base.newest, jobs.pending
    served = None
    if newest is not None:
        last = jobs.log.last_version()
        served = {
            "version": newest.version,
            "update": name_of(newest.update),
            "committed_t": None if last is None else last.committed_t,
            "digest": None if last is None else last.digest,
        }
    return Json(
        {
            "current": served,
            "pending": None
            if pending is None
            else {"version": pending.version, "update": pending.id, "state": pending.state},
            "state": jobs.standing.state,
            "roles": jobs.standing.roles_json(),
        }
    )
