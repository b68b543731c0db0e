"""An entry of a quantisation config means the same module in every spelling in use."""

import re
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadscope.loader.formats.entries import Entries, matched, read_entries

ATTN = "model.layers.3.self_attn"
Q_A = f"{ATTN}.q_a_proj"
FUSED = f"{ATTN}.fused_qkv_a_proj_with_mqa"
ROUTER = "model.layers.3.mlp.gate"
GATE_PROJ = "model.layers.3.mlp.gate_proj"
EXPERTS = "model.layers.3.mlp.experts"
EXPERT = f"{EXPERTS}.17.gate_proj"
LAYER_30 = "model.layers.30.self_attn.o_proj"
EMBED = "model.embed_tokens"
HEAD = "lm_head"
DRAFT = "model.layers.61.eh_proj"
MODULES = (Q_A, FUSED, ROUTER, GATE_PROJ, EXPERTS, EXPERT, LAYER_30, EMBED, HEAD, DRAFT)
LAYER_3 = {Q_A, FUSED, ROUTER, GATE_PROJ, EXPERTS, EXPERT}
INNER = {*MODULES} - {HEAD}
WRAPPERS = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")

MEANINGS: dict[str, set[str]] = {
    # a name, or a module that holds it
    Q_A: {Q_A},
    ATTN: {Q_A, FUSED},
    "model.layers.3": LAYER_3,
    "layers.3": LAYER_3,
    EXPERTS: {EXPERTS, EXPERT},
    EXPERT: {EXPERT},
    "model.layers.61": {DRAFT},
    HEAD: {HEAD},
    "model.lm_head": {HEAD},
    "language_model.lm_head": {HEAD},
    "model": INNER,
    "model.language_model": INNER,
    "language_model": {*MODULES},
    # whole segments, anywhere
    "self_attn": {Q_A, FUSED, LAYER_30},
    "mlp.gate": {ROUTER},
    "gate": {ROUTER},
    "q_a_proj": {Q_A},
    "experts": {EXPERTS, EXPERT},
    "17": {EXPERT},
    "embed_tokens": {EMBED},
    "gat": set(),
    "qkv_a_proj": set(),
    "layer": set(),
    "layers.6": set(),
    "mlp.gate_": set(),
    "visual.layers.3": set(),
    "model.visual.layers.3": set(),
    "model.eh_proj": set(),
    # endings
    f"{Q_A}.weight": {Q_A},
    "model.layers.3.*": LAYER_3,
    "model.layers.3.": LAYER_3,
    f"{ATTN}.*.weight": {Q_A, FUSED},
    "mlp.gate.": {ROUTER},
    "lm_head.weight": {HEAD},
    "model.*": INNER,
    ".": set(),
    ".weight": set(),
    ".*": set(),
    # globs
    "model.layers.3*": LAYER_3 | {LAYER_30},
    "model.layers.3.*attn*": {Q_A, FUSED},
    "layers.3.self_attn*": {Q_A, FUSED},
    "*self_attn*": {Q_A, FUSED, LAYER_30},
    "*self_attn": {Q_A, FUSED, LAYER_30},
    "*.self_attn": {Q_A, FUSED, LAYER_30},
    "*.gate": {ROUTER},
    "*mlp.gate.": {ROUTER},
    "*.mlp.experts": {EXPERTS, EXPERT},
    "*embed_tokens*": {EMBED},
    "*lm_head*": {HEAD},
    "lm_*": {HEAD},
    "*": {*MODULES},
    "*.weight": {*MODULES},
    "gate*": {ROUTER, GATE_PROJ, EXPERT},
    "q_?_proj": {Q_A},
    "[qo]_*": {Q_A, LAYER_30},
    "[!qo]_*": set(),
    "model.layers.[0-9].mlp.gate": {ROUTER},
    "model.layers.?.mlp.*": {ROUTER, GATE_PROJ, EXPERTS, EXPERT},
    "?odel.layers.3.mlp.gate": {ROUTER},
    "*layers.[36]*": LAYER_3 | {LAYER_30, DRAFT},
    "model.layers.3[": set(),
    "*SELF_ATTN*": set(),
    "mlp.gate*": set(),
    # regular expressions, from the start of a name
    r"re:.*self_attn.*": {Q_A, FUSED, LAYER_30},
    r"re:.*mlp\.gate$": {ROUTER},
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*": {GATE_PROJ},
    r"re:model\.layers\.3\.": LAYER_3,
    r"re:layers\.3\.": LAYER_3,
    r"re:language_model\.model\.layers\.3\.": LAYER_3,
    r"re:model\.": INNER,
    r"re:self_attn": set(),
    r"re:(?i).*EH_PROJ": {DRAFT},
    r"re:.*lm_head": {HEAD},
    r"re:^(?!.*self_attn).*layers\.3\.": LAYER_3 - {Q_A, FUSED},
    r"re:^(?!model\.).*": {HEAD},
    r"re:(?!language_model\.)": set(),
    # class names
    "Linear": {*MODULES},
    "DeepseekV3MoEGate": set(),
    "Embedding": set(),
    "linear": set(),
}


