"""What an update in memory writes, holds, skips and refuses, and how it ends."""

from collections.abc import Callable, Iterator

import pytest
import torch
from support.loaded import plan_of
from support.updates import (
    ATTN,
    EP2,
    EXPERTS,
    KV_B,
    O_PROJ,
    WK,
    Files,
    Weights,
    addresses,
    contents,
    differing,
    some,
    through_one_buffer,
    whole,
)
from torch import Tensor

from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options
from loadscope.loader.stamps import Stamp
from loadscope.loader.topology import Layout

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("update"))


# a tensor that cannot be written alone, and what it waits for
HALVES = {
    "v32-fp8-block": (WK + "weight", WK + "weight_scale_inv"),
    "v3-nvfp4": (EXPERTS + "5.gate_proj.input_scale", EXPERTS + "5.up_proj.input_scale"),
}


@pytest.mark.parametrize("variant", HALVES)
def test_a_half_waits_for_its_partner_over_calls(variant: str, files: Files) -> None:
    half, partner = HALVES[variant]
    weights = files.weights(variant)
    store = files.ready(variant)
    first = store.load_weights(some(weights, half))
    second = store.load_weights(some(weights, O_PROJ))
    third = store.load_weights(some(weights, partner))
    assert (first.written, first.held) == ((), (half,))
    assert (second.written, second.held) == ((O_PROJ,), (half,))
    assert (third.written, third.held) == ((half, partner), ())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded(variant)) == set()


@pytest.mark.parametrize("variant", HALVES)
def test_a_half_that_stays_alone_brings_the_old_weights_back(variant: str, files: Files) -> None:
    half, _partner = HALVES[variant]
    store = files.ready(variant)
    before = whole(store)
    store.load_weights(through_one_buffer(files.weights(variant, 2), [O_PROJ, half]))
    assert (store.state, store.epoch) == ("writing", 3)
    finished = store.finish_update()
    assert (finished.weights, finished.held, store.epoch) == ("rolled_back", (half,), 4)
    assert [(f.code, f.subject) for f in finished.findings] == [("LS504", half)]
    assert half in finished.findings[0].message
    assert whole(store) == before


def test_codes_that_share_a_scale_wait_for_all_scales_and_are_named_once(files: Files) -> None:
    q_a, kv_a = ATTN + "q_a_proj.", ATTN + "kv_a_proj_with_mqa."
    weights = files.weights("v3-fp8-tensor")
    store = files.ready("v3-fp8-tensor")
    own = [q_a + "weight", q_a + "weight_scale"]
    assert store.load_weights(some(weights, *own)).held == tuple(own)
    rest = [kv_a + "weight_scale", kv_a + "weight"]
    assert store.load_weights(some(weights, *rest)).written == (*own, *rest)
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v3-fp8-tensor")) == set()


def test_halves_that_stay_alone_are_counted_once_each(files: Files) -> None:
    scales = [ATTN + "q_a_proj.weight_scale", ATTN + "kv_a_proj_with_mqa.weight_scale"]
    store = files.ready("v3-fp8-tensor")
    store.load_weights(some(files.weights("v3-fp8-tensor"), *scales))
    finished = store.finish_update()
    assert (finished.weights, set(finished.held)) == ("rolled_back", set(scales))
    # both scales of the common slot came: that they differ is told too
    assert [(f.code, f.count) for f in finished.findings] == [("LS504", 2), ("LS603", 1)]


def test_a_pair_that_needs_no_conversion_is_written_half_by_half(files: Files) -> None:
    weights = files.weights("v3-bf16")
    store = files.empty("v3-bf16")
    received = store.load_weights(some(weights, ATTN + "q_a_proj.weight"))
    assert (received.written, received.held) == ((ATTN + "q_a_proj.weight",), ())
    finished = store.finish_update()
    assert finished.partial == (ATTN + "fused_qkv_a_proj_with_mqa.weight",)
    assert (finished.state, store.touched) == ("poisoned", list(finished.partial))


