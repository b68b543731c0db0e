"""Random small models in any format, with a layout that is legal for them and options."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from support.expected_rank import Asked
from support.golden_configs import BASE, V2_LITE, V3, V32
from support.legal_sizes import sizes_of
from support.load_case import PLATFORMS, Load
from support.quantised_formats import FORMS, Form

GLM = {"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"]}
FAMILIES = (V3, V2_LITE, V32, {**V32, **GLM})
LAYOUTS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4))


@st.composite
def loads(
    draw: st.DrawFn,
    names: tuple[str, ...] = tuple(FORMS),
    *,
    is_draft: bool | None = None,
    max_pp: int = 2,
) -> Load:
    """A format of these, a family, a legal layout; roles, fusions and lists as they may be."""
    form = FORMS[draw(st.sampled_from(names))]
    tp, ep = draw(st.sampled_from(LAYOUTS))
    draft = draw(st.booleans()) if is_draft is None else is_draft
    pp = 1 if draft else draw(st.integers(1, max_pp))
    family = draw(st.sampled_from(FAMILIES))
    config = {**BASE, **family, **draw(sizes_of(form, tp, ep)), **draw(_layers(pp, draft))}
    config["torch_dtype"] = str(form.linear.floats).removeprefix("torch.")
    if config.get("index_topk") is not None:
        config |= draw(_indexer(form, config))
    fuses_shared = config["n_shared_experts"] == 1 and draw(st.booleans())
    fuses_shared = fuses_shared and not form.name.startswith("w4afp8")
    fuses_shared = fuses_shared and config["first_k_dense_replace"] < config["num_hidden_layers"]
    excluded = draw(_excluded(form, config, fuses_shared))
    has_cache = form.has_cache_scales and not (draft and form.linear.kind == "nvfp4")
    asked = Asked(
        tp, ep, pp, is_draft=draft, fuses_indexer=draw(st.booleans()), fuses_shared=fuses_shared,
        has_cache_scales=has_cache, is_wna16=form.is_wna16,
    )  # fmt: skip
    if form.entry:
        listed = draw(_spelled(excluded, form.excluding))
        config["quantization_config"] = {**form.entry, **listed}
    return Load(
        form.name, config, asked, excluded,
        platform=draw(st.sampled_from(("cuda", *PLATFORMS))),
        seed=draw(st.integers(0, 9)),
        has_cache_scales=has_cache and draw(st.booleans()),
        router_dtype=draw(st.sampled_from([None, "float32"])),
        # AWQ packs eight rows to a word, and there are fewer index heads
        quantises_weights_proj=form.linear.kind != "awq" and draw(st.booleans()),
    )  # fmt: skip


@st.composite
def _layers(draw: st.DrawFn, pp: int, draft: bool) -> dict[str, Any]:
    layers = draw(st.integers(max(1 if draft else 2, pp), 3))
    return {
        "num_hidden_layers": layers,
        "first_k_dense_replace": draw(st.integers(0, layers)),
        "num_nextn_predict_layers": 1 if draft else draw(st.integers(0, 1)),
    }


@st.composite
def _indexer(draw: st.DrawFn, form: Form, config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = st.lists(
        st.sampled_from(["full", "shared"]),
        min_size=config["num_hidden_layers"],
        max_size=config["num_hidden_layers"],
    )
    return {
        "index_n_heads": draw(st.sampled_from([2, 3] if form.rows == 1 else [2, 4])),
        "index_head_dim": draw(st.sampled_from([24, 64] if form.rows == 1 else [64, 128])),
        **draw(st.sampled_from([{}, {"indexer_types": draw(kinds)}])),
    }


@st.composite
def _excluded(
    draw: st.DrawFn, form: Form, config: Mapping[str, Any], fuses_shared: bool
) -> tuple[str, ...]:
    """Modules that stay plain: whole groups, so that parts of one parameter never disagree."""
    if not form.entry:
        return ()
    layers = range(config["num_hidden_layers"] + 1)
    groups = ["self_attn", "self_attn.kv_b_proj", "self_attn.o_proj", "self_attn.q_b_proj"]
    if not fuses_shared:
        groups += ["mlp.shared_experts", "mlp.experts"]
    groups += [f"layers.{n}.self_attn" for n in layers]
    groups += [f"layers.{n}.mlp" for n in layers]
    if config.get("index_topk") is not None:
        groups.append("self_attn.indexer.wk")
    return tuple(draw(st.lists(st.sampled_from(groups), max_size=3, unique=True)))


SPELLINGS = (
    lambda name: [name],
    lambda name: [f"*{name}*"],
    lambda name: ["re:.*" + name.replace(".", r"\.") + r"(\..*)?$"],
    lambda name: [f"model.{name}" if name.startswith("layers.") else name],
    lambda name: [f"*.{name}.*", f"*.{name}"],
    lambda name: [name + "."],
)


@st.composite
def _spelled(draw: st.DrawFn, excluded: tuple[str, ...], field: str) -> dict[str, Any]:
    entries: list[str] = []
    for name in excluded:
        entries += draw(st.sampled_from(SPELLINGS))(name)
    return {field: entries} if entries or draw(st.booleans()) else {}
