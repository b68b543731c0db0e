"""DeepSeek V2, V3 and V3.2: latent attention, dense and expert layers, the V3.2 indexer.

Names, shapes and cuts: docs/differences.md says where they part from the reference loader.
"""

from loadscope.loader.model import Model
from loadscope.loader.tables import (
    Derive,
    Family,
    Fill,
    Format,
    Output,
    Param,
    Part,
    Rule,
    Skip,
    Split,
)

LAYER = "model.layers.{layer}."
ATTN = LAYER + "self_attn."
MLP = LAYER + "mlp."
INDEXER = ATTN + "indexer."
HEADS = "num_attention_heads"
Q_ROWS = f"{HEADS} x (qk_nope_head_dim + qk_rope_head_dim)"
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa.{leaf}"
KV_SCALE_REASON = "the checkpoint has no such scale: -1.0 means unset"


def v2(model: Model, form: Format, _fuse_indexer: bool, tie_head: bool) -> Family:
    return _family("deepseek_v2", model, form, (), (), tie_head)


def v3(model: Model, form: Format, _fuse_indexer: bool, tie_head: bool) -> Family:
    return _family("deepseek_v3", model, form, (), (), tie_head)


def v32(model: Model, form: Format, fuse_indexer: bool, tie_head: bool) -> Family:
    if model.index_n_heads is None or model.index_head_dim is None:
        return _family("deepseek_v32", model, form, (), (), tie_head)
    params = indexer_params(model, fuse_indexer)
    rules = FUSED_INDEXER_RULES if fuse_indexer else ()
    return _family("deepseek_v32", model, form, params, rules, tie_head)


def _family(
    name: str,
    model: Model,
    form: Format,
    extra_params: tuple[Param, ...],
    extra_rules: tuple[Rule, ...],
    tie_head: bool,
) -> Family:
    params = (
        *top_params(model, tie_head),
        *attention_params(model, form),
        *extra_params,
        _norm(LAYER + "post_attention_layernorm.weight", model.hidden_size, "hidden_size", model),
        *mlp_params(model),
    )
    rules = (*attention_rules(model, form), *extra_rules, *MLP_RULES)
    skips = (*SKIPS, Skip("lm_head.weight", "shared_with_target")) if tie_head else SKIPS
    return Family(name, params, rules, skips, (kv_b_split(model),))


def top_params(model: Model, tie_head: bool) -> tuple[Param, ...]:
    table = (model.vocab_size, model.hidden_size)
    symbols = ("vocab_size", "hidden_size")
    rows = (Split(0, "vocab"),)
    embed = Param("model.embed_tokens.weight", table, symbols, model.dtype, rows, stage="first")
    norm = Param("model.norm.weight", (model.hidden_size,), symbols[1:], model.dtype, stage="last")
    head = Param("lm_head.weight", table, symbols, model.dtype, rows, stage="last")
    return (embed, norm) if tie_head else (embed, norm, head)


def attention_params(model: Model, form: Format) -> tuple[Param, ...]:
    """In reading order, which is the order of the heat map's columns."""
    query = _query_params(model) if model.q_lora_rank is None else _latent_query_params(model)
    return (
        _norm(LAYER + "input_layernorm.weight", model.hidden_size, "hidden_size", model),
        *query,
        *_key_value_params(model),
        *(_kv_scales(model) if form.has_kv_scales else ()),
    )


def _query_params(model: Model) -> tuple[Param, ...]:
    """Without a query rank: q_proj and kv_a_proj_with_mqa are parameters of their own."""
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    q = Param(
        ATTN + "q_proj.{leaf}",
        (model.num_attention_heads * qk, model.hidden_size),
        (Q_ROWS, "hidden_size"),
        model.dtype,
        (Split(0, "tp", qk),),
        layers=model.layers,
    )
    kv_a = Param(
        ATTN + "kv_a_proj_with_mqa.{leaf}",
        (model.kv_lora_rank + model.qk_rope_head_dim, model.hidden_size),
        ("kv_lora_rank + qk_rope_head_dim", "hidden_size"),
        model.dtype,
        layers=model.layers,
    )
    return (q, kv_a)


