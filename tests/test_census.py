"""The census of a checkpoint is what `Arrivals` counts when every tensor of it has come."""

from pathlib import Path

import pytest
from support.golden_checkpoint import VARIANTS, write_golden_checkpoint

from loadscope.loader.arrivals import Arrivals, Expected
from loadscope.loader.census import census
from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.plan import Options, Plan, make_plan

PACKS = sorted((Path(__file__).parent / "data" / "headers").glob("*.headers.json.gz"))
ROLES = ((False,), (True,), (False, True))


def plans_of(checkpoint: Checkpoint, drafts: tuple[bool, ...]) -> list[Plan]:
    return [make_plan(checkpoint, None, Options(draft=draft)) for draft in drafts]


def check(checkpoint: Checkpoint, drafts: tuple[bool, ...]) -> None:
    plans = plans_of(checkpoint, drafts)
    if any(plan.verdict == "fail" for plan in plans):
        pytest.skip("the checkpoint has no such role")
    expected = Expected(plans)
    arrivals = Arrivals(expected, scope="full")
    arrivals.admit(0, checkpoint.tensors)
    found = census(plans)
    assert arrivals.missing() == []
    assert found == {
        "tensors": expected.count,
        "bytes": expected.bytes,
        "ignored": arrivals.ignored,
        "groups": arrivals.counts()["total"],
    }


@pytest.mark.parametrize("drafts", ROLES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_of_golden_checkpoints(variant: str, drafts: tuple[bool, ...], tmp_path: Path) -> None:
    check(open_checkpoint(write_golden_checkpoint(variant, tmp_path / variant)), drafts)


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_of_published_headers(pack: Path) -> None:
    checkpoint = open_checkpoint(pack)
    has_draft = make_plan(checkpoint, None, Options(draft=True)).verdict == "pass"
    check(checkpoint, (False, True) if has_draft else (False,))


def test_plans_of_the_same_names_expect_the_same(tmp_path: Path) -> None:
    folders = [
        write_golden_checkpoint(variant, tmp_path / folder)
        for variant, folder in (("v3-bf16", "a"), ("v3-bf16", "b"), ("v3-fp8-block", "c"))
    ]
    one, again, other = (plans_of(open_checkpoint(folder), (False,)) for folder in folders)
    expected = Expected(one)
    assert expected.fits(one)
    assert expected.fits(again)
    assert not expected.fits(other)
    assert not expected.fits([*one, *one])
