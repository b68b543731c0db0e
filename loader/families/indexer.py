"""The indexer of sparse attention, whole on every rank; some layers may have none."""

from loadscope.loader.families.choices import Choices
from loadscope.loader.families.names import INDEXER
from loadscope.loader.model import Model
from loadscope.loader.tables import Param, Part, Rule, Skip

FUSED = INDEXER + "wk_weights_proj.weight"
LEAVES = ("weight", "weight_scale_inv", "weight_scale", "bias")
MODULES = ("wq_b", "wk", "weights_proj", "k_norm", "wk_weights_proj")


def indexer_params(model: Model, choices: Choices) -> tuple[Param, ...]:
    """wk and weights_proj are one matrix in floats where the indexer is fused."""
    if model.index_n_heads is None or model.index_head_dim is None:
        return ()
    heads, dim, hidden = model.index_n_heads, model.index_head_dim, model.hidden_size
    layers, dtype = model.indexer_layers, model.dtype
    rank = model.q_lora_rank if model.q_lora_rank is not None else hidden
    wq_b = Param(
        INDEXER + "wq_b.{leaf}",
        (heads * dim, rank),
        ("index_n_heads x index_head_dim", "q_lora_rank"),
        dtype,
        layers=layers,
    )
    k_norm = tuple(
        Param(INDEXER + f"k_norm.{leaf}", (dim,), ("index_head_dim",), "F32", layers=layers)
        for leaf in (("weight", "bias") if model.index_k_norm_has_bias else ("weight",))
    )
    if choices.fuse_indexer:
        fused = Param(
            FUSED,
            (dim + heads, hidden),
            ("index_head_dim + index_n_heads", "hidden_size"),
            dtype,
            parts=(Part("wk", dim), Part("weights_proj", heads)),
            layers=layers,
        )
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


def indexer_rules(model: Model, choices: Choices) -> tuple[Rule, ...]:
    if model.index_n_heads is None:
        return ()
    target = FUSED if choices.fuse_indexer else INDEXER + "weights_proj.weight"
    weights = Rule(
        INDEXER + "weights_proj.{leaf}",
        target,
        "weights_proj" if choices.fuse_indexer else None,
        is_dequantised=True,
        follows_header=True,
    )
    wk = Rule(INDEXER + "wk.{leaf}", FUSED, "wk", is_dequantised=True)
    return (wk, weights) if choices.fuse_indexer else (weights,)


def absent_indexer_skips(model: Model) -> tuple[Skip, ...]:
    """Tensors of an indexer in layers that take another layer's choice of tokens."""
    absent = model.layers & ~model.indexer_layers
    if model.index_n_heads is None or not absent:
        return ()
    return tuple(
        Skip(INDEXER + f"{module}.{leaf}", "indexer_absent", absent)
        for module in MODULES
        for leaf in LEAVES
    )
