"""A checkpoint in another dress loads the same: fused names, wrappers, adapters, flat scales.

Which layers are fused in the files is drawn at random; the others keep the names of single parts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import dressed
from support.compared_load import Dress, differences
from support.dressed import Tensors, renamed
from support.load_case import Load, small_load
from support.made_model import MadeModel
from support.quantised_formats import FORMS
from support.random_loads import loads

ONCE = (Phase.generate,)  # a smaller failing example would take minutes to find
STACKABLE = [n for n in FORMS if FORMS[n].expert.kind != "awq" and FORMS[n].expert.kind != "nvfp4"]
CACHED = tuple(name for name in FORMS if FORMS[name].has_cache_scales)
QUERY_FORMS = [name for name in FORMS if not FORMS[name].is_wna16]
Fuse = Callable[[MadeModel, Tensors, set[int]], Tensors]


def check(load: Load, dress: Dress) -> None:
    with TemporaryDirectory() as folder:
        assert differences(load, Path(folder), dress) == []


@st.composite
def with_layers(draw: st.DrawFn, forms: list[str]) -> tuple[Load, set[int]]:
    """A load, and the layers that its files have fused."""
    load = draw(loads(tuple(forms)))
    layers = st.sets(st.integers(0, load.config["num_hidden_layers"]), min_size=1)
    return load, draw(layers)


def check_fused(load: Load, fuse: Fuse, layers: set[int]) -> None:
    check(load, lambda made, tensors: fuse(made, tensors, layers))


@settings(max_examples=16, phases=ONCE)
@given(with_layers(QUERY_FORMS))
def test_queries_and_keys_that_are_fused_in_the_files_load_alike(
    what: tuple[Load, set[int]],
) -> None:
    load, layers = what
    check_fused(load, dressed.fuse_queries, layers)


@settings(max_examples=16, phases=ONCE)
@given(with_layers(QUERY_FORMS))
def test_gate_and_up_that_are_fused_in_the_files_load_alike(what: tuple[Load, set[int]]) -> None:
    load, layers = what
    fuse = partial(dressed.fuse_gates, with_shared=not load.asked.fuses_shared)
    check_fused(load, fuse, layers)


@pytest.mark.parametrize("form", ["bf16", "fp8 block 64x32", "fp8 channel"])
def test_a_fused_shared_expert_whose_gate_and_up_are_fused_in_the_files_loads_alike(
    form: str,
) -> None:
    load = small_load(FORMS[form], tp=2, asked={"fuses_shared": True})
    check_fused(load, dressed.fuse_gates, {1})


@settings(max_examples=12, phases=ONCE)
@given(with_layers(["bf16", "f16"]))
def test_a_fused_indexer_that_is_fused_in_the_files_loads_alike(
    what: tuple[Load, set[int]],
) -> None:
    load, layers = what
    asked = replace(load.asked, fuses_indexer=True)
    check_fused(replace(load, asked=asked, platform="cuda"), dressed.fuse_indexers, layers)


@pytest.mark.parametrize("as_engine", [True, False])
def test_experts_that_are_stacked_in_the_files_load_alike(as_engine: bool) -> None:
    @settings(max_examples=12, phases=ONCE)
    @given(with_layers(STACKABLE))
    def loads_alike(what: tuple[Load, set[int]]) -> None:
        load, layers = what
        check_fused(load, partial(dressed.stack_experts, as_engine=as_engine), layers)

    loads_alike()


RENAMES = {
    "outer wrapper": dressed.outer_wrapper,
    "inner wrapper": dressed.inner_wrapper,
    "adapter": dressed.adapter,
}


@pytest.mark.parametrize("rename", RENAMES)
def test_other_names_load_alike(rename: str) -> None:
    @settings(max_examples=6, phases=ONCE)
    @given(loads())
    def loads_alike(load: Load) -> None:
        check(load, lambda _made, tensors: renamed(tensors, RENAMES[rename]))

    loads_alike()


@settings(max_examples=6, phases=ONCE)
@given(loads(CACHED))
def test_cache_scales_under_the_name_of_the_attention_load_alike(load: Load) -> None:
    named = replace(load, has_cache_scales=load.asked.has_cache_scales)
    check(named, lambda _made, tensors: renamed(tensors, dressed.engine_cache_scales))


@settings(max_examples=12, phases=ONCE)
@given(loads())
def test_flat_scales_load_alike(load: Load) -> None:
    check(load, lambda _made, tensors: dressed.reshaped(tensors))


@settings(max_examples=8, phases=ONCE)
@given(loads(("w4afp8", "w4afp8, f32 scales")))
def test_activation_scales_under_the_names_w1_w2_w3_load_alike(load: Load) -> None:
    check(load, lambda _made, tensors: dressed.mixtral_names(tensors))