def _latent_query_params(model: Model) -> tuple[Param, ...]:
    """With a query rank: q_a and kv_a share one parameter, whole on every rank."""
    assert model.q_lora_rank is not None
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    kv_a = model.kv_lora_rank + model.qk_rope_head_dim
    fused = Param(
        QKV_A,
        (model.q_lora_rank + kv_a, model.hidden_size),
        ("q_lora_rank + kv_lora_rank + qk_rope_head_dim", "hidden_size"),
        model.dtype,
        parts=(Part("q_a", model.q_lora_rank), Part("kv_a", kv_a)),
        layers=model.layers,
    )
    q_b = Param(
        ATTN + "q_b_proj.{leaf}",
        (model.num_attention_heads * qk, model.q_lora_rank),
        (Q_ROWS, "q_lora_rank"),
        model.dtype,
        (Split(0, "tp", qk),),
        layers=model.layers,
    )
    q_a_norm = _norm(ATTN + "q_a_layernorm.weight", model.q_lora_rank, "q_lora_rank", model)
    return (fused, q_a_norm, q_b)


def _key_value_params(model: Model) -> tuple[Param, ...]:
    heads, kv, v = model.num_attention_heads, model.kv_lora_rank, model.v_head_dim
    up = model.qk_nope_head_dim + v
    kv_b = Param(
        ATTN + "kv_b_proj.{leaf}",
        (heads * up, kv),
        (f"{HEADS} x (qk_nope_head_dim + v_head_dim)", "kv_lora_rank"),
        model.dtype,
        (Split(0, "tp", up),),
        layers=model.layers,
    )
    out = Param(
        ATTN + "o_proj.{leaf}",
        (model.hidden_size, heads * v),
        ("hidden_size", f"{HEADS} x v_head_dim"),
        model.dtype,
        (Split(1, "tp", v),),
        layers=model.layers,
    )
    return (_norm(ATTN + "kv_a_layernorm.weight", kv, "kv_lora_rank", model), kv_b, out)


def _norm(name: str, size: int, symbol: str, model: Model) -> Param:
    return Param(name, (size,), (symbol,), model.dtype, layers=model.layers)


def _kv_scales(model: Model) -> tuple[Param, ...]:
    fill = Fill("initial", -1.0, KV_SCALE_REASON)
    return tuple(
        Param(
            ATTN + f"{attention}.{scale}", (), (), "F32",
            layers=model.layers, fill=fill, role="scale",
        )
        for attention in ("attn_mqa", "attn_mha")
        for scale in ("k_scale", "v_scale")
    )  # fmt: skip


def attention_rules(model: Model, form: Format) -> tuple[Rule, ...]:
    scales = (
        Rule(ATTN + "k_proj.k_scale", ATTN + "attn_mqa.k_scale"),
        Rule(ATTN + "v_proj.v_scale", ATTN + "attn_mqa.v_scale"),
    )
    kept = scales if form.has_kv_scales else ()
    return kept if model.q_lora_rank is None else (*QKV_A_RULES, *kept)


QKV_A_RULES = (
    Rule(ATTN + "q_a_proj.{leaf}", QKV_A, "q_a", pair=ATTN + "kv_a_proj_with_mqa.{leaf}"),
    Rule(ATTN + "kv_a_proj_with_mqa.{leaf}", QKV_A, "kv_a", pair=ATTN + "q_a_proj.{leaf}"),
)


def indexer_params(model: Model, fuse: bool) -> tuple[Param, ...]:
    """The V3.2 indexer, whole on every rank; `fuse` makes wk and weights_proj one matrix."""
    heads, dim, hidden = model.index_n_heads, model.index_head_dim, model.hidden_size
    rank = model.q_lora_rank if model.q_lora_rank is not None else hidden
    assert heads is not None
    assert dim is not None
    layers, dtype = model.layers, model.dtype
    k_norm = tuple(
        Param(
            INDEXER + f"k_norm.{leaf}", (dim,), ("index_head_dim",), "F32",
            layers=layers, role="bias" if leaf == "bias" else "weight",
        )
        for leaf in ("weight", "bias")
    )  # fmt: skip
    wq_b = Param(
        INDEXER + "wq_b.{leaf}",
        (heads * dim, rank),
        ("index_n_heads x index_head_dim", "q_lora_rank"),
        dtype,
        layers=layers,
    )
    if fuse:
        parts = (Part("wk", dim), Part("weights_proj", heads))
        symbols = ("index_head_dim + index_n_heads", "hidden_size")
        fused = Param(
            INDEXER + "wk_weights_proj.weight", (dim + heads, hidden), symbols, dtype,
            parts=parts, layers=layers,
        )  # fmt: skip
        return (wq_b, fused, *k_norm)
    wk = Param(
        INDEXER + "wk.{leaf}",
        (dim, hidden),
        ("index_head_dim", "hidden_size"),
        dtype,
        layers=layers,
    )
    weights = Param(
        INDEXER + "weights_proj.weight",
        (heads, hidden),
        ("index_n_heads", "hidden_size"),
        dtype,
        layers=layers,
    )
    return (wq_b, wk, weights, *k_norm)


