"""Records of updates as the server writes them, one per way that an update can go."""

import time
from collections.abc import Callable
from typing import Any

from support.update_records import (
    DIGEST,
    NOT_YET,
    QKV_A,
    Record,
    active,
    buckets,
    cells,
    delta,
    open_group,
    phases,
    plan,
    receiving,
    role,
    verify,
)  # fmt: skip


def failed(number: int = 8, version: str = "129", **changes: Any) -> Record:
    """35 tensors did not come; nothing was written."""
    missing = [
        f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"
        for layer in range(4, 9)
        for expert in range(7)
    ]
    failure = {
        "code": "missing_tensor", "phase": "planning", "names": missing[:20], "expected": None,
        "got": None, "bucket": None,
        "fix": "send every tensor of the model, or ask for scope: partial",
        "message": f"35 of 170 tensors did not come, the first is {missing[0]}",
    }  # fmt: skip
    begun = time.time() - 60
    told = {
        "state": "failed", "weights": "unchanged", "failure": failure, "delta": None, "roles": {},
        "loads": [], "atomicity": None, "atomicity_reason": "", "stopped_serving_s": 0.0,
        "plan": plan(135, whole=33, missing=missing), "buckets": buckets(10, 0),
        "verify": verify(**NOT_YET, level="bytes"), "gbps": {"read": None, "switch": None},
        "opened_t": begun, "ended_t": begun + 3.2, **phases(begun, receiving=3.1, planning=0.1),
    }  # fmt: skip
    return active(number, version, **told | changes)


def half_missing(number: int = 8, version: str = "129") -> Record:
    failure = {
        "code": "open_group", "phase": "planning", "names": open_group(0)["waits_for"],
        "expected": None, "got": None, "bucket": 0,
        "fix": "send all members of a group in one update",
        "message": f"1 group is incomplete: {QKV_A.format(0)} waits for its other half",
    }  # fmt: skip
    return failed(number, version, failure=failure, plan=plan(168, waiting=1, whole=39))


def mismatched(number: int = 8, version: str = "129") -> Record:
    names = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(3)]
    failure = {
        "code": "checksum_mismatch", "phase": "verifying", "names": names,
        "expected": "9f0c5e61d2b7440e8d6a3b1c7f5e2a90", "got": DIGEST, "bucket": 3,
        "fix": "send them again; if it comes back, compare how sender and receiver hash",
        "message": f"3 tensors are not what the sender's manifest says, the first is {names[0]}",
    }  # fmt: skip
    told = verify(level="bytes", mismatched=names, loaded_equal=None, not_comparable=0)
    return failed(number, version, failure=failure, plan=plan(), verify=told)


TOUCHED = {
    "target": {
        "0": [
            "model.norm.weight",
            *(f"model.layers.{n}.self_attn.o_proj.weight" for n in range(24)),
        ]
    }
}
LOAD_FAILURE = {
    "code": "load_failed", "phase": "switching", "names": ["model.layers.7.mlp.gate.weight"],
    "expected": None, "got": None, "bucket": None, "fix": "send or copy the file again",
    "message": "bucket-00007.safetensors ends inside model.layers.7.mlp.gate.weight",
}  # fmt: skip


def _half_way(number: int, version: str, **changes: Any) -> Record:
    begun = time.time() - 60
    spent = {"receiving": 3.0, "planning": 0.3, "quiescing": 0.1, "switching": 1.2}
    told = {
        "failure": LOAD_FAILURE, "delta": None, "verify": verify(**NOT_YET, level="headers"),
        "touched": {"count": 25, "names": TOUCHED}, "opened_t": begun, "ended_t": begun + 4.6,
        "stopped_serving_s": 1.3, "roles": {}, **phases(begun, **spent),
    }  # fmt: skip
    return active(number, version, **told | changes)


def rolled_back(number: int = 8, version: str = "129") -> Record:
    told = {
        "atomicity": "undo_log",
        "atomicity_reason": "a second copy needs 671 GB, 80 GB are free; old bytes fit on the host",
    }
    return _half_way(number, version, state="rolled_back", weights="rolled_back", **told)


def poisoned(number: int = 8, version: str = "129") -> Record:
    told = {"atomicity": "validated_in_place", "atomicity_reason": "asked for: atomic is off"}
    return _half_way(number, version, state="poisoned", weights="poisoned", **told)


