"""Model families: what each holds and what checkpoints call it, as tables."""

from collections.abc import Callable

from loadscope.loader.families import deepseek, draft
from loadscope.loader.families.choices import Choices
from loadscope.loader.model import Model
from loadscope.loader.tables import Family

Builder = Callable[[Model, Choices], Family]

# (target, draft) by model type
BUILDERS: dict[str, tuple[Builder, Builder]] = {
    "deepseek_v2": (deepseek.build, draft.build),
    "deepseek_v3": (deepseek.build, draft.build),
    "deepseek_v32": (deepseek.build, draft.build),
    "kimi_k2": (deepseek.build, draft.build),
    "glm_moe_dsa": (deepseek.build, draft.build),
}


def build(model: Model, choices: Choices, *, is_draft: bool = False) -> Family:
    """The family's tables for one model, which is the draft's own if `is_draft`."""
    return BUILDERS[model.model_type][1 if is_draft else 0](model, choices)
