"""Example answers of the routes that change weights: the form of the real ones, made-up numbers."""

from typing import Any

from loadscope.app.api.examples import FINDING, problem
from loadscope.app.api.requests import example

RECORD: dict[str, Any] = {
    "id": "u-7", "url": "/reloads/u-7", "origin": "native", "state": "active", "weights": "new",
    "version": "128", "previous": "127", "expect_current": "127",
    "source": {"type": "upload", "name": None}, "scope": "full", "atomicity": "staged",
    "atomicity_reason": "a second copy fits", "can_roll_back": True,
    "opened_t": 1796076928.5, "ended_t": 1796076931.0, "deadline_t": 1796077528.5, "loads": [12],
    "roles": {
        "target": {
            "load": 12, "tensors": 170, "parameters": 60, "derived_refreshed": 6,
            "derived_kept": 0, "post_processed": True, "reason": None,
        }
    },
    "plan": {
        "tensors_expected": 170, "tensors_received": 170, "unknown": [], "missing": [],
        "ignored": {},
        "groups": {"total": 40, "complete": 40, "split_across_buckets": 3, "open": []},
        "bytes": 3_421_980,
    },
    "buckets": {"received": 12, "repeated": 1, "bytes": 3_500_000, "last": 11, "last_t": 1.0},
    "delta": {"tensors_changed": 58, "elements_changed_pct": 0.94, "rms": 3.1e-06, "nan": 0},
    "verify": {
        "level": "bytes", "algorithm": "xxh3-128", "checked": 170, "mismatched": [],
        "overall": "5b1e00c2a4f94d1c8a1f5f0d3c2b1a09", "loaded_equal": None, "not_comparable": 0,
    },
    "phases_s": {"receiving": 1.9, "planning": 0.1, "verifying": 0.1, "staging": 0.3},
    "phases": [{"phase": "receiving", "begun_t": 1796076928.5, "ended_t": 1796076930.4}],
    "gbps": {"read": 1.1, "switch": 5.3}, "requests": {"retracted": 0, "aborted": 0},
    "quiesce": "drain", "stopped_serving_s": 0.004, "touched": {"count": 0, "names": {}},
    "warnings": [], "failure": None, "events": "/reloads/u-7/events",
}  # fmt: skip
OPENED = {
    "id": "u-7",
    "state": "receiving",
    "version": "128",
    "url": "/reloads/u-7",
    "events": "/reloads/u-7/events",
}
RECEIPT = {
    "bucket": 4, "repeated": False, "tensors": 38, "bytes": 291_004, "received": 81,
    "expected": 170, "groups_open": 2,
}  # fmt: skip
COMMITTED = {
    "version": "128",
    "update": "u-7",
    "committed_t": 1796076931.0,
    "digest": "5b1e00c2a4f94d1c8a1f5f0d3c2b1a09",
}
CURRENT = {
    "current": COMMITTED,
    "pending": {"version": "129", "update": "u-8", "state": "receiving"},
    "state": "ready",
    "roles": {"target": {"version": "128", "state": "ready"}},
}
Responses = dict[int | str, dict[str, Any]]


def _accepted(document: object, description: str) -> Responses:
    content = {"application/json": {"example": document}}
    return {202: {"description": description, "content": content}}


BUSY = problem(
    409, "reload-in-progress", "update u-6 is open (staging); one writer at a time", update="u-6"
)
UNKNOWN = problem(404, "unknown-reload", "there is no update u-70")
RELOAD_RESPONSES: Responses = {
    **_accepted({**OPENED, "load": 4, "loads": [4, 5]}, "accepted: it goes on by itself"),
    403: problem(403, "path-not-allowed", "no such path inside the roots", roots=["demo"]),
    409: BUSY,
    412: problem(412, "version-conflict", "expected version 127, found 126", got="126"),
    422: problem(422, "missing-tensor", "the weights are untouched", load=4, findings=[FINDING]),
    507: problem(507, "insufficient-memory", "a second copy of the weights does not fit"),
}
RELOAD_RECORD_RESPONSES: Responses = {**example(RECORD, "the update's record"), 404: UNKNOWN}
RELOADS_RESPONSES = example({"items": [RECORD], "total": 1, "next": None}, "newest first")
BUCKET_RESPONSES: Responses = {
    **example(RECEIPT, "the bucket counts, or had come before"),
    404: UNKNOWN,
    409: problem(409, "bucket-conflict", "bucket 4 came before with other bytes", bucket=4),
    413: problem(413, "too-large", "the body is larger than a bucket may be"),
    422: problem(422, "shape-mismatch", "expected [1536, 7168], got [1536, 7160]", bucket=4),
}
COMMIT_RESPONSES: Responses = {
    **_accepted({**OPENED, "state": "verifying", "load": 12, "loads": [12]}, "all is there"),
    404: UNKNOWN,
    422: problem(422, "open-group", "1 groups are incomplete", names=["model.norm.weight"]),
}
VERSIONS_RESPONSES = example(
    {"items": [{**COMMITTED, "by": "commit"}], "total": 1, "next": None}, "newest first"
)
CURRENT_RESPONSES = example(CURRENT, "what is served, and what is coming")
