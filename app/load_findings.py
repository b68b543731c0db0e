"""All findings of one load: of its plan, of its refusal, of its failure."""

from typing import Any

from loadscope.app.load_view import LoadView
from loadscope.loader.findings import finding


def load_findings(view: LoadView) -> list[dict[str, Any]]:
    planned = [] if view.plan is None else [one.as_json() for one in view.plan.findings]
    return [*_failure(view), *view.findings, *planned]


def _failure(view: LoadView) -> list[dict[str, Any]]:
    failure = view.state.failure
    if failure is None or view.state.status != "failed":
        return []
    subject = failure["tensor"] or failure["param"] or f"load {view.load}"
    evidence = {key: failure[key] for key in ("file", "param", "touched") if failure[key]}
    fix = failure["fix"] or "repair the cause and reload"
    one = finding(
        "LS601", subject, failure["message"], fix=fix, evidence=evidence, rule=failure["rule"]
    )
    return [one.as_json()]
