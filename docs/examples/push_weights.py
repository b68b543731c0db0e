"""A trainer that pushes its weights to a loadscope server, step by step.

    python docs/examples/push_weights.py --url http://127.0.0.1:8787 --steps 3

Without --checkpoint it trains the model of `make demo`. The optimiser is pretended: in each step
about one element in a hundred moves a little. Then a push goes wrong, and one is taken back.
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from loadscope.app.client import Client, UpdateRecord, UpdateRefused
from loadscope.app.demo_checkpoint import write_demo_checkpoint

ONE_IN = 100
MOVES_BY = 0.1
PATIENCE_S = 300.0


def main() -> None:
    asked = arguments()
    weights = demo_weights() if asked.checkpoint is None else read(asked.checkpoint)
    key = None if asked.api_key_file is None else asked.api_key_file.read_text().strip()
    with Client(asked.url, api_key=key) as client:
        first = next_step(client)
        for step in range(first, first + asked.steps):
            weights = trained(weights, step)
            record = push(client, weights, step, asked.bucket_mb * 10**6)
        push_without_a_half(client, weights)
        take_back(client, record)


def push(client: Client, weights: dict[str, Tensor], step: int, bucket_bytes: int) -> UpdateRecord:
    """One step's weights: opened on top of the version before, sent, compared, switched to."""
    begun = time.perf_counter()
    with client.update(
        version=f"step-{step}",
        expect_current=client.current().version,
        bucket_bytes=bucket_bytes,
        overlap=True,
        wait_for_slot_s=PATIENCE_S,
    ) as upload:
        upload.send(weights)
        record = upload.commit(verify="loaded")
    seconds = time.perf_counter() - begun
    is_equal = record.verify["overall"] == upload.overall and record.verify["loaded_equal"]
    say(
        f"{record.version}: {len(weights):,} tensors, {upload.sent_bytes / 1e6:.1f} MB in "
        f"{upload.buckets} buckets, {seconds:.1f} s; {record.changed_pct:.2f} % changed; "
        f"digest {upload.overall[:8]} {'equal' if is_equal else 'DIFFERENT'}"
    )
    return record


def push_without_a_half(client: Client, weights: dict[str, Tensor]) -> None:
    """One tensor of a pair does not come: the server names it and keeps what it has."""
    left_out = next(name for name in weights if "kv_a_proj_with_mqa" in name)
    rest = ((name, tensor) for name, tensor in weights.items() if name != left_out)
    try:
        with client.update(version="broken", wait_for_slot_s=PATIENCE_S) as upload:
            upload.send(rest)
            upload.commit()
    except UpdateRefused as refused:
        say(f"without {left_out}: {refused.code}, {refused.message}")
    say(f"still served: {client.current().version}")


def take_back(client: Client, record: UpdateRecord) -> None:
    """The version before, out of the server's memory."""
    if not client.record(record.id).can_roll_back:
        say(f"{record.version} cannot be taken back: {record.document['atomicity_reason']}")
        return
    client.rollback(record.id)
    say(f"{record.version} taken back; served: {client.current().version}")


def trained(weights: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The weights after a step; codes of integers stay as they are."""
    torch.manual_seed(seed)
    return {name: moved(t) if t.is_floating_point() else t for name, t in weights.items()}


def moved(tensor: Tensor) -> Tensor:
    flat = tensor.clone().reshape(-1)
    chosen = torch.randint(flat.numel(), (max(1, flat.numel() // ONE_IN),))
    largest = torch.finfo(tensor.dtype).max
    values = flat[chosen].float() * (1 + MOVES_BY * torch.randn(len(chosen)))
    flat[chosen] = values.clamp(-largest, largest).to(tensor.dtype)
    return flat.reshape(tensor.shape)


def read(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint's files, in the order of the files."""
    files = sorted(checkpoint.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def demo_weights() -> dict[str, Tensor]:
    """Those that `make demo` serves: it makes them from the same seed."""
    with tempfile.TemporaryDirectory() as folder:
        return read(write_demo_checkpoint(Path(folder) / "demo"))


def next_step(client: Client) -> int:
    """Waits for what the server is busy with; counts on where an earlier trainer ended."""
    pending = client.current().pending
    if pending is not None:
        client.wait(pending["update"], PATIENCE_S)
    last = re.fullmatch(r"step-(\d+)", client.current().version or "")
    return 1 if last is None else int(last[1]) + 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8787")
    parser.add_argument("--checkpoint", type=Path, help="the folder that the server has loaded")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bucket-mb", type=int, default=16)
    parser.add_argument("--api-key-file", type=Path)
    return parser.parse_args()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
