"""How much changed: against a slow count of single elements, on any ranks, in little memory."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PACKS, pack_path
from hypothesis import given
from hypothesis import strategies as st
from support.golden_checkpoint import VARIANTS, write_golden_checkpoint
from support.updates import LOADED, Files
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from loadscope.loader import change as changing
from loadscope.loader.change import Change, ChangeTable, compare, compare_stores
from loadscope.loader.change_table import kind_of
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.topology import Layout
from loadscope.loader.views import ParameterView, parameters

pytestmark = pytest.mark.usefixtures("one_thread")

BYTE_DTYPES = sorted(changing.BYTE_DTYPES, key=str)
NUMBERS = [*BYTE_DTYPES, torch.bfloat16, torch.float16, torch.float32]
CODES = [torch.uint8, torch.int32, torch.bool, torch.int64]
# bits of -0.0, infinities and NaNs of all these dtypes, and their neighbours
SPECIAL = {
    1: [0x00, 0x80, 0x7F, 0x7E, 0x7C, 0xFF, 0xFC, 0x01],
    2: [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7C00, 0xFC00, 0x7E00, 0x7F7F, 0x0001],
    4: [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 0x00000001],
}


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], bits: list[int]) -> Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    raw = b"".join(one.to_bytes(size, "little") for one in bits)
    memory = torch.frombuffer(bytearray(raw) or bytearray(1), dtype=torch.uint8)[: len(raw)]
    return memory.clone().view(dtype).reshape(shape)


def bits_of(tensor: Tensor) -> list[int]:
    size = tensor.element_size()
    raw = (
        bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if len_of(tensor) else b""
    )
    return [int.from_bytes(raw[i : i + size], "little") for i in range(0, len(raw), size)]


def len_of(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def slow(old: Tensor, new: Tensor) -> Change:
    """The same numbers, one element after another, in the plain words of their definition."""
    before = old.to(torch.float64).reshape(-1).tolist()
    after = new.to(torch.float64).reshape(-1).tolist()
    both = [(a, b) for a, b in zip(before, after, strict=True) if finite(a) and finite(b)]
    return Change(
        elements=len(before),
        changed=sum(a != b for a, b in zip(bits_of(old), bits_of(new), strict=True)),
        max_abs=max((abs(b - a) for a, b in both), default=0.0),
        sum_squares=math.fsum((b - a) ** 2 for a, b in both),
        old_sum_squares=math.fsum(a**2 for a in before if finite(a)),
        nan=sum(map(math.isnan, after)),
        inf=sum(map(math.isinf, after)),
        nan_before=sum(map(math.isnan, before)),
        inf_before=sum(map(math.isinf, before)),
    )


def finite(number: float) -> bool:
    return math.isfinite(number)


def assert_same(found: Change, expected: Change) -> None:
    """Counts and the greatest exactly, sums as far as their order matters."""
    sums = ("sum_squares", "old_sum_squares")
    for name in Change.__slots__:
        one, two = getattr(found, name), getattr(expected, name)
        assert one == (pytest.approx(two, rel=1e-12) if name in sums else two), name


@st.composite
def pairs(draw: st.DrawFn, dtypes: list[torch.dtype]) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape; no, some or all elements differ."""
    dtype = draw(st.sampled_from(dtypes))
    size = torch.empty(0, dtype=dtype).element_size()
    shape = draw(st.sampled_from([(), (0,), (3, 0), (1,), (7,), (5, 3), (2, 3, 4), (61,)]))
    count = math.prod(shape)
    some = st.integers(0, 256**size - 1)
    if size in SPECIAL:
        some = st.one_of(some, st.sampled_from(SPECIAL[size]))
    old = draw(st.lists(some, min_size=count, max_size=count))
    moves = draw(st.sampled_from([[False], [False] * 9 + [True], [True]]))
    is_new = draw(st.lists(st.sampled_from(moves), min_size=count, max_size=count))
    new = [draw(some) if moved else one for one, moved in zip(old, is_new, strict=True)]
    return tensor_of(dtype, shape, old), tensor_of(dtype, shape, new)


