"""Checksums: of the bytes that came, against the sender's, and of what stands in memory after."""

from collections.abc import Mapping

import numpy as np
import torch

from loadscope.app.roles import Role
from loadscope.app.updates.refusal import Refusal
from loadscope.app.updates.update import Update
from loadscope.loader.checkpoint import Tensor
from loadscope.loader.checksums import compare, file_checksums, overall
from loadscope.loader.gather import FAULTS, Gatherer, live_checksums
from loadscope.loader.parameters import ParameterStore, torch_dtype
from loadscope.loader.plan import Plan
from loadscope.loader.read import ReadError

MAX_NAMES = 20
Stores = Mapping[Role, Mapping[int, ParameterStore]]


class Scales:
    """Looks for scales that are not finite while their bytes are at hand."""

    def __init__(self, plans: list[Plan]) -> None:
        self._plans = plans
        # names, each once: a long scale comes in several pieces
        self._broken: dict[str, None] = {}

    @property
    def broken(self) -> list[str]:
        return list(self._broken)

    def scan(self, name: str, tensor: Tensor, data: memoryview) -> None:
        if tensor.dtype.startswith(("F", "BF")) and self._is_scale(name):
            values = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            numbers = values.view(torch_dtype(tensor.dtype)).to(torch.float32)
            if not bool(torch.isfinite(numbers).all()):
                self._broken[name] = None

    def _is_scale(self, name: str) -> bool:
        for plan in self._plans:
            place = plan.find(name)
            if place is not None and place[0].source is not None:
                return plan.sources[place[0].source].role == "scale"
        return False


def verify_bytes(update: Update) -> dict[str, str]:
    """Checksums of everything that the update reads, by name.

    Refusal: `checksum_mismatch` against the sender's manifest, `non_finite` for a scale,
    `truncated` for a file that ends early.
    """
    asked, record, checkpoint = update.asked, update.record, update.checkpoint
    assert checkpoint is not None, "planned before it is verified"
    files = update.files
    names = [n for n, t in checkpoint.tensors.items() if files is None or t.file in files]
    scales = Scales([one.plan for one in update.loads])
    found: dict[str, str] = {}
    gate = update.control.gate
    algorithm = asked.verify.manifest.algorithm if asked.verify.manifest else asked.verify.algorithm
    try:
        for name, digest in file_checksums(
            checkpoint, names, algorithm, gate=lambda _nbytes: gate(0), scan=scales.scan
        ):
            found[name] = digest
    except ReadError as error:
        raise Refusal("truncated", str(error), fix="send or copy the file again") from None
    record.verify.update(algorithm=algorithm, checked=len(found), overall=overall(found, algorithm))
    _compare_with_sender(update, found)
    if scales.broken:
        raise Refusal(
            "non_finite",
            f"{len(scales.broken)} scales hold NaN or Inf, the first is {scales.broken[0]}",
            names=scales.broken[:MAX_NAMES],
            fix="an all-zero block gives such a scale: let the quantiser write 1 or the smallest",
        )
    return found


def _compare_with_sender(update: Update, found: Mapping[str, str]) -> None:
    manifest = update.asked.verify.manifest
    if manifest is None:
        return
    update.record.verify["against_sender"] = True
    differences = compare(manifest, found)
    if not differences:
        return
    names = [one.name for one in differences]
    update.record.verify["mismatched"] = names
    for one in differences[:MAX_NAMES]:
        detail = {"name": one.name, "expected": one.expected, "got": one.got}
        update.record.publish("mismatch", detail)
    first = differences[0]
    raise Refusal(
        "checksum_mismatch",
        f"{len(names)} tensors are not what the sender's manifest says, the first is {first.name}",
        names=names[:MAX_NAMES],
        expected=first.expected or "not in the manifest",
        got=first.got or "did not arrive",
        fix="send them again; if it comes back, compare how sender and receiver hash",
    )


def read_back(update: Update, stores: Stores) -> None:
    """Gather what stands in memory by checkpoint name and compare it with what came.

    Names that a conversion changed on their way cannot be compared; they are counted.
    """
    record = update.record
    if not update.checksums:
        return
    plans: dict[str, Plan] = {one.role: one.plan for one in update.loads}
    held: dict[str, Mapping[int, ParameterStore]] = {
        one.role: stores[one.role] for one in update.loads
    }
    names = list(update.checksums)
    gatherer = Gatherer(plans, held)
    found, reasons = live_checksums(gatherer, names, record.verify["algorithm"])
    wrong = [name for name, digest in found.items() if digest != update.checksums[name]]
    faults = [name for name, reason in reasons.items() if reason.startswith(FAULTS)]
    skipped = [name for name, reason in reasons.items() if reason.startswith("skipped")]
    wrong += faults
    rest = len(reasons) - len(faults) - len(skipped)
    record.verify.update(loaded_equal=not wrong, not_comparable=rest)
    if wrong:
        record.verify["mismatched"] = wrong
        raise Refusal(
            "finalize_failed",
            f"{len(wrong)} tensors read back differ from what came, the first is {wrong[0]}",
            names=wrong[:MAX_NAMES],
            fix="look at this machine's memory; then send the update again",
        )
