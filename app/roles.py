"""Roles: the target, and the draft that is loaded from the same checkpoint beside it."""

from dataclasses import replace
from typing import Literal, get_args

from loadscope.loader.plan import Options

Role = Literal["target", "draft"]
ROLES: tuple[Role, ...] = get_args(Role)


def parse_roles(text: str) -> tuple[Role, ...]:
    """Roles of `target,draft` in the order given; raises ValueError for any other word."""
    known = {name: name for name in ROLES}
    found: list[Role] = []
    for word in (part.strip() for part in text.split(",")):
        if word not in known:
            raise ValueError(f"{word!r} in {text!r}; expected target, draft, or target,draft")
        if word in found:
            raise ValueError(f"{word} is named twice in {text!r}")
        found.append(known[word])
    return tuple(found)


def role_of(options: Options) -> Role:
    return "draft" if options.draft else "target"


def options_of(role: Role, options: Options) -> Options:
    """The same options for the plan of this role."""
    return replace(options, draft=role == "draft")
