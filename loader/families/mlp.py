"""Dense layers, and expert layers: router, stacked experts, shared expert."""

from loadscope.loader.families.choices import Choices
from loadscope.loader.families.names import MLP
from loadscope.loader.model import Model
from loadscope.loader.tables import Param, Part, Rule, Split

EXPERT = MLP + "experts.{expert}."
SHARED = MLP + "shared_experts."
W13 = MLP + "experts.w13_{leaf}"
W2 = MLP + "experts.w2_{leaf}"


def mlp_params(model: Model, choices: Choices) -> tuple[Param, ...]:
    dense = model.layers & ~model.moe_layers
    params = _gated(MLP, model.intermediate_size, "intermediate_size", model, dense)
    if not model.moe_layers:
        return params
    width = model.moe_intermediate_size * model.n_shared_experts
    symbol = "moe_intermediate_size x n_shared_experts"
    if width and not choices.fuse_shared_experts:
        params += _gated(SHARED, width, symbol, model, model.moe_layers)
    return router_params(model) + params + expert_params(model, choices)


def _gated(prefix: str, width: int, symbol: str, model: Model, layers: int) -> tuple[Param, ...]:
    """A gated MLP: gate and up merged and cut by columns, down cut by rows."""
    hidden = model.hidden_size
    gate_up = Param(
        prefix + "gate_up_proj.{leaf}",
        (2 * width, hidden),
        (f"2 x {symbol}", "hidden_size"),
        model.dtype,
        (Split(0, "tp"),),
        parts=(Part("0", width), Part("1", width)),
        layers=layers,
    )
    down = Param(
        prefix + "down_proj.{leaf}",
        (hidden, width),
        ("hidden_size", symbol),
        model.dtype,
        (Split(1, "tp"),),
        layers=layers,
    )
    return (gate_up, down)


def router_params(model: Model) -> tuple[Param, ...]:
    experts, symbol = model.n_routed_experts, "n_routed_experts"
    gate = Param(
        MLP + "gate.weight",
        (experts, model.hidden_size),
        (symbol, "hidden_size"),
        "F32" if model.router_fp32 else model.dtype,
        layers=model.moe_layers,
        # transformers keeps the router in float32 when it saves a bf16 model
        accepts=("F32",),
    )
    bias = Param(
        MLP + "gate.e_score_correction_bias",
        (experts,),
        (symbol,),
        "F32",
        layers=model.moe_layers,
        role="bias",
    )
    return (gate, bias) if model.has_router_bias else (gate,)


def expert_params(model: Model, choices: Choices) -> tuple[Param, ...]:
    fused = 1 if choices.fuse_shared_experts else 0
    experts = model.n_routed_experts + fused
    count = "n_routed_experts + 1" if fused else "n_routed_experts"
    width, hidden = model.moe_intermediate_size, model.hidden_size
    by_expert = Split(0, "ep", kept=fused)
    w13 = Param(
        W13,
        (experts, 2 * width, hidden),
        (count, "2 x moe_intermediate_size", "hidden_size"),
        model.dtype,
        (by_expert, Split(1, "expert_tp")),
        parts=(Part("w1", width), Part("w3", width)),
        part_dim=1,
        layers=model.moe_layers,
    )
    w2 = Param(
        W2,
        (experts, hidden, width),
        (count, "hidden_size", "moe_intermediate_size"),
        model.dtype,
        (by_expert, Split(2, "expert_tp")),
        parts=(Part("w2", hidden),),
        part_dim=1,
        layers=model.moe_layers,
    )
    return (w13, w2)


def mlp_rules(model: Model, choices: Choices) -> tuple[Rule, ...]:
    """gate and up of one module, or of one expert, share a parameter."""
    experts = (
        Rule(EXPERT + "gate_proj.{leaf}", W13, "w1", mixtral=EXPERT + "w1.{leaf}"),
        Rule(EXPERT + "up_proj.{leaf}", W13, "w3", mixtral=EXPERT + "w3.{leaf}"),
        Rule(EXPERT + "down_proj.{leaf}", W2, "w2", mixtral=EXPERT + "w2.{leaf}"),
        # transformers' own names for stacked experts
        Rule(MLP + "experts.gate_up_proj{_leaf}", W13, is_alternative=True),
        Rule(MLP + "experts.down_proj{_leaf}", W2, is_alternative=True),
    )
    dense = _merged(MLP) if model.layers & ~model.moe_layers else ()
    if not model.moe_layers:
        return dense
    if choices.fuse_shared_experts:
        last = model.n_routed_experts
        shared: tuple[Rule, ...] = (
            Rule(SHARED + "gate_proj.{leaf}", W13, "w1", expert=last),
            Rule(SHARED + "up_proj.{leaf}", W13, "w3", expert=last),
            Rule(SHARED + "down_proj.{leaf}", W2, "w2", expert=last),
            Rule(SHARED + "gate_up_proj.{leaf}", W13, is_alternative=True, expert=last),
        )
    else:
        shared = _merged(SHARED) if model.n_shared_experts else ()
    return (*dense, *shared, *experts)


def _merged(prefix: str) -> tuple[Rule, ...]:
    return (
        Rule(prefix + "gate_proj.{leaf}", prefix + "gate_up_proj.{leaf}", "0"),
        Rule(prefix + "up_proj.{leaf}", prefix + "gate_up_proj.{leaf}", "1"),
    )
