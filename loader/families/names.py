"""Prefixes of parameter names, and the names of parameters that are fused in the files."""

from collections.abc import Sequence

from loadscope.loader.tables import Param, Rule

LAYER = "model.layers.{layer}."
ATTN = LAYER + "self_attn."
MLP = LAYER + "mlp."
INDEXER = ATTN + "indexer."


def own_names(params: Sequence[Param], rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Parameters that rules fill from elsewhere may also stand in the files under their own name.

    A trainer that mirrors an engine's tree sends them so.
    """
    renamed = {rule.target for rule in rules}
    taken = {rule.source.replace("{leaf}", "weight") for rule in rules}
    return tuple(
        Rule(param.name, param.name, is_alternative=True)
        for param in params
        if param.name in renamed and param.name not in taken
    )
