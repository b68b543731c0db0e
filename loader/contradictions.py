"""Where a config and the headers tell different stories about layers and experts."""

from collections.abc import Sequence

from loadscope.loader.findings import Finding, finding
from loadscope.loader.model import Model
from loadscope.loader.resolve import EXPERT, Tail, unwrapped
from loadscope.loader.topology import compact, layers_in

DRAFT_MARK = "eh_proj.weight"


def draft_layers(tails: Sequence[Tail]) -> int:
    """Bit mask of the layers that hold what only a draft layer has."""
    drafts = 0
    for tail in tails:
        if not tail.is_top and unwrapped(tail.text) == DRAFT_MARK:
            drafts |= tail.seen
    return drafts


def draft_layer(tails: Sequence[Tail], model: Model) -> int | None:
    """The draft's layer: the one behind the model, or layer 0 of a file with that one alone."""
    present = draft_layers(tails)
    for layer in (model.num_hidden_layers, *([0] if model.num_hidden_layers == 1 else [])):
        if present >> layer & 1:
            return layer
    return None


def check_draft(tails: Sequence[Tail], model: Model) -> list[Finding]:
    """Whether a draft that is asked for is there, and is the only one."""
    layer = draft_layer(tails, model)
    announced = model.num_nextn_predict_layers
    if layer is None:
        return [
            finding(
                "LS214",
                "num_nextn_predict_layers",
                f"a draft is asked for, but the files hold no layer {model.num_hidden_layers} with "
                f"{DRAFT_MARK} (config.json announces num_nextn_predict_layers = {announced})",
                fix="load the target alone, or add the draft layer to the checkpoint",
                evidence={"num_nextn_predict_layers": announced},
            )
        ]
    more = layers_in(draft_layers(tails) & ~(1 << layer))
    if not more:
        return []
    return [
        finding(
            "LS209",
            f"model.layers.{more[0]}.{DRAFT_MARK}",
            f"layers {compact(more)} are draft layers too: only layer {layer} is loaded",
            fix="nothing to do for one draft layer; more are not supported",
            pattern="model.layers.{layer}.{rest}",
            count=len(more),
            evidence={"layers": compact(more), "draft_layer": layer},
        )
    ]


def check_layers(tails: Sequence[Tail], model: Model, *, layers_were_set: bool) -> list[Finding]:
    """Layers past the model (draft, asked for, contradiction) and layers without any tensor."""
    seen, drafts = 0, draft_layers(tails)
    for tail in tails:
        if not tail.is_top:
            seen |= tail.seen
    first = model.num_hidden_layers
    announced = ((1 << model.num_nextn_predict_layers) - 1) << first
    beyond = seen & ~model.layers
    if beyond & ~drafts:
        # whether a layer is the draft cannot be told by its number then
        findings = _beyond(tails, beyond, model, layers_were_set)
    else:
        findings = [
            *_draft(tails, beyond & announced, announced & ~drafts, model),
            *_more_drafts(tails, beyond & ~announced, model),
        ]
    missing = layers_in(model.layers & ~seen)
    if missing:
        findings.append(_missing_layers(missing, model))
    return findings


def _counts(tails: Sequence[Tail], mask: int) -> tuple[int, str]:
    names = [(tail, layers_in(tail.seen & mask)) for tail in tails if not tail.is_top]
    count = sum(len(layers) for _tail, layers in names)
    example = next((tail.name(layers[0]) for tail, layers in names if layers), "")
    return count, example


def _draft(tails: Sequence[Tail], present: int, absent: int, model: Model) -> list[Finding]:
    findings = []
    if present:
        count, example = _counts(tails, present)
        findings.append(
            _draft_note(
                f"draft layer {compact(layers_in(present))} is in the files ({count:,} tensors): "
                f"not asked for, not loaded",
                count,
                example,
            )
        )
    if absent:
        findings.append(
            _draft_note(
                "config.json announces num_nextn_predict_layers = "
                f"{model.num_nextn_predict_layers}, but the files hold no draft layer "
                f"{compact(layers_in(absent))}",
                0,
                "num_nextn_predict_layers",
            )
        )
    return findings