def test_unequal_scales_of_one_slot_are_a_remark(files: Files) -> None:
    gate, up = HALVES["v3-nvfp4"]
    weights = files.weights("v3-nvfp4")
    store = files.ready("v3-nvfp4")
    store.load_weights([(gate, weights[gate]), (up, weights[up] * 3)])
    finished = store.finish_update()
    assert finished.state == "ready"
    assert [(f.code, f.level) for f in finished.findings] == [("LS603", "warning")]
    assert store.parameters[EXPERTS + "w13_input_scale"][5].tolist() == [weights[up] * 3] * 2


@pytest.mark.parametrize("as_type", [set, list, frozenset])
def test_names_choose_what_is_written(as_type: type, files: Files) -> None:
    chosen = [O_PROJ, O_PROJ + "_scale_inv", "model.norm.weight"]
    store = files.ready("v32-fp8-block")
    received = store.load_weights(files.weights("v32-fp8-block", 2).items(), names=as_type(chosen))
    assert set(received.written) == set(chosen)
    assert set(received.skipped.values()) == {"not_requested"}
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v32-fp8-block")) == set(chosen)
    assert differing(store, files.loaded("v32-fp8-block", version=2)).isdisjoint(chosen)


def test_layers_choose_what_is_written(files: Files) -> None:
    store = files.ready("v32-fp8-block")
    received = store.load_weights(files.weights("v32-fp8-block", 2).items(), layers=range(1, 2))
    finished = store.finish_update()
    in_layer = {name for name in contents(store) if name.startswith("model.layers.1.")}
    touched = differing(store, files.loaded("v32-fp8-block"))
    kv_scales = {name for name in in_layer if name.endswith((".k_scale", ".v_scale"))}
    assert touched == in_layer - kv_scales
    assert differing(store, files.loaded("v32-fp8-block", version=2)).isdisjoint(in_layer)
    assert received.skipped["model.norm.weight"] == "not_requested"
    assert received.skipped[EXPERTS + "0.up_proj.weight"] == "ep_nonlocal"
    assert received.refreshed == (ATTN + "w_kc", ATTN + "w_vc")
    assert (finished.state, finished.parameters_written) == ("ready", len(touched) - 2)


