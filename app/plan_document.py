"""The `plan --json` document: a plan's own facts, with what was asked for."""

from dataclasses import asdict
from typing import Any

from loadscope.app.roles import role_of
from loadscope.loader.plan import Plan
from loadscope.loader.views import as_json


def plan_document(plan: Plan) -> dict[str, Any]:
    """`options` are those of the command line; `role` is the model that they ask for."""
    facts = as_json(plan)
    overrides = [list(pair) for pair in plan.options.overrides]
    options = {**asdict(plan.options), "overrides": overrides}
    asked = {"role": role_of(plan.options), "options": options}
    return {"verdict": facts["verdict"], "checkpoint": facts["checkpoint"], **asked, **facts}