@given(pair=pairs(NUMBERS), chunk_bytes=st.sampled_from([1, 8, 24, None]))
def test_random_tensors_against_the_slow_count(
    pair: tuple[Tensor, Tensor], chunk_bytes: int | None
) -> None:
    assert_same(compare(*pair, chunk_bytes=chunk_bytes), slow(*pair))


@given(pair=pairs(BYTE_DTYPES))
def test_counting_pairs_of_bytes_and_float64_agree(pair: tuple[Tensor, Tensor]) -> None:
    old, new = (one.reshape(-1) for one in pair)
    tally = changing._Floats(max(1, len(new)), new.device)
    if len(new):
        tally.add(old, new)
    assert_same(compare(old, new), tally.change(len(new)))


@given(pair=pairs(CODES[:2]))
def test_codes_have_a_count_and_no_difference(pair: tuple[Tensor, Tensor]) -> None:
    old, new = pair
    changed = sum(a != b for a, b in zip(bits_of(old), bits_of(new), strict=True))
    assert compare(old, new) == Change(len_of(new), changed, None, None, None, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", [*CODES, torch.float64, torch.complex64], ids=str)
def test_no_other_dtype_is_measured(dtype: torch.dtype) -> None:
    old = torch.tensor([0, 1, 1]).to(dtype)
    new = torch.tensor([0, 1, 0]).to(dtype)
    assert compare(old, new) == Change(3, 1, None, None, None, 0, 0, 0, 0)


def test_packed_bytes_are_codes() -> None:
    old, new = (torch.tensor([0x12, number], dtype=torch.int8) for number in (0x21, 0x7F))
    assert compare(old, new).max_abs == 0x7F - 0x21
    assert compare(old, new, is_packed=True) == Change(2, 1, None, None, None, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32], ids=str)
def test_another_sign_of_zero_is_a_change_of_nothing(dtype: torch.dtype) -> None:
    old, new = (torch.tensor([zero, 2.0]).to(dtype) for zero in (0.0, -0.0))
    assert compare(old, new) == Change(2, 1, 0.0, 0.0, 4.0, 0, 0, 0, 0)


def test_what_is_no_number_is_counted_on_its_side_and_left_out_of_the_difference() -> None:
    nan, inf = math.nan, math.inf
    old = torch.tensor([1.0, nan, inf, 3.0, inf, 2.0])
    new = torch.tensor([nan, 1.0, -inf, inf, inf, 5.0])
    found = compare(old, new)
    assert found == Change(6, 5, 3.0, 9.0, 1.0 + 9.0 + 4.0, 1, 3, 1, 2)
    assert not found.is_broken
    # a chunk of equal bytes has its NaNs too
    assert compare(old, old) == Change(6, 0, 0.0, 0.0, 14.0, 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("old", "new", "is_broken"),
    [
        ([1.0, 2.0], [1.0, math.nan], True),
        ([math.inf, 2.0], [math.inf, math.nan], True),
        ([math.nan, 2.0], [math.nan, math.inf], True),
        ([math.nan, 2.0], [math.nan, math.nan], False),
        ([math.nan, math.inf], [1.0, 2.0], False),
    ],
)
def test_broken_is_what_was_not_so_before(
    old: list[float], new: list[float], is_broken: bool
) -> None:
    assert compare(torch.tensor(old), torch.tensor(new)).is_broken is is_broken


def test_differences_do_not_overflow() -> None:
    most = torch.finfo(torch.float32).max
    found = compare(torch.tensor([-most] * 5), torch.tensor([most] * 5))
    assert found.max_abs == 2 * most
    assert found.sum_squares == pytest.approx(20 * most**2)
    assert (found.nan, found.inf) == (0, 0)


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda tensor: tensor.transpose(0, 2),
    lambda tensor: tensor[:, ::2],
    lambda tensor: tensor[1:, 2:-1],
    lambda tensor: tensor.permute(1, 2, 0),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_one_whole", [True, False])
