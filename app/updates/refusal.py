"""Why an update, or a step of one, was refused: one code, in words, with what to do next."""

from collections.abc import Sequence
from typing import Any

from loadscope.app.roles import Role
from loadscope.loader.findings import Finding

# HTTP status of each code; what the weights are then is in the update's record
STATUS = {
    "invalid_request": 400,
    "path_not_allowed": 403,
    "unknown_reload": 404,
    "source_missing": 404,
    "reload_in_progress": 409,
    "bucket_conflict": 409,
    "duplicate_tensor": 409,
    "idempotency_conflict": 409,
    "not_receiving": 409,
    "not_idle": 409,
    "cancelled": 409,
    "interrupted": 409,
    "no_checkpoint": 409,
    "nothing_to_roll_back": 409,
    "version_conflict": 412,
    "too_large": 413,
    "unsupported_format": 415,
    "unknown_tensor": 422,
    "missing_tensor": 422,
    "shape_mismatch": 422,
    "dtype_mismatch": 422,
    "open_group": 422,
    "checksum_mismatch": 422,
    "non_finite": 422,
    "truncated": 422,
    "config_mismatch": 422,
    "refused": 422,
    "receive_timeout": 504,
    "deadline_exceeded": 504,
    "load_failed": 500,
    "finalize_failed": 500,
    "poisoned": 503,
    "insufficient_memory": 507,
}

# what a plan's first error means to the sender of an update
CODES_OF_FINDINGS = {
    "LS1": "truncated",
    "LS2": "config_mismatch",
    "LS301": "unknown_tensor",
    "LS304": "duplicate_tensor",
    "LS401": "shape_mismatch",
    "LS402": "dtype_mismatch",
    "LS403": "dtype_mismatch",
    "LS501": "missing_tensor",
    "LS504": "open_group",
    "LS602": "shape_mismatch",
}


def code_of(finding: Finding) -> str:
    return CODES_OF_FINDINGS.get(
        finding.code, CODES_OF_FINDINGS.get(finding.code[:3], "config_mismatch")
    )


class Refusal(Exception):
    """Names, what was expected and got, which bucket, and a fix, where there are any.

    `load` and `role` are those whose plan or load was at fault.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        fix: str = "",
        names: Sequence[str] = (),
        expected: str | None = None,
        got: str | None = None,
        bucket: int | None = None,
        findings: Sequence[Finding] = (),
        load: int | None = None,
        role: Role | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message)
        assert code in STATUS, code
        self.code, self.message, self.fix = code, message, fix
        self.names, self.expected, self.got = tuple(names), expected, got
        self.bucket, self.findings = bucket, tuple(findings)
        self.load, self.role, self.facts = load, role, facts

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def as_json(self, phase: str | None = None) -> dict[str, Any]:
        """The `failure` of an update's record."""
        return {
            "code": self.code,
            "message": self.message,
            "phase": phase,
            "names": list(self.names),
            "expected": self.expected,
            "got": self.got,
            "bucket": self.bucket,
            "fix": self.fix,
        }
