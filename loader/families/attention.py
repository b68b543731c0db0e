"""Multi-head latent attention: queries and keys through low-rank matrices."""

from loadscope.loader.families.choices import Choices
from loadscope.loader.families.names import ATTN, LAYER
from loadscope.loader.model import Model
from loadscope.loader.tables import Fill, Param, Part, Rule, Split

HEADS = "num_attention_heads"
Q_ROWS = f"{HEADS} x (qk_nope_head_dim + qk_rope_head_dim)"
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa.{leaf}"
KV_B = ATTN + "kv_b_proj.{leaf}"
KV_SCALE_REASON = "the checkpoint has no such scale: -1.0 means unset"


def attention_params(model: Model, choices: Choices) -> tuple[Param, ...]:
    """In reading order, which is the order of the heat map's columns."""
    query = _query_params(model) if model.q_lora_rank is None else _latent_query_params(model)
    return (
        norm(LAYER + "input_layernorm.weight", model.hidden_size, "hidden_size", model),
        *query,
        *_key_value_params(model),
        *(_kv_scales(model) if choices.has_kv_scales else ()),
    )


def norm(name: str, size: int, symbol: str, model: Model) -> Param:
    return Param(name, (size,), (symbol,), model.dtype, layers=model.layers)


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
        shares_scale=True,
    )
    q_b = Param(
        ATTN + "q_b_proj.{leaf}",
        (model.num_attention_heads * qk, model.q_lora_rank),
        (Q_ROWS, "q_lora_rank"),
        model.dtype,
        (Split(0, "tp", qk),),
        layers=model.layers,
    )
    q_a_norm = norm(ATTN + "q_a_layernorm.weight", model.q_lora_rank, "q_lora_rank", model)
    return (fused, q_a_norm, q_b)


def _key_value_params(model: Model) -> tuple[Param, ...]:
    heads, kv, v = model.num_attention_heads, model.kv_lora_rank, model.v_head_dim
    up = model.qk_nope_head_dim + v
    kv_b = Param(
        KV_B,
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
    return (norm(ATTN + "kv_a_layernorm.weight", kv, "kv_lora_rank", model), kv_b, out)


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


def attention_rules(model: Model, choices: Choices) -> tuple[Rule, ...]:
    scales = (
        Rule(ATTN + "k_proj.k_scale", ATTN + "attn_mqa.k_scale"),
        Rule(ATTN + "v_proj.v_scale", ATTN + "attn_mqa.v_scale"),
    )
    kept = scales if choices.has_kv_scales else ()
    return kept if model.q_lora_rank is None else (*QKV_A_RULES, *kept)


QKV_A_RULES = (
    Rule(ATTN + "q_a_proj.{leaf}", QKV_A, "q_a", pair=ATTN + "kv_a_proj_with_mqa.{leaf}"),
    Rule(ATTN + "kv_a_proj_with_mqa.{leaf}", QKV_A, "kv_a", pair=ATTN + "q_a_proj.{leaf}"),
)