def test_tensors_that_do_not_lie_in_one_piece(
    view: Callable[[Tensor], Tensor], dtype: torch.dtype, is_one_whole: bool
) -> None:
    torch.manual_seed(5)
    old = view(torch.randn(6, 10, 7).to(dtype))
    new = view(torch.randn(6, 10, 7).to(dtype))
    other = new.contiguous() if is_one_whole else new
    assert_same(compare(old, other, chunk_bytes=40), slow(old, new))


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that any operation makes anew."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._known:
                    self.nbytes = max(self.nbytes, storage.nbytes())
        return made


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("is_turned", [False, True])
def test_temporary_memory_is_that_of_chunks(dtype: torch.dtype, is_turned: bool) -> None:
    chunk = 8 << 10
    old = torch.randint(0, 255, (1 << 21,), dtype=torch.uint8).view(dtype).view(1024, -1)
    new = torch.randint(0, 255, (1 << 21,), dtype=torch.uint8).view(dtype).view(1024, -1)
    if is_turned:
        old, new = old.t(), new.t()
    with Largest(old, new) as largest:
        compare(old, new, chunk_bytes=chunk)
    # 65,536 pairs of bytes are counted in int64
    assert 0 < largest.nbytes <= max(16 * chunk, 1 << 19)


@pytest.mark.parametrize(
    "other", [torch.zeros(3, 2), torch.zeros(6), torch.zeros(2, 3, dtype=torch.bfloat16)]
)
def test_tensors_that_cannot_be_compared_are_refused(other: Tensor) -> None:
    with pytest.raises(ValueError, match=r"torch.float32 \[2, 3\] before and torch"):
        compare(torch.zeros(2, 3), other)


# which kind a parameter's name means, written down apart from the labels of the heat map
NAMES = {
    "indexer.k_norm.": "norm",
    "indexer.": "indexer",
    "norm.": "norm",
    "self_attn.": "mla",
    "mlp.experts.": "experts",
    "mlp.shared_experts.": "shared_experts",
    "mlp.gate.": "router",
    "mlp.": "mlp",
    "embed_tokens.": "embedding",
    "lm_head.": "head",
    "eh_proj.": "other",
}


def kind_by_name(name: str) -> str:
    return next(kind for part, kind in NAMES.items() if part in name)


def check_kinds(folder: Path) -> set[str]:
    checkpoint, seen = open_checkpoint(folder), set()
    for draft in (False, True):
        for target in make_plan(checkpoint, Layout(), Options(draft=draft)).targets:
            assert kind_of(target.module) == kind_by_name(target.name), target.name
            seen.add(kind_of(target.module))
    return seen


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_label_of_the_golden_variants_has_its_kind(variant: str, tmp_path: Path) -> None:
    assert check_kinds(write_golden_checkpoint(variant, tmp_path / variant))


@pytest.mark.parametrize("pack", PACKS)
def test_every_label_of_the_header_packs_has_its_kind(pack: str) -> None:
    assert check_kinds(pack_path(pack)) >= {
        "embedding", "mla", "router", "experts", "shared_experts", "mlp", "norm", "head",
    }  # fmt: skip


def test_a_module_that_nobody_knows_is_of_another_kind() -> None:
    assert [kind_of(name) for name in ("eh", "visual.patch", "")] == ["other"] * 3


def view(name: str, layer: int | None, module: str) -> ParameterView:
    return ParameterView(name, 0, 0, layer, (2, 2), "BF16", "checkpoint", module)


def filled_table() -> ChangeTable:
    table = ChangeTable()
    table.add("target", view("norm", None, "norm"), Change(4, 1, 2.0, 4.0, 16.0, 1, 0, 0, 0))
    table.add("target", view("w13", 10, "experts.w13"), Change(6, 0, 0.0, 0.0, 9.0, 0, 0, 0, 0))
    table.add("target", view("w13", 2, "experts.w13"), Change(6, 3, 1.0, 3.0, 11.0, 0, 2, 0, 0))
    # another rank's share of the same parameter
    table.add("target", view("w13", 2, "experts.w13"), Change(6, 6, 5.0, 45.0, 1.0, 0, 0, 0, 0))
    table.add("draft", view("norm", None, "norm"), Change(4, 4, 0.5, 1.0, 0.0, 0, 0, 0, 0))
    codes = Change(10, 5, None, None, None, 0, 0, 0, 0)
    table.add("target", view("qweight", 2, "attn.o.qweight"), codes)
    return table


