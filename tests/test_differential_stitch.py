"""All ranks' parameters, stitched together, are the files bit for bit, however they are read."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from support.differential import differing, load_case
from support.golden_checkpoint import VARIANTS
from support.random_models import Case, cases
from support.readers import spoiling
from support.stitch import Group

from loadscope.loader import rank_load
from loadscope.loader.steps import chunks
from loadscope.loader.topology import Layout


@settings(max_examples=20)
@given(cases())
def test_the_ranks_together_hold_the_files_bit_for_bit(case: Case) -> None:
    with TemporaryDirectory() as folder:
        assert differing(load_case(case, Path(folder))) == []


@settings(max_examples=6)
@given(cases(fp8=True, max_pp=2))
def test_the_ranks_of_an_fp8_model_together_hold_the_files_bit_for_bit(case: Case) -> None:
    with TemporaryDirectory() as folder:
        assert differing(load_case(case, Path(folder))) == []


@pytest.mark.parametrize("variant", ["v32-bf16", "v32-fp8-block"])
def test_a_reader_that_overwrites_its_buffers_changes_nothing(variant: str, tmp_path: Path) -> None:
    case = Case(VARIANTS[variant], Layout(tp_size=2))
    assert differing(load_case(case, tmp_path, spoiling())) == []


@pytest.mark.parametrize("limit", [1, 700, 5000])
@pytest.mark.parametrize("variant", ["v32-bf16", "v32-fp8-block"])
def test_tensors_read_a_few_rows_at_a_time_arrive_whole(
    variant: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_load, "chunks", partial(chunks, limit=limit))
    config = {**VARIANTS[variant], "num_hidden_layers": 2, "n_routed_experts": 2}
    assert differing(load_case(Case(config, Layout(tp_size=2)), tmp_path, spoiling())) == []


def test_the_comparison_notices_one_flipped_bit_of_any_parameter(tmp_path: Path) -> None:
    config = {**VARIANTS["v32-bf16"], "num_hidden_layers": 2, "vocab_size": 500}
    group = load_case(Case(config, Layout(tp_size=2, ep_size=2)), tmp_path)
    unnoticed = [name for name in group.ranks[1] if not _is_flip_noticed(group, name)]
    assert unnoticed == []


def _is_flip_noticed(group: Group, name: str) -> bool:
    """Rank 1's last byte of a tensor is changed, looked for, and put back."""
    storage = group.ranks[1][name].untyped_storage()
    last = torch.empty(0, dtype=torch.uint8).set_(storage)[-1:]
    last ^= 1
    try:
        return differing(group) != []
    except AssertionError:  # two copies of a replicated parameter differ, or padding is not zero
        return True
    finally:
        last ^= 1
