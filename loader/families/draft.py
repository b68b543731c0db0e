"""The draft (NextN) model: one expert layer behind the model's last, under names of its own."""

from dataclasses import replace

from loadscope.loader.families.attention import norm
from loadscope.loader.families.choices import Choices
from loadscope.loader.families.deepseek import ROTARY, layer_params, layer_rules
from loadscope.loader.families.names import LAYER, own_names
from loadscope.loader.model import Model
from loadscope.loader.tables import Family, Fill, Param, Rule, Skip

DECODER = "model.decoder."
SHARED = Fill("shared", None, "the target's own tensor is used")
SKIPS = (
    Skip(LAYER + "embed_tokens.weight", "shared_with_target"),
    Skip(LAYER + "shared_head.head.weight", "shared_with_target"),
)


def build(model: Model, choices: Choices) -> Family:
    """Tables of the draft; `model` is the draft's: its layers are the one draft layer."""
    layers = layer_params(model, choices)
    rules = layer_rules(model, choices)
    rules += own_names(layers, rules)
    named = {rule.target for rule in rules}
    rules += tuple(Rule(p.name, p.name) for p in layers if p.name not in named)
    heads = _head_params(model)
    return Family(
        f"{model.model_type} draft",
        (*_shared_params(model), *heads, *(replace(p, name=_decoder(p.name)) for p in layers)),
        (
            *(Rule(LAYER + p.name.removeprefix("model."), p.name) for p in heads),
            *(replace(rule, target=_decoder(rule.target)) for rule in rules),
        ),
        (*ROTARY, *SKIPS),
    )


def _decoder(name: str) -> str:
    return name.replace(LAYER, DECODER)


def _head_params(model: Model) -> tuple[Param, ...]:
    """What joins the last hidden state and the next token's embedding, and the norm at the end."""
    hidden, dtype, layers = model.hidden_size, model.dtype, model.layers
    return (
        norm("model.enorm.weight", hidden, "hidden_size", model),
        norm("model.hnorm.weight", hidden, "hidden_size", model),
        Param(
            "model.eh_proj.weight",
            (hidden, 2 * hidden),
            ("hidden_size", "2 x hidden_size"),
            dtype,
            layers=layers,
        ),
        norm("model.shared_head.norm.weight", hidden, "hidden_size", model),
    )


def _shared_params(model: Model) -> tuple[Param, ...]:
    table = (model.vocab_size, model.hidden_size)
    symbols = ("vocab_size", "hidden_size")
    return tuple(
        Param(name, table, symbols, model.dtype, stage="first", fill=SHARED)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    )
