"""Model families: what each holds and what checkpoints call it, as tables."""

from collections.abc import Callable

from loadscope.loader.families import deepseek
from loadscope.loader.model import Model
from loadscope.loader.tables import Family, Format

BUILDERS: dict[str, Callable[[Model, Format, bool, bool], Family]] = {
    "deepseek_v2": deepseek.v2,
    "deepseek_v3": deepseek.v3,
    "deepseek_v32": deepseek.v32,
}


def build(model: Model, form: Format, *, fuse_indexer: bool, tie_head: bool) -> Family:
    """The family's tables for one model; `tie_head`: the head is the embedding itself."""
    return BUILDERS[model.model_type](model, form, fuse_indexer, tie_head)