def entries(*texts: str) -> Entries:
    return Entries(texts, "quantization_config.ignore")


@pytest.mark.parametrize("text", MEANINGS)
def test_an_entry_means_these_modules(text: str) -> None:
    found = {module: entries(text).find(module) for module in MODULES}
    assert found == {m: text if m in MEANINGS[text] else None for m in MODULES}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("of_module", WRAPPERS)
@pytest.mark.parametrize("bare", ["layers.3.mlp.gate", "layers.3.mlp", "layers.[3].mlp*"])
def test_wrappers_of_either_side_do_not_count(wrapper: str, of_module: str, bare: str) -> None:
    assert entries(wrapper + bare).find(f"{of_module}layers.3.mlp.gate") == wrapper + bare
    assert entries(wrapper + HEAD).find(of_module + HEAD) == wrapper + HEAD


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_regular_expression_means_a_module_under_every_wrapper(wrapper: str) -> None:
    text = f"re:{re.escape(wrapper)}" + r"layers\.3\.mlp\.gate$"
    assert entries(text).find(ROUTER) == text


def test_the_first_entry_as_written_is_found() -> None:
    ignored = entries("re:.*gate$", "*mlp*", "mlp.gate.", ROUTER, "Linear")
    for start in range(len(ignored.texts)):
        assert entries(*ignored.texts[start:]).find(ROUTER) == ignored.texts[start]
    assert ignored.find(Q_A) == "Linear"


def test_find_all_and_matched_know_entries_behind_the_first() -> None:
    ignored = entries("self_attn", "*self_attn*", "model.layers.3", "layers.3.", "vision", "gate")
    assert ignored.find_all(Q_A) == ("self_attn", "*self_attn*", "model.layers.3", "layers.3.")
    assert matched(ignored, [Q_A, HEAD]) == set(ignored.find_all(Q_A))
    assert matched(ignored, MODULES) == {*ignored.texts} - {"vision"}


def test_find_any_takes_the_first_listed_module() -> None:
    parts = (f"{ATTN}.q_a_proj", f"{ATTN}.kv_a_proj_with_mqa")
    assert entries("o_proj", "kv_a_proj_with_mqa").find_any(parts) == "kv_a_proj_with_mqa"
    assert entries("kv_a_proj_with_mqa", "q_a_proj").find_any(parts) == "q_a_proj"
    assert entries("o_proj").find_any(parts) is None
    assert entries("o_proj").find_any(()) is None


def test_equal_lists_are_equal_whatever_was_asked() -> None:
    asked = entries("gate")
    asked.find(ROUTER)
    assert asked == entries("gate")
    assert hash(asked) == hash(entries("gate"))
    assert Entries() != asked
    assert Entries().find(ROUTER) is None


FIELDS = ("ignored_layers", "modules_to_not_convert")


@pytest.mark.parametrize(
    ("config", "texts", "field"),
    [
        ({}, (), "ignored_layers"),
        ({"ignored_layers": None}, (), "ignored_layers"),
        ({"ignored_layers": ["a", "b"]}, ("a", "b"), "ignored_layers"),
        ({"modules_to_not_convert": ["b"]}, ("b",), "modules_to_not_convert"),
        (
            {"ignored_layers": None, "modules_to_not_convert": ["b"]},
            ("b",),
            "modules_to_not_convert",
        ),
        ({"ignored_layers": [], "modules_to_not_convert": ["b"]}, (), "ignored_layers"),
        ({"ignored_layers": ["a"], "modules_to_not_convert": ["b"]}, ("a",), "ignored_layers"),
    ],
)
def test_the_first_field_that_is_there_counts(
    config: dict[str, Any], texts: tuple[str, ...], field: str
) -> None:
    expected = Entries(texts, f"quantization_config.{field}")
    assert read_entries(config, FIELDS, "quantization_config") == expected


@pytest.mark.parametrize("value", ["lm_head", {"lm_head": 1}, [""], ["a", 3], [None], 0, False])
def test_what_is_no_list_of_names_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^quantization_config\.ignored_layers is .*module names"):
        read_entries({"ignored_layers": value}, FIELDS, "quantization_config")


def test_a_long_wrong_value_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match="expected a list") as caught:
        read_entries({"ignored_layers": ["x" * 10_000, 1]}, FIELDS, "quantization_config")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["re:(", "re:*gate", "re:[z-a]", "re:a{99999999999999}"])
def test_an_invalid_regular_expression_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"^q\.ignore has") as caught:
        read_entries({"ignore": ["lm_head", text]}, ["ignore"], "q")
    assert repr(text) in str(caught.value)


def test_a_long_invalid_regular_expression_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match="expected a regular expression") as caught:
        entries("re:" + "(" * 10_000)
    assert len(str(caught.value)) < 400


# Lists as published, for the modules of DeepSeek-V3.

