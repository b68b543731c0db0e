"""What every rank holds after a load equals a slow model of the parameter tree, in every format.

The model (support/expected_rank.py and what it uses) is written from the description alone.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import Phase, given, settings
from support.compared_load import differences, plan_load, rank_differences
from support.load_case import Load, small_load
from support.loaded import load_rank
from support.quantised_formats import FORMS
from support.random_loads import loads

# an example is a load: making a failing one smaller would take minutes
ONCE = (Phase.generate,)
EXAMPLES = 8


@pytest.mark.parametrize("form", FORMS)
def test_every_rank_holds_what_the_files_mean(form: str) -> None:
    @settings(max_examples=EXAMPLES, phases=ONCE)
    @given(loads((form,)))
    def holds(load: Load) -> None:
        with TemporaryDirectory() as folder:
            assert differences(load, Path(folder)) == []

    holds()


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("group", [64, 128])
def test_groups_that_a_piece_of_an_expert_cannot_hold_are_halved(
    group: int, tp: int, tmp_path: Path
) -> None:
    """Pieces of 32 columns or more; the shared expert is wider, so that it keeps its groups."""
    width = max(32 * tp, group)
    sizes = {"moe_intermediate_size": width, "n_shared_experts": group // (width // tp)}
    form = FORMS[f"moe_wna16, groups of {group}"]
    assert width // tp < group
    assert differences(small_load(form, tp=tp, config=sizes), tmp_path) == []


@pytest.mark.parametrize("form", ["fp8 tensor static", "moe_wna16, groups of 64", "nvfp4"])
def test_the_comparison_notices_one_flipped_bit_of_any_tensor(form: str, tmp_path: Path) -> None:
    load = small_load(FORMS[form], tp=2)
    made, plan = plan_load(load, tmp_path)
    store = load_rank(plan, tmp_path, 1)
    unnoticed = []
    for name, tensor in {**store.parameters, **store.derived}.items():
        last = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())[-1:]
        last ^= 1
        found = rank_differences(load, made, store)
        unnoticed += [] if len(found) == 1 and name in found[0] else [(name, found)]
        last ^= 1
    assert unnoticed == []