def _more_drafts(tails: Sequence[Tail], mask: int, model: Model) -> list[Finding]:
    """Draft layers that the config does not announce; beyond an announced one they are suspect."""
    if not mask:
        return []
    count, example = _counts(tails, mask)
    layers = compact(layers_in(mask))
    text = (
        f"layers {layers} look like draft layers ({count:,} tensors), but config.json announces "
        f"num_nextn_predict_layers = {model.num_nextn_predict_layers}: not loaded"
    )
    next_layer = 1 << (model.num_hidden_layers + model.num_nextn_predict_layers)
    if mask == next_layer and model.num_nextn_predict_layers == 0:
        return [_draft_note(text, count, example)]
    return [
        finding(
            "LS209",
            example,
            text,
            fix="correct num_nextn_predict_layers, or leave these layers out of the checkpoint",
            pattern="model.layers.{layer}.{rest}",
            count=count,
            example=example,
            evidence={"layers": layers},
        )
    ]


def _draft_note(text: str, count: int, example: str) -> Finding:
    return finding(
        "LS210",
        example,
        text,
        fix="nothing to do for the target model",
        pattern="model.layers.{layer}.{rest}",
        count=count,
        example=example,
    )


def _beyond(tails: Sequence[Tail], mask: int, model: Model, layers_were_set: bool) -> list[Finding]:
    """No draft layer and past the model: asked for with --set, or the config is wrong."""
    if not mask:
        return []
    count, example = _counts(tails, mask)
    layers = compact(layers_in(mask))
    found = f"the files hold layers {layers} ({count:,} tensors), num_hidden_layers is "
    evidence = {"layers": layers, "num_hidden_layers": model.num_hidden_layers}
    if layers_were_set:
        return [
            finding(
                "LS209",
                example,
                f"{found}{model.num_hidden_layers} by --set: they are skipped (beyond_model)",
                fix="leave --set num_hidden_layers out to load the whole model",
                pattern="model.layers.{layer}.{rest}",
                count=count,
                example=example,
                evidence=evidence,
            )
        ]
    return [
        finding(
            "LS208",
            "num_hidden_layers",
            f"config.json contradicts the headers: {found}{model.num_hidden_layers}, and not all "
            f"of them are draft layers (no {DRAFT_MARK})",
            fix="correct num_hidden_layers in config.json, or give --set num_hidden_layers=N to "
            "load fewer layers on purpose",
            pattern="model.layers.{layer}.{rest}",
            count=count,
            example=example,
            evidence=evidence,
        )
    ]


def _missing_layers(missing: list[int], model: Model) -> Finding:
    return finding(
        "LS208",
        "num_hidden_layers",
        f"config.json contradicts the headers: num_hidden_layers is {model.num_hidden_layers}, but "
        f"the files hold no tensor of layers {compact(missing)}",
        fix="correct num_hidden_layers in config.json, or complete the checkpoint",
        count=len(missing),
        evidence={"layers": compact(missing), "num_hidden_layers": model.num_hidden_layers},
    )


def check_experts(tails: Sequence[Tail], model: Model) -> list[Finding]:
    """Expert numbers the config does not have, or has and the files lack altogether."""
    numbers: set[int] = set()
    for tail in tails:
        hit = EXPERT.search(tail.text)
        if hit and tail.seen & model.moe_layers:
            numbers.add(int(hit.group()))
    expected = set(range(model.n_routed_experts)) if model.moe_layers else set()
    surplus, lacking = sorted(numbers - expected), sorted(expected - numbers)
    if not numbers or not (surplus or lacking):
        return []
    found = f"the files hold experts {compact(sorted(numbers))}"
    return [
        finding(
            "LS208",
            "n_routed_experts",
            f"config.json contradicts the headers: n_routed_experts is {model.n_routed_experts}, "
            f"but {found}",
            fix="correct n_routed_experts in config.json, or complete the checkpoint",
            count=len(surplus) + len(lacking),
            evidence={
                "n_routed_experts": model.n_routed_experts,
                "surplus": compact(surplus),
                "lacking": compact(lacking),
            },
        )
    ]
