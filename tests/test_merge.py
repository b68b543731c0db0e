"""Weights that came by themselves, laid over the loaded checkpoint: planned and proved as one."""

import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.updates import Files
from torch import Tensor

from loadscope.loader.arrivals import Arrivals, Expected
from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.merge import arrived_files, merged, open_spool
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.steps import steps
from loadscope.loader.topology import Layout

LAYER = "model.layers.1."
ATTN = LAYER + "self_attn."
MLP = LAYER + "mlp."
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa"
DRAFT = "model.decoder."
DRAFT_ONLY = "v3-fp8-block-mtponly"
# the odd rank has no legal cut (LS207), so nothing is ever loaded from it
VARIANTS = [
    "v3-bf16",
    "v3-fp8-block",
    "v2lite-bf16",
    "v32-bf16",
    "v32-fp8-block",
    DRAFT_ONLY,
    "v3-fp8-channel",
    "v3-fp8-tensor",
    "v3-int8-channel",
    "v3-int8-block",
    "v3-awq",
    "v3-awq-marlin",
    "v3-w4afp8",
    "v3-nvfp4",
    "v3-bf16-extras",
]
Weights = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> "Updates":
    return Updates(tmp_path_factory.mktemp("merge"))


class Updates:
    """Golden checkpoints on disk, and spools of what came on top of one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.golden = Files(root / "golden")
        self.base = cache(self._base)
        self.plan = cache(self._plan)
        self._spools = 0

    def _base(self, variant: str) -> Checkpoint:
        return open_checkpoint(self.golden.folder(variant))

    def _plan(self, variant: str, *, draft: bool = False) -> Plan:
        plan = make_plan(self.base(variant), None, Options(draft=draft))
        assert plan.verdict == "pass"
        return plan

    def some(self, variant: str, names: Iterable[str]) -> Weights:
        weights = self.golden.weights(variant)
        return {name: weights[name] for name in names}

    def arrivals(self, variant: str) -> Arrivals:
        if variant == DRAFT_ONLY:
            plans = [self.plan(variant, draft=True)]
        else:
            drafts = [] if variant == "v2lite-bf16" else [self.plan(variant, draft=True)]
            plans = [self.plan(variant), *drafts]
        return Arrivals(Expected(plans), scope="partial")

    def spool(self, *buckets: Weights) -> tuple[Path, list[str]]:
        """One file per bucket."""
        self._spools += 1
        folder = self.root / f"spool {self._spools}"
        folder.mkdir()
        names = [f"bucket-{number:06d}.safetensors" for number in range(len(buckets))]
        for name, weights in zip(names, buckets, strict=True):
            save_file(dict(weights), folder / name)
        return folder, names

    def laid_over(self, variant: str, *buckets: Weights) -> tuple[Checkpoint, Checkpoint]:
        """(merged, what came) of buckets that are all admitted."""
        base = self.base(variant)
        folder, names = self.spool(*buckets)
        came, arrivals = open_spool(folder, names, base.config), self.arrivals(variant)
        for number in range(len(buckets)):
            here = {n: t for n, t in came.tensors.items() if t.file == number}
            arrivals.admit(number, here)
        assert (came.findings, arrivals.open_groups()) == ((), [])
        return merged(base, came, arrivals.covers), came


def groups_of(arrivals: Arrivals, *parts: str) -> list[list[str]]:
    """Members of every group whose name has one of the parts in it."""
    groups = arrivals.expected.groups
    found = [list(g.members) for g in groups if any(part in g.name for part in parts)]
    assert found, parts
    return found


def verdicts(checkpoint: Checkpoint, arrivals: Arrivals) -> list[str]:
    options = [plan.options for plan in arrivals.expected.plans]
    return [make_plan(checkpoint, None, each).verdict for each in options]


@pytest.mark.parametrize("variant", VARIANTS)
def test_whole_groups_over_the_loaded_checkpoint_are_a_plan_that_passes(
    variant: str, files: Updates
) -> None:
    arrivals = files.arrivals(variant)
    layer = DRAFT if variant == DRAFT_ONLY else LAYER
    here = groups_of(arrivals, layer + "self_attn", layer + "mlp.experts.w13 expert 5")
    buckets = [files.some(variant, members) for members in here]
    both, came = files.laid_over(variant, *buckets)
    assert verdicts(both, arrivals) == ["pass"] * len(arrivals.expected.plans)
    base = files.base(variant)
    assert both.tensors.keys() == base.tensors.keys()
    assert {n for n, t in both.tensors.items() if t.file in arrived_files(both, came)} == {
        name for members in here for name in members
    }
    assert len(came.tensors) == sum(map(len, here))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_name_of_the_files_over_themselves_is_the_same_plan(
    variant: str, files: Updates
) -> None:
    base = files.base(variant)
    folder, names = files.spool(files.golden.weights(variant))
    came = open_spool(folder, names, base.config)
    both = merged(base, came, lambda name: (name,))
    options = Options(draft=variant == DRAFT_ONLY)
    alone = make_plan(came, None, options)
    laid = make_plan(both, None, options)
    assert (alone.verdict, laid.verdict) == ("pass", "pass")
    assert set(alone.tensors) == set(laid.tensors) == set(base.tensors)
    assert {t.file for t in both.tensors.values()} == arrived_files(both, came)
    assert both.shards == came.shards


def test_a_merged_checkpoint_reads_the_arrived_bytes_in_the_arrived_folder(files: Updates) -> None:
    variant, name = "v3-bf16", ATTN + "o_proj.weight"
    base = files.base(variant)
    values = files.golden.weights(variant, 2)[name]
    both, came = files.laid_over(variant, {name: values})
    assert (both.directory, both.kind, both.label) == (came.path, "directory", came.label)
    assert both.config == base.config
    assert both.shards == (*base.shards, *came.shards)
    assert arrived_files(both, came) == {len(base.shards)}
    tensor = both.tensors[name]
    raw = (both.directory / both.shards[tensor.file].name).read_bytes()
    assert raw[tensor.start : tensor.stop] == values.view(torch.uint8).numpy().tobytes()
    untouched = {n: t for n, t in both.tensors.items() if n != name}
    assert untouched == {n: t for n, t in base.tensors.items() if n != name}


def test_steps_of_a_merged_plan_tell_the_arrived_files_from_the_others(files: Updates) -> None:
    variant = "v3-fp8-block"
    kv_b = [ATTN + "kv_b_proj.weight", ATTN + "kv_b_proj.weight_scale_inv"]
    both, came = files.laid_over(variant, files.some(variant, kv_b))
    here = arrived_files(both, came)
    plan = make_plan(both, Layout(tp_size=2), Options())
    assert {step.param for step in steps(plan, 1) if step.file in here} == set(kv_b)


FUSED: dict[str, tuple[str, list[str], int]] = {
    "q_a and kv_a": (
        QKV_A + ".{leaf}",
        [ATTN + "q_a_proj.{leaf}", ATTN + "kv_a_proj_with_mqa.{leaf}"],
        0,
    ),
    "gate and up": (
        MLP + "shared_experts.gate_up_proj.{leaf}",
        [MLP + "shared_experts.gate_proj.{leaf}", MLP + "shared_experts.up_proj.{leaf}"],
        0,
    ),
    "all experts": (
        MLP + "experts.w2_{leaf}",
        [MLP + f"experts.{expert}.down_proj.{{leaf}}" for expert in range(8)],
        -1,
    ),
}


def fused(weights: Weights, what: str, leaf: str) -> tuple[str, list[str], Tensor]:
    """A fused tensor and the names of the parts that it is made of here."""
    name, parts, dim = FUSED[what]
    names = [part.format(leaf=leaf) for part in parts]
    raw = [weights[part] for part in names]
    whole = torch.stack(raw) if dim < 0 else torch.cat(raw)
    return name.format(leaf=leaf), names, whole


@pytest.mark.parametrize("what", FUSED)
def test_a_fused_tensor_takes_the_place_of_its_parts(what: str, files: Updates) -> None:
    variant = "v3-fp8-block"
    weights = files.golden.weights(variant)
    forms = [fused(weights, what, leaf) for leaf in ("weight", "weight_scale_inv")]
    both, came = files.laid_over(variant, *({name: whole} for name, _parts, whole in forms))
    gone = {part for _name, parts, _whole in forms for part in parts}
    base = files.base(variant)
    assert both.tensors.keys() == (base.tensors.keys() - gone) | came.tensors.keys()
    assert make_plan(both).verdict == "pass"


def test_parts_take_the_place_of_a_fused_tensor_of_the_loaded_checkpoint(files: Updates) -> None:
    """The second update is laid over what the first has left."""
    variant, leaves = "v3-fp8-block", ("weight", "weight_scale_inv")
    weights = files.golden.weights(variant)
    forms = [fused(weights, what, leaf) for what in FUSED for leaf in leaves]
    first, _came = files.laid_over(variant, {name: whole for name, _parts, whole in forms})
    parts = [part for _name, parts, _whole in forms for part in parts]
    arrivals = Arrivals(Expected([make_plan(first)]), scope="partial")
    folder, names = files.spool(files.some(variant, parts))
    came = open_spool(folder, names, first.config)
    arrivals.admit(0, came.tensors)
    second = merged(first, came, arrivals.covers)
    assert second.tensors.keys() == files.base(variant).tensors.keys()
    # nothing is left of the shards that the first one had brought
    assert second.shards == (*first.shards[: len(files.base(variant).shards)], *came.shards)
    assert arrived_files(second, came) == {len(second.shards) - 1}
    assert make_plan(second).verdict == "pass"


def test_a_part_over_a_fused_tensor_is_no_plan_that_passes(files: Updates) -> None:
    variant = "v3-bf16"
    name, parts, whole = fused(files.golden.weights(variant), "gate and up", "weight")
    first, _came = files.laid_over(variant, {name: whole})
    arrivals = Arrivals(Expected([make_plan(first)]), scope="partial")
    folder, names = files.spool(files.some(variant, parts[:1]))
    came = open_spool(folder, names, first.config)
    arrivals.admit(0, came.tensors)
    plan = make_plan(merged(first, came, arrivals.covers))
    assert arrivals.open_count == 1
    assert "LS502" in {f.code for f in plan.findings if f.level == "error"}


def test_other_spellings_take_the_place_of_the_loaded_names(files: Updates) -> None:
    variant = "v3-fp8-block"
    kv_b = files.some(variant, [ATTN + "kv_b_proj.weight", ATTN + "kv_b_proj.weight_scale_inv"])
    renamed = {"language_model." + name.removesuffix("_inv"): t for name, t in kv_b.items()}
    both, _came = files.laid_over(variant, renamed)
    assert kv_b.keys().isdisjoint(both.tensors)
    assert make_plan(both).verdict == "pass"


def test_what_is_ignored_takes_no_place_but_its_own(files: Updates) -> None:
    variant, name = "v3-bf16-extras", ATTN + "rotary_emb.inv_freq"
    base = files.base(variant)
    both, came = files.laid_over(variant, files.some(variant, [name]))
    assert both.tensors.keys() == base.tensors.keys()
    assert both.tensors[name].file in arrived_files(both, came)


# what lies in a spool


def test_a_spool_is_read_in_the_order_of_its_buckets(files: Updates) -> None:
    variant = "v3-bf16"
    buckets = [files.some(variant, [name]) for name in ("model.norm.weight", "lm_head.weight")]
    folder, names = files.spool(*buckets)
    config = {"model_type": "deepseek_v3"}
    came = open_spool(folder, names[::-1], config)
    assert [shard.name for shard in came.shards] == names[::-1]
    assert {name: t.file for name, t in came.tensors.items()} == {
        "lm_head.weight": 0,
        "model.norm.weight": 1,
    }
    assert (came.path, came.kind, came.label, came.config) == (
        folder, "directory", folder.name, config,
    )  # fmt: skip
    assert came.findings == ()
    assert came.total_bytes == sum(t.numel() * 2 for b in buckets for t in b.values())


def test_files_that_are_not_named_do_not_count(files: Updates) -> None:
    variant = "v3-bf16"
    folder, names = files.spool(
        *[files.some(variant, [n]) for n in ("lm_head.weight", "model.norm.weight")]
    )
    assert set(open_spool(folder, names[:1], None).tensors) == {"lm_head.weight"}


def test_an_empty_spool_is_an_empty_checkpoint(files: Updates) -> None:
    folder, _names = files.spool()
    came = open_spool(folder, [], {})
    assert (came.shards, came.tensors, came.findings) == ((), {}, ())
    base = files.base("v3-bf16")
    assert merged(base, came, lambda name: (name,)).tensors == base.tensors


DAMAGE = {"cut short": "LS103", "gone": "LS121", "twice": "LS114", "no header": "LS109"}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_wrong_with_a_file_is_a_finding(what: str, files: Updates) -> None:
    folder, names = files.spool(files.some("v3-bf16", ["lm_head.weight"]), {})
    first, second = (folder / name for name in names)
    if what == "cut short":
        first.write_bytes(first.read_bytes()[:-1])
    elif what == "gone":
        second.unlink()
    elif what == "twice":
        shutil.copy(first, second)
    else:
        second.write_bytes(b"short")
    came = open_spool(folder, names, files.base("v3-bf16").config)
    assert [f.code for f in came.findings] == [DAMAGE[what]]
    assert came.findings[0].level == "error"
    assert make_plan(came).verdict == "fail"