def test_the_table_adds_up() -> None:
    document = filled_table().as_json()
    total = {
        "tensors_changed": 4,
        "elements": 36,
        "elements_changed": 19,
        "elements_changed_pct": pytest.approx(100 * 19 / 36),
        "max_abs": 5.0,
        # codes have no difference and are no part of the mean
        "rms": pytest.approx(math.sqrt(53 / 26)),
        "nan": 1,
        "inf": 2,
    }
    assert {key: document[key] for key in total} == total
    assert list(document) == [*total, "by_kind", "by_layer", "cells"]
    assert {kind: one["elements"] for kind, one in document["by_kind"].items()} == {
        "experts": 18,
        "mla": 10,
        "norm": 8,
    }
    assert document["by_kind"]["experts"]["tensors_changed"] == 1
    assert list(document["by_layer"]) == ["top", "2", "10"]
    assert document["by_layer"]["10"]["rms"] == 0.0
    assert document["by_layer"]["top"]["tensors_changed"] == 2
    assert json.loads(json.dumps(document)) == document


def test_cells_are_sorted_and_relative_to_the_old_values() -> None:
    cells = filled_table().as_json()["cells"]
    assert [(cell["layer"], cell["module"], cell["role"]) for cell in cells] == [
        ("top", "norm", "draft"),
        ("top", "norm", "target"),
        ("2", "attn.o.qweight", "target"),
        ("2", "experts.w13", "target"),
        ("10", "experts.w13", "target"),
    ]
    assert [cell["relative"] for cell in cells] == [None, 0.5, None, 2.0, 0.0]
    assert [cell["rms"] for cell in cells] == [0.5, 1.0, None, 2.0, 0.0]
    assert cells[3] == {
        "layer": "2", "module": "experts.w13", "role": "target", "elements": 12, "changed": 9,
        "rms": 2.0, "relative": 2.0, "max_abs": 5.0, "nan": 0, "inf": 2,
    }  # fmt: skip


def test_an_empty_table_has_no_means() -> None:
    document = ChangeTable().as_json()
    assert (document["rms"], document["max_abs"], document["elements_changed_pct"]) == (
        None,
        None,
        0,
    )
    assert (document["by_kind"], document["by_layer"], document["cells"]) == ({}, {}, [])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("change"))


def table_of(
    files: Files,
    variant: str,
    layout: Layout,
    ranks: list[int] | None = None,
    options: Options | None = None,
) -> ChangeTable:
    """Version 1 against version 2 on these ranks, in this order."""
    table = ChangeTable()
    for rank in ranks if ranks is not None else range(layout.world):
        plan = files.plan(variant, layout, options)
        old = files.loaded(variant, layout, rank, options)
        new = files.loaded(variant, layout, rank, options, version=2)
        views = parameters(plan, rank)
        compare_stores(plan, rank, old.parameters, new.parameters, views, "target", table)
    return table