LINEARS = (
    *(f"self_attn.{name}_proj" for name in ("q_a", "q_b", "kv_b", "o")),
    "self_attn.kv_a_proj_with_mqa",
    "mlp.gate",
    "mlp.shared_experts.down_proj",
    "mlp.experts.0.up_proj",
    "mlp.experts.255.down_proj",
)
V3 = (HEAD, EMBED, DRAFT, *(f"model.layers.{n}.{name}" for n in range(62) for name in LINEARS))


def test_the_list_of_r1_0528_fp4_leaves_experts_to_be_quantised() -> None:
    excluded = entries(
        *("lm_head", "model.embed_tokens", "model.layers.61*"),
        *(f"model.layers.{layer}.self_attn*" for layer in range(61)),
        *(f"model.layers.{layer}.mlp.gate" for layer in range(3, 61)),
    )
    assert len(excluded.texts) == 122
    covered = {module for module in V3 if excluded.find(module) is None}
    experts = {f"model.layers.{n}.{name}" for n in range(61) for name in LINEARS[6:]}
    assert covered == experts | {f"model.layers.{layer}.mlp.gate" for layer in range(3)}
    assert matched(excluded, V3) == {*excluded.texts}
    assert excluded.find("model.layers.6.self_attn.o_proj") == "model.layers.6.self_attn*"


def test_a_compressed_tensors_list_leaves_routed_experts_to_be_quantised() -> None:
    ignored = entries(
        *("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"),
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    )
    covered = {module for module in V3 if ignored.find(module) is None}
    assert {name for name in covered if ".experts." not in name} == {
        *(f"model.layers.{layer}.mlp.gate" for layer in range(62)),
        *(EMBED, DRAFT),
    }
    assert ignored.find(GATE_PROJ) == ignored.texts[3]


# Against the slow, obvious way.


def is_meant(text: str, module: str) -> bool:
    """Globs and names tried one by one on every name that the module and its parents have."""
    bare = module.removeprefix("model.")
    parents = [bare[:end] for end in range(1, len(bare) + 1) if bare[end : end + 1] in ("", ".")]
    wrappers = ("", "language_model.") if bare == HEAD else WRAPPERS
    names = [wrapper + parent for wrapper in wrappers for parent in parents]
    names += [wrapper.removesuffix(".") for wrapper in wrappers if wrapper]
    if any(wild in text for wild in "*?["):
        return any(fnmatchcase(name, text) for name in (*names, *bare.split(".")))
    return text in names or f".{text}." in f".{bare}."


SEGMENTS = ("model", "layers", "3", "30", "mlp", "gate", "gate_proj", "experts", "self_attn")
GLOBS = ("*", "?", "[3g]", "[!3]", "3*", "*gate*", "gate*", "*_attn", "lay*s", "??p", "*e*")
texts = st.lists(st.sampled_from((*SEGMENTS, *GLOBS)), min_size=1, max_size=5).map(".".join)
# endings have their cases above; no exporter writes a wrapper twice
texts = texts.filter(lambda text: not text.endswith(".*") and "model.model" not in text)
modules = st.one_of(
    st.sampled_from(MODULES),
    st.lists(st.sampled_from(SEGMENTS[1:]), min_size=1, max_size=5).map(
        lambda segments: "model." + ".".join(segments)
    ),
)


@given(st.lists(texts, max_size=6), modules)
def test_entries_mean_what_trying_each_of_them_finds(listed: list[str], module: str) -> None:
    expected = tuple(text for text in listed if is_meant(text, module))
    assert entries(*listed).find_all(module) == expected


@given(st.lists(texts, max_size=6), modules)
def test_an_answer_does_not_depend_on_what_was_asked_before(listed: list[str], module: str) -> None:
    ignored = entries(*listed)
    first = ignored.find(module)
    matched(ignored, MODULES)
    assert ignored.find(module) == first == entries(*listed).find(module)


@given(texts, modules, st.sampled_from(SEGMENTS))
def test_what_is_inside_a_listed_module_is_listed(text: str, module: str, inside: str) -> None:
    if entries(text).find(module) is not None:
        assert entries(text).find(f"{module}.{inside}") == text


def steps_of(work: Callable[[], object]) -> int:
    """How many lines of Python the work executes."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("pattern", [EXPERTS + ".{}.up_proj", "model.layers.3.mlp.experts.{}.u*"])
def test_a_long_list_is_looked_up_not_scanned(pattern: str) -> None:
    few, many = (entries(*(pattern.format(n + 10_000) for n in range(size))) for size in (9, 9_000))
    for module in (f"{EXPERTS}.10005.up_proj", f"{EXPERTS}.10005.down_proj", HEAD):
        steps = [steps_of(lambda e=listed, m=module: e.find(m)) for listed in (few, many)]
        assert steps[0] == steps[1] < 200


def test_sixty_thousand_names_are_asked_about_three_times_as_many_modules() -> None:
    listed = [f"model.layers.{n}.mlp.experts.{m}" for n in range(60) for m in range(1000)]
    ignored = entries(*listed)
    asked = (f"{name}.{part}_proj" for name in listed for part in ("gate", "up", "down"))
    assert sum(ignored.find(module) is not None for module in asked) == 180_000