FUSED_INDEXER = INDEXER + "wk_weights_proj.weight"
FUSED_INDEXER_RULES = (
    Rule(INDEXER + "wk.{leaf}", FUSED_INDEXER, "wk", convert="dequantise_block"),
    Rule(INDEXER + "weights_proj.weight", FUSED_INDEXER, "weights_proj"),
)


def mlp_params(model: Model) -> tuple[Param, ...]:
    dense = model.layers & ~model.moe_layers
    params = _gated(MLP, model.intermediate_size, "intermediate_size", model, dense)
    if not model.moe_layers:
        return params
    shared = model.moe_intermediate_size * model.n_shared_experts
    symbol = "moe_intermediate_size x n_shared_experts"
    if shared:
        params += _gated(MLP + "shared_experts.", shared, symbol, model, model.moe_layers)
    return router_params(model) + params + expert_params(model)


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
        model.dtype,
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


def expert_params(model: Model) -> tuple[Param, ...]:
    experts, width, hidden = (
        model.n_routed_experts,
        model.moe_intermediate_size,
        model.hidden_size,
    )
    w13 = Param(
        MLP + "experts.w13_{leaf}",
        (experts, 2 * width, hidden),
        ("n_routed_experts", "2 x moe_intermediate_size", "hidden_size"),
        model.dtype,
        (Split(0, "ep"), Split(1, "expert_tp")),
        parts=(Part("w1", width), Part("w3", width)),
        part_dim=1,
        layers=model.moe_layers,
    )
    w2 = Param(
        MLP + "experts.w2_{leaf}",
        (experts, hidden, width),
        ("n_routed_experts", "hidden_size", "moe_intermediate_size"),
        model.dtype,
        (Split(0, "ep"), Split(2, "expert_tp")),
        parts=(Part("w2", hidden),),
        part_dim=1,
        layers=model.moe_layers,
    )
    return (w13, w2)


def _merged(prefix: str) -> tuple[Rule, ...]:
    return (
        Rule(prefix + "gate_proj.{leaf}", prefix + "gate_up_proj.{leaf}", "0"),
        Rule(prefix + "up_proj.{leaf}", prefix + "gate_up_proj.{leaf}", "1"),
    )


EXPERT = MLP + "experts.{expert}."
MLP_RULES = (
    *_merged(MLP),
    *_merged(MLP + "shared_experts."),
    Rule(EXPERT + "gate_proj.{leaf}", MLP + "experts.w13_{leaf}", "w1"),
    Rule(EXPERT + "up_proj.{leaf}", MLP + "experts.w13_{leaf}", "w3"),
    Rule(EXPERT + "down_proj.{leaf}", MLP + "experts.w2_{leaf}", "w2"),
)

SKIPS = (
    Skip(ATTN + "rotary_emb.inv_freq", "rotary"),
    Skip("model.rotary_emb.inv_freq", "rotary"),
)


def kv_b_split(model: Model) -> Derive:
    """w_kc and w_vc of absorbed attention, one per head: strides as the reference leaves them."""
    heads, kv = model.num_attention_heads, model.kv_lora_rank
    return Derive(
        op="split_kv_b",
        module=LAYER + "self_attn",
        input=ATTN + "kv_b_proj.{leaf}",
        outputs=(
            Output("w_kc", (heads, model.qk_nope_head_dim, kv), order=(0, 2, 1)),
            Output("w_vc", (heads, kv, model.v_head_dim), order=(0, 2, 1)),
        ),
        layers=model.layers,
        scalars=(("w_scale", 1.0),),
        flags=(("use_deep_gemm_bmm", False),),
    )