def assert_agree(one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """Equal, but for the order in which floats were added."""
    assert one.keys() == two.keys()
    for key, value in one.items():
        if isinstance(value, Mapping):
            assert_agree(value, two[key])
        elif isinstance(value, list):
            assert len(value) == len(two[key])
            for here, there in zip(value, two[key], strict=True):
                assert_agree(here, there)
        else:
            assert value == (pytest.approx(two[key]) if isinstance(value, float) else two[key]), key


LAYOUTS = [Layout(tp_size=2, ep_size=2), Layout(tp_size=2), Layout(tp_size=2, pp_size=2)]


@pytest.mark.parametrize("variant", LOADED)
def test_every_element_counts_once_whatever_the_layout(variant: str, files: Files) -> None:
    whole = table_of(files, variant, Layout()).as_json()
    assert 0 < whole["elements_changed"] < whole["elements"]
    cut = table_of(files, variant, LAYOUTS[0])
    assert_agree(cut.as_json(), whole)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("is_fused", [False, True])
def test_every_element_counts_once_on_ranks_in_any_order(
    layout: Layout, is_fused: bool, files: Files
) -> None:
    options = Options(fuse_shared_experts=is_fused)
    whole = table_of(files, "v3-fp8-block", Layout(), options=options).as_json()
    ranks = list(reversed(range(layout.world)))
    assert_agree(table_of(files, "v3-fp8-block", layout, ranks, options).as_json(), whole)


def test_what_ranks_hold_alike_counts_on_the_first_that_is_given(files: Files) -> None:
    variant, layout = "v3-fp8-block", LAYOUTS[0]
    whole = table_of(files, variant, Layout()).as_json()["by_kind"]
    alone = table_of(files, variant, layout, [1]).as_json()["by_kind"]
    assert alone["norm"]["elements"] == whole["norm"]["elements"]
    assert alone["experts"]["elements"] * 2 == whole["experts"]["elements"]
    twice = table_of(files, variant, layout, [1, 1]).as_json()["by_kind"]
    assert twice == alone


def test_each_role_counts_for_itself(files: Files) -> None:
    plan, old = files.plan("v3-fp8-block", Layout()), files.loaded("v3-fp8-block", Layout(), 0)
    table = ChangeTable()
    for role in ("target", "draft"):
        views = parameters(plan, 0)
        compare_stores(plan, 0, old.parameters, old.parameters, views, role, table)
    held = sum(tensor.numel() for tensor in old.parameters.values())
    assert (table.total.elements, table.total.changed) == (2 * held, 0)


def test_packed_weights_of_a_plan_are_codes(files: Files) -> None:
    for variant in ("v3-w4afp8", "v3-nvfp4", "v3-awq"):
        cells = table_of(files, variant, Layout()).as_json()["cells"]
        packed = [
            cell for cell in cells if cell["module"] in ("experts.w13", "experts.w13_qweight")
        ]
        assert packed
        assert {cell["rms"] for cell in packed} == {None}
    cells = table_of(files, "v3-int8-channel", Layout()).as_json()["cells"]
    assert all(cell["rms"] > 0 for cell in cells if cell["module"] == "experts.w13")


def spoilt(files: Files) -> tuple[Plan, dict[str, Tensor], dict[str, Tensor], list[ParameterView]]:
    plan = files.plan("v3-bf16", Layout())
    old = files.loaded("v3-bf16", Layout(), 0).parameters
    return plan, old, {n: t.clone() for n, t in old.items()}, list(parameters(plan, 0))


def test_parameters_that_are_not_finite_any_more_are_named(files: Files) -> None:
    plan, old, new, views = spoilt(files)
    names = ["model.norm.weight", "model.layers.1.mlp.experts.w2_weight"]
    for name, number in zip(names, (math.nan, -math.inf), strict=True):
        new[name].view(-1)[-1] = number
    before = {**old, "lm_head.weight": old["lm_head.weight"].clone()}
    for weights in (before, new):
        weights["lm_head.weight"][0, 0] = math.nan
    table = ChangeTable()
    assert sorted(compare_stores(plan, 0, before, new, views, "target", table)) == sorted(names)
    assert (table.total.nan, table.total.inf, table.total.changed) == (2, 1, 2)


def test_what_the_old_values_lack_is_left_out(files: Files) -> None:
    plan, old, new, views = spoilt(files)
    table, some = ChangeTable(), {"model.norm.weight": old["model.norm.weight"]}
    compare_stores(plan, 0, some, new, views, "target", table)
    assert table.total.elements == old["model.norm.weight"].numel()


class Stop(Exception):
    """What a gate raises."""


def test_the_gate_is_passed_before_each_parameter(files: Files) -> None:
    plan, old, new, views = spoilt(files)
    passed: list[int] = []

    def gate(nbytes: int) -> None:
        passed.append(nbytes)
        if len(passed) == 3:
            raise Stop

    table = ChangeTable()
    with pytest.raises(Stop):
        compare_stores(plan, 0, old, new, views, "target", table, gate)
    assert passed == [0, 0, 0]
    assert table.total.elements == sum(one.elements for one in views[:2])


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*NUMBERS, *CODES[:2]], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("is_old_there", [True, False])
def test_a_device_and_the_host_agree(
    dtype: torch.dtype, share: float, is_old_there: bool, cuda: torch.device
) -> None:
    raw = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
    moved = torch.where(torch.rand(len(raw)) < share, raw ^ 1, raw)
    old, new = raw.view(dtype).view(256, -1), moved.view(dtype).view(256, -1)
    there = compare(old.to(cuda) if is_old_there else old, new.to(cuda), chunk_bytes=100_000)
    if there.max_abs is None:
        assert there == compare(old, new)
    else:
        assert_same(there, slow(old, new))