def taken_back(number: int = 8, version: str = "129") -> Record:
    """Rolled back because somebody asked for it."""
    return active(number, version, state="rolled_back", weights="rolled_back")


def cancelled(number: int = 8, version: str = "129") -> Record:
    failure = {
        "code": "cancelled", "phase": "receiving", "names": [], "expected": None, "got": None,
        "bucket": None, "fix": "", "message": "cancelled by request",
    }  # fmt: skip
    told = plan(81, waiting=2, whole=16)
    return failed(number, version, state="cancelled", failure=failure, plan=told)


def interrupted(number: int = 8, version: str = "129") -> Record:
    failure = {
        "code": "interrupted", "phase": "receiving", "names": [], "expected": None, "got": None,
        "bucket": None, "message": "the process ended while the update was receiving",
        "fix": "open a new update with POST /reload and send everything again",
    }  # fmt: skip
    told = {"failure": failure, "plan": plan(81, whole=16), "weights": "pending"}
    return failed(number, version, state="interrupted", **told)


def partial(number: int = 8, version: str = "129") -> Record:
    """Some groups of the target; the draft got nothing."""
    groups = {"total": 8, "complete": 8, "split_across_buckets": 1, "open": []}
    draft = role(None, tensors=0, parameters=0, derived_refreshed=0, derived_kept=2)
    told = {"post_processed": False, "reason": "no tensor of this role in the update"}
    return active(
        number, version, scope="partial", buckets=buckets(2, 0), verify=verify(checked=38),
        plan=plan(38, groups=groups), roles={"target": role(tensors=38), "draft": draft | told},
        can_roll_back=True,
    )  # fmt: skip


def two_roles(number: int = 8, version: str = "129") -> Record:
    changes = delta(cells=cells() + [one | {"role": "draft"} for one in cells(layers=1)])
    roles = {"target": role(), "draft": role(13, tensors=22, parameters=9, derived_refreshed=2)}
    return active(number, version, roles=roles, loads=[12, 13], delta=changes, can_roll_back=True)


def broken(number: int = 8, version: str = "129") -> Record:
    """Served, and two cells hold NaN and Inf."""
    told = cells()
    told[40] |= {"nan": 3}
    told[90] |= {"inf": 1}
    changes = delta(
        nan=3, inf=1, cells=told, dtype_changed=["model.layers.3.mlp.gate.e_score_correction_bias"]
    )
    warning = {"code": "LS603", "message": "1 weight holds values that are not finite"}
    return active(number, version, delta=changes, warnings=[warning])


def in_place(number: int = 8, version: str = "129") -> Record:
    """From disk, over the live weights, hashed but not read back."""
    source = {"type": "disk", "name": "rl/weight_v000129"}
    reason = "a second copy of the weights needs 671.0 GB, 80.0 GB are free"
    return active(
        number, version, source=source, atomicity="validated_in_place", atomicity_reason=reason,
        delta=None, verify=verify(level="bytes", loaded_equal=None),
        buckets=buckets(0, 0) | {"last": None},
        stopped_serving_s=4.1,
    )  # fmt: skip


def first() -> Record:
    """The weights that a server begins with."""
    begun = time.time() - 3000
    spent = {"planning": 0.2, "quiescing": 0.001, "switching": 1.9, "finalizing": 0.001}
    return active(
        1, "1", origin="demo", previous=None, source={"type": "disk", "name": "demo"}, delta=None,
        atomicity="none", atomicity_reason="no whole weights were there to keep",
        verify=verify(**NOT_YET, level="headers"), opened_t=begun, ended_t=begun + 2.1,
        buckets=buckets(0, 0) | {"last": None}, state="retired", **phases(begun, **spent),
    )  # fmt: skip


ENDINGS: dict[str, Callable[[], Record]] = {
    "receiving": receiving, "failed": failed, "half missing": half_missing,
    "mismatched": mismatched, "rolled back": rolled_back, "poisoned": poisoned,
    "taken back": taken_back, "cancelled": cancelled, "interrupted": interrupted,
    "partial": partial, "two roles": two_roles, "broken": broken, "in place": in_place,
}  # fmt: skip


def history(newest: Record) -> list[Record]:
    """An update after seven others; the one before it is retired once the newest is active."""
    state = "retired" if newest["state"] == "active" else "active"
    before = [active(number, str(121 + number), state="retired") for number in range(2, 7)]
    return [first(), *before, active(state=state), newest]
