"""DeepSeek V2, V3, V3.2 and their kin: latent attention, dense and expert layers, indexer.

Names, shapes and cuts: docs/differences.md says where they part from the reference loader.
"""

from loadscope.loader.families.attention import attention_params, attention_rules, norm
from loadscope.loader.families.choices import Choices
from loadscope.loader.families.indexer import absent_indexer_skips, indexer_params, indexer_rules
from loadscope.loader.families.mlp import mlp_params, mlp_rules
from loadscope.loader.families.names import ATTN, LAYER, own_names
from loadscope.loader.model import Model
from loadscope.loader.tables import Family, Param, Rule, Skip, Split

ROTARY = (
    Skip(ATTN + "rotary_emb.inv_freq", "rotary"),
    Skip("model.rotary_emb.inv_freq", "rotary"),
)


def build(model: Model, choices: Choices) -> Family:
    layers = layer_params(model, choices)
    rules = layer_rules(model, choices)
    skips = (*ROTARY, *absent_indexer_skips(model))
    if choices.tie_head:
        skips += (Skip("lm_head.weight", "shared_with_target"),)
    return Family(
        model.model_type,
        (*top_params(model, choices), *layers),
        (*rules, *own_names(layers, rules)),
        skips,
    )


def layer_params(model: Model, choices: Choices) -> tuple[Param, ...]:
    """Everything of a decoder layer, in the order in which it computes."""
    after = LAYER + "post_attention_layernorm.weight"
    return (
        *attention_params(model, choices),
        *indexer_params(model, choices),
        norm(after, model.hidden_size, "hidden_size", model),
        *mlp_params(model, choices),
    )


def layer_rules(model: Model, choices: Choices) -> tuple[Rule, ...]:
    return (
        *attention_rules(model, choices),
        *indexer_rules(model, choices),
        *mlp_rules(model, choices),
    )


def top_params(model: Model, choices: Choices) -> tuple[Param, ...]:
    table = (model.vocab_size, model.hidden_size)
    symbols = ("vocab_size", "hidden_size")
    rows = (Split(0, "vocab"),)
    embed = Param("model.embed_tokens.weight", table, symbols, model.dtype, rows, stage="first")
    last = Param("model.norm.weight", (model.hidden_size,), symbols[1:], model.dtype, stage="last")
    head = Param("lm_head.weight", table, symbols, model.dtype, rows, stage="last")
    return (embed, last) if choices.tie_head else (embed, last, head)