WRONG = {
    "shape": (lambda t: t[:-1], "LS401"),
    "transposed": (lambda t: t.t(), "LS401"),
    "one dim more": (lambda t: t[None], "LS401"),
    "empty": (lambda t: t[:0], "LS401"),
    "not quantised": (lambda t: t.to(torch.bfloat16), "LS403"),
    "another fp8": (lambda t: t.view(torch.float8_e5m2), "LS402"),
    "integers": (lambda t: t.view(torch.uint8), "LS402"),
    "no stored dtype": (lambda t: t.to(torch.complex64), "LS402"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_tensor_is_refused_and_the_others_are_written(what: str, files: Files) -> None:
    wrong, code = WRONG[what]
    name = ATTN + "q_b_proj.weight"
    weights = files.weights("v3-fp8-block", 2)
    store = files.ready("v3-fp8-block")
    received = store.load_weights([(name, wrong(weights[name])), (O_PROJ, weights[O_PROJ])])
    assert {n: f.code for n, f in received.failed.items()} == {name: code}
    assert (received.written, received.held) == ((O_PROJ,), ())
    assert differing(store, files.loaded("v3-fp8-block")) == {O_PROJ}
    finished = store.finish_update()
    assert differing(store, files.loaded("v3-fp8-block")) == set()
    assert (finished.weights, finished.touched, store.epoch) == ("rolled_back", (O_PROJ,), 4)
    assert [(f.code, f.subject) for f in finished.findings] == [(code, name)]


def test_a_refused_tensor_may_come_again(files: Files) -> None:
    weights = files.weights("v3-fp8-block", 2)
    store = files.ready("v3-fp8-block")
    store.load_weights([(O_PROJ, weights[O_PROJ][:-1])])
    assert store.load_weights(some(weights, O_PROJ)).repeated == ()
    finished = store.finish_update()
    assert (finished.state, finished.findings) == ("ready", ())


def test_a_refused_tensor_alone_leaves_the_store_as_it_was(files: Files) -> None:
    store = files.ready("v3-fp8-block")
    store.load_weights([(O_PROJ, torch.zeros(3))])
    finished = store.finish_update()
    assert (finished.state, finished.weights, store.epoch) == ("ready", "unchanged", 2)
    assert (finished.touched, store.touched) == ((), [])
    assert [f.code for f in finished.findings] == ["LS401"]


ONE = torch.zeros(1)
PP2 = Layout(tp_size=2, pp_size=2)
SKIPPED: list[tuple[str, Tensor | None, str, Layout, int, Options | None]] = [
    (ATTN + "some_unknown.weight", ONE, "no_destination", EP2, 0, None),
    ("model.unknown", ONE, "no_destination", EP2, 0, None),
    (EXPERTS + "99.up_proj.weight", ONE, "no_destination", EP2, 0, None),
    (EXPERTS + "4.up_proj.weight", None, "ep_nonlocal", EP2, 0, None),
    (EXPERTS + "3.down_proj.weight_scale_inv", None, "ep_nonlocal", EP2, 1, None),
    ("model.layers.0.self_attn.o_proj.weight", None, "pp_range", PP2, 2, None),
    ("model.layers.2.self_attn.o_proj.weight", None, "pp_range", PP2, 1, None),
    ("model.embed_tokens.weight", None, "pp_edge", PP2, 3, None),
    ("model.norm.weight", None, "pp_edge", PP2, 0, None),
    ("model.layers.3.eh_proj.weight", None, "beyond_model", EP2, 0, None),
    ("model.layers.3.mlp.experts.0.up_proj.weight", None, "beyond_model", EP2, 1, None),
    ("model.layers.3.o_proj.bias", ONE, "beyond_model", EP2, 0, None),
    (ATTN + "rotary_emb.inv_freq", ONE, "rotary", EP2, 0, None),
    (ATTN + "o_proj.bias", ONE, "bias_absent", EP2, 0, None),
    (ATTN + "o_proj.input_scale", ONE, "input_scale_unused", EP2, 0, None),
    (O_PROJ, None, "not_draft_layer", EP2, 0, Options(draft=True)),
    ("model.norm.weight", None, "not_draft_layer", EP2, 0, Options(draft=True)),
    ("model.layers.3.embed_tokens.weight", None, "shared_with_target", EP2, 0, Options(draft=True)),
]


@pytest.mark.parametrize(("name", "tensor", "reason", "layout", "rank", "options"), SKIPPED)
def test_what_a_rank_does_not_need_is_skipped_for_its_reason(
    name: str,
    tensor: Tensor | None,
    reason: str,
    layout: Layout,
    rank: int,
    options: Options | None,
    files: Files,
) -> None:
    tensor = files.weights("v3-fp8-block")[name] if tensor is None else tensor
    store = files.empty("v3-fp8-block", layout, rank, options)
    received = store.load_weights([(name, tensor)])
    assert received.skipped == {name: reason}
    assert (received.written, received.held, received.failed) == ((), (), {})
    assert (store.finish_update().state, store.epoch) == ("empty", 0)


def test_what_comes_again_is_listed_once_and_the_last_one_counts(files: Files) -> None:
    old, new = files.weights("v3-fp8-block"), files.weights("v3-fp8-block", 2)
    pair = [KV_B + "weight", KV_B + "weight_scale_inv"]
    store = files.ready("v3-fp8-block")
    received = store.load_weights([*some(new, *pair), *some(old, *pair), *some(old, *pair)])
    assert (received.written, received.repeated) == (tuple(pair), tuple(pair))
    again = store.load_weights(some(new, *pair))
    assert (again.repeated, again.written) == (tuple(pair), tuple(pair))
    assert store.finish_update().state == "ready"
    derived = {ATTN + "w_kc", ATTN + "w_vc"}
    assert differing(store, files.loaded("v3-fp8-block")) == {*pair, *derived}
    assert differing(store, files.loaded("v3-fp8-block", version=2)).isdisjoint({*pair, *derived})


def test_a_tensor_that_came_twice_does_not_stand_for_another(files: Files) -> None:
    weights = files.weights("v3-bf16")
    twice = [name for name in weights if name != EXPERTS + "4.up_proj.weight"]
    store = files.empty("v3-bf16")
    store.load_weights(some(weights, *twice, *twice))
    finished = store.finish_update()
    assert (finished.state, finished.partial) == ("poisoned", (EXPERTS + "w13_weight",))


def test_a_half_that_comes_again_takes_the_place_of_the_first(files: Files) -> None:
    old, new = files.weights("v32-fp8-block"), files.weights("v32-fp8-block", 2)
    pair = [WK + "weight", WK + "weight_scale_inv"]
    store = files.ready("v32-fp8-block")
    store.load_weights([*some(old, pair[0]), *some(new, *pair)])
    assert store.finish_update().state == "ready"
    fused = WK[:-1] + "_weights_proj.weight"
    rows = slice(0, new[pair[0]].shape[0])
    expected = files.loaded("v32-fp8-block", version=2).parameters[fused][rows]
    assert torch.equal(store.parameters[fused][rows], expected)


def test_a_half_of_a_closed_pair_that_comes_again_waits(files: Files) -> None:
    weights = files.weights("v32-fp8-block")
    store = files.ready("v32-fp8-block")
    others = [WK + "weight_scale_inv", ATTN + "indexer.weights_proj.weight"]
    store.load_weights(some(weights, WK + "weight", *others))
    again = store.load_weights(some(weights, WK + "weight"))
    assert (again.held, again.repeated) == ((WK + "weight",), (WK + "weight",))
    finished = store.finish_update()
    fused = WK[:-1] + "_weights_proj.weight"
    assert (finished.weights, finished.partial) == ("rolled_back", (fused,))


@pytest.mark.parametrize("weights", [None, []])
@pytest.mark.parametrize("state", ["empty", "ready"])
def test_an_update_of_nothing_changes_nothing(
    weights: list[tuple[str, Tensor]] | None, state: str, files: Files
) -> None:
    store = files.ready("v3-bf16") if state == "ready" else files.empty("v3-bf16")
    epoch, before = store.epoch, contents(store) if state == "ready" else {}
    if weights is not None:
        store.load_weights(weights)
    finished = store.finish_update()
    assert (finished.state, finished.weights, store.epoch) == (state, "unchanged", epoch)
    assert (finished.held, finished.partial, finished.findings) == ((), (), ())
    assert finished.parameters_written == 0
    assert state == "empty" or contents(store) == before


def test_a_poisoned_store_is_healed_by_all_weights_only(files: Files) -> None:
    weights = files.weights("v3-bf16")
    store = files.empty("v3-bf16")
    store.load_weights(some(weights, O_PROJ))
    assert (store.finish_update().state, store.epoch) == ("poisoned", 2)
    most = [name for name in weights if name != O_PROJ]
    store.load_weights(some(weights, *most))
    assert (store.finish_update().state, store.epoch) == ("poisoned", 4)
    store.load_weights(weights.items())
    assert (store.finish_update().state, store.epoch, store.touched) == ("ready", 6, [])


def test_what_a_failed_load_left_in_an_initial_value_does_not_stay(files: Files) -> None:
    weights = files.weights("v3-fp8-block")
    store = files.ready("v3-fp8-block")
    scale = ATTN + "k_proj.k_scale"
    store.open_update(undo=False)
    store.load_weights([(scale, torch.tensor(7.0)), (O_PROJ, weights[O_PROJ][:-1])])
    assert store.finish_update().state == "poisoned"
    store.load_weights(weights.items())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v3-fp8-block")) == set()


def test_a_parameter_with_an_initial_value_is_not_left_half_set(files: Files) -> None:
    weights = files.weights("v3-w4afp8")
    kept = [name for name in weights if name != EXPERTS + "5.w2.input_scale"]
    store = files.empty("v3-w4afp8")
    store.load_weights(some(weights, *kept))
    finished = store.finish_update()
    assert (finished.state, finished.partial) == ("poisoned", (EXPERTS + "w2_input_scale",))


class BrokenOff(Exception):
    pass


def breaking(weights: Weights, count: int) -> Iterator[tuple[str, Tensor]]:
    yield from list(weights.items())[:count]
    raise BrokenOff("the sender is gone")


def test_weights_that_break_off_bring_the_old_ones_back(files: Files) -> None:
    weights = files.weights("v3-bf16", 2)
    store = files.ready("v3-bf16")
    before = whole(store)
    with pytest.raises(BrokenOff):
        store.load_weights(breaking(weights, 9))
    finished = store.finish_update()
    assert (finished.weights, [f.code for f in finished.findings]) == ("rolled_back", ["LS601"])
    assert whole(store) == before
    assert "the sender is gone" in finished.findings[0].message


def test_weights_that_break_off_may_all_come_again(files: Files) -> None:
    weights = files.weights("v3-bf16", 2)
    store = files.ready("v3-bf16")
    with pytest.raises(BrokenOff):
        store.load_weights(breaking(weights, 9))
    store.load_weights(weights.items())
    assert store.finish_update().state == "ready"
    assert differing(store, files.loaded("v3-bf16", version=2)) == set()


Failing = Callable[[ParameterStore, Weights], None]


def half_stays(store: ParameterStore, weights: Weights) -> None:
    store.load_weights((n, t) for n, t in weights.items() if n != WK + "weight_scale_inv")


def one_is_refused(store: ParameterStore, weights: Weights) -> None:
    store.load_weights([*weights.items(), (O_PROJ, weights[O_PROJ][:-1])])


def weights_break_off(store: ParameterStore, weights: Weights) -> None:
    with pytest.raises(BrokenOff):
        store.load_weights(breaking(weights, len(weights) // 2))


def half_of_a_refreshed_layer_comes_again(store: ParameterStore, weights: Weights) -> None:
    own = [name for name in weights if name.startswith(KV_B)]
    assert store.load_weights(some(weights, *own)).refreshed == (ATTN + "w_kc", ATTN + "w_vc")
    store.load_weights(some(weights, WK + "weight"))


FAILURES: dict[str, Failing] = {
    "a half stays alone": half_stays,
    "a tensor is refused": one_is_refused,
    "the weights break off": weights_break_off,
    "derived tensors were refreshed": half_of_a_refreshed_layer_comes_again,
}


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_update_leaves_everything_as_it_was(what: str, rank: int, files: Files) -> None:
    store = files.ready("v32-fp8-block", EP2, rank)
    before = whole(store)
    store.open_update(version="2")
    FAILURES[what](store, files.weights("v32-fp8-block", 2))
    assert contents(store) != before.contents
    finished = store.finish_update()
    assert (finished.state, finished.weights, store.epoch) == ("ready", "rolled_back", 4)
    assert set(finished.touched) <= store.parameters.keys()
    assert finished.touched
    assert whole(store) == before


@pytest.mark.gpu
@pytest.mark.parametrize("what", FAILURES)
def test_a_failed_update_leaves_an_accelerator_as_it_was(what: str, files: Files) -> None:
    store = files.ready("v32-fp8-block", device="cuda")
    before = whole(store)
    FAILURES[what](store, files.weights("v32-fp8-block", 2))
    assert contents(store) != before.contents
    assert store.finish_update().weights == "rolled_back"
    assert whole(store) == before


@pytest.mark.parametrize("what", FAILURES)
def test_without_old_bytes_a_failed_update_poisons_the_store(what: str, files: Files) -> None:
    weights = files.weights("v32-fp8-block", 2)
    store = files.ready("v32-fp8-block")
    before = addresses(store)
    store.open_update(version="2", undo=False)
    FAILURES[what](store, weights)
    finished = store.finish_update()
    assert (finished.state, finished.weights, store.epoch) == ("poisoned", "poisoned", 4)
    assert store.touched == list(finished.touched) != []
    assert (store.version, addresses(store)) == ("1", before)
    store.load_weights(weights.items())
    assert store.finish_update().weights == "new"
    assert differing(store, files.loaded("v32-fp8-block", version=2)) == set()


@pytest.mark.parametrize("what", FAILURES)
def test_after_a_failed_update_the_next_one_counts(what: str, files: Files) -> None:
    weights = files.weights("v32-fp8-block", 2)
    store = files.ready("v32-fp8-block")
    FAILURES[what](store, weights)
    store.finish_update()
    store.open_update(version="3")
    store.load_weights(weights.items())
    finished = store.finish_update()
    assert (finished.weights, finished.touched, store.epoch) == ("new", (), 6)
    assert (store.version, store.undo) == ("3", None)
    assert differing(store, files.loaded("v32-fp8-block", version=2)) == set()


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_derived_tensors_that_cannot_be_computed_fail_the_update(
    error: type[RuntimeError], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error("no memory for w_kc")

    store = files.ready("v3-fp8-block")
    before = whole(store)
    store.load_weights(some(files.weights("v3-fp8-block", 2), KV_B + "weight"))
    with monkeypatch.context() as patch:
        patch.setattr("loadscope.loader.update.derive_layer", refuse)
        finished = store.finish_update()
    assert (finished.weights, [f.code for f in finished.findings]) == ("rolled_back", ["LS601"])
    assert "no memory for w_kc" in finished.findings[0].message
    assert whole(store) == before
    store.load_weights(files.weights("v3-fp8-block", 2).items())
    assert store.finish_update().weights == "new"


def test_a_version_is_that_of_the_last_update_that_counted(files: Files) -> None:
    weights = files.weights("v3-bf16", 2)
    store = files.ready("v3-bf16")
    assert store.open_update(version="2") is store.open_update(version="3", undo=False)
    store.load_weights(some(weights, O_PROJ))
    assert store.version == "1"
    store.finish_update()
    assert store.version == "2"
    store.open_update(version="4")
    store.load_weights([(O_PROJ, weights[O_PROJ][:-1]), ("model.norm.weight", torch.ones(256))])
    assert store.finish_update().findings
    assert store.version == "2"
    store.load_weights(some(weights, O_PROJ))
    assert (store.finish_update().weights, store.version) == ("new", None)


def test_an_update_stamps_what_it_wrote_and_nothing_else(files: Files) -> None:
    store = files.ready("v3-fp8-block")
    before = store.stamps.copy()
    store.open_update(version="2")
    store.load_weights(some(files.weights("v3-fp8-block", 2), O_PROJ, KV_B + "weight"))
    store.finish_update()
    new = {O_PROJ, KV_B + "weight", ATTN + "w_kc", ATTN + "w_vc"}
    assert set(before.written.values()) == {Stamp("1", 1)}
    assert store.stamps.written == before.written | dict.fromkeys(new, Stamp("2", 3))
    made_from = {KV_B + "weight": Stamp("2", 3), KV_B + "weight_scale_inv": Stamp("1", 1)}
    assert store.stamps.inputs == before.inputs | dict.fromkeys(new & set(before.inputs), made_from)


def test_old_bytes_are_kept_once_of_what_is_touched_and_only_while_it_is_open(
    files: Files,
) -> None:
    old, new = files.weights("v3-fp8-block"), files.weights("v3-fp8-block", 2)
    own = [name for name in new if name.startswith(KV_B)]
    store = files.ready("v3-fp8-block")
    before = whole(store)
    store.load_weights([*some(new, *own), *some(old, *own), *some(new, *own)])
    assert store.undo is not None
    kept = [*own, ATTN + "w_kc", ATTN + "w_vc"]
    assert store.undo.kept.keys() == set(kept)
    assert store.undo.nbytes == sum(len(before.contents[name]) for name in kept)
    store.load_weights([(O_PROJ, torch.zeros(3))])
    assert store.finish_update().weights == "rolled_back"
    assert (whole(store), store.undo) == (before, None)


def test_a_plan_that_places_nothing_takes_no_weights(files: Files) -> None:
    plan = plan_of(files.folder("v3-bf16"), Layout(tp_size=3))
    with pytest.raises(ValueError, match="places nothing"):
        ParameterStore(plan, 0).load_weights([])
