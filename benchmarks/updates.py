"""What weight updates over HTTP cost: buckets, checks, second copies, attention, memory.

    python benchmarks/updates.py

A real server process on this machine, a pretended DeepSeek-V3 in bf16 with 2,400 tensors, about one
element in a hundred changed between updates. Sender, server and probe share the cores.
"""

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from safetensors.torch import save_file
from sparse import top_entries, v3_config, v3_entries, write_v3
from table import show, spread
from watched_server import probing, watched_server

from loadscope.app.client import Client, UpdateRecord
from loadscope.app.client_packing import pack

# 0.5 MB a matrix: 1.2 GB in all, as many tensors as buckets are wanted
LARGE = {
    "hidden_size": 1024, "moe_intermediate_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 13, "first_k_dense_replace": 1, "n_routed_experts": 62, "vocab_size": 2048,
}  # fmt: skip
SMALL = {**LARGE, "num_hidden_layers": 2, "vocab_size": 1024}
FEW, MANY = 8, 2400
ROUNDS = 3
PUTS = 600
UPDATES = 20
SETTLED = 5  # updates before memory is looked at
SLOT_S = 60.0
Rows = list[list[str]]
Weights = dict[str, torch.Tensor]


def make_weights(sizes: dict[str, int]) -> Weights:
    config = v3_config(**sizes)
    entries = top_entries(config)
    for layer in range(config["num_hidden_layers"]):
        entries += v3_entries(config, layer)
    torch.manual_seed(1)
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    return {name: (torch.randn(shape) / 50).to(dtypes[dtype]) for name, dtype, shape in entries}


def step(weights: Weights) -> None:
    """About one element in a hundred moves."""
    for tensor in weights.values():
        tensor.view(-1)[::100] *= 1.05


def write_weights(folder: Path, weights: Weights) -> None:
    """A checkpoint of eight files, over the one that only had headers."""
    names = list(weights)
    index: dict[str, str] = {}
    for path in folder.glob("*.safetensors"):
        path.unlink()
    for number in range(FEW):
        file = f"model-{number}.safetensors"
        part = names[number::FEW]
        save_file({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


class Push(NamedTuple):
    """Seconds of one update; `cpu` is the server's."""

    seconds: float
    receiving: float
    cpu: float


class Bench:
    """A server process and a client of it."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid, self.url = pid, url
        self.client = Client(url)
        self.http = httpx.Client(base_url=url, timeout=60)
        self.version = 0
        assert self.client.wait("u-1").state == "active"

    def push(self, weights: Weights, buckets: int, **options: Any) -> tuple[float, UpdateRecord]:
        """Seconds from the opening to the end, and the record; as many buckets as wanted."""
        self.version += 1
        step(weights)
        groups = split(weights, buckets)
        begun = time.perf_counter()
        with self.client.update(
            f"v{self.version}", bucket_bytes=1 << 40, wait_for_slot_s=SLOT_S, **options
        ) as upload:
            for group in groups:
                upload.send(group)
            record = upload.commit(verify="bytes")
        seconds = time.perf_counter() - begun
        assert upload.buckets == buckets
        return seconds, record

    def reload(self, path: Path, verify: Any, **options: Any) -> tuple[float, UpdateRecord]:
        self.version += 1
        begun = time.perf_counter()
        record = self.client.reload(
            str(path), version=f"v{self.version}", verify=verify, wait_for_slot_s=SLOT_S, **options
        )
        return time.perf_counter() - begun, record

    def worst_lag_s(self) -> float:
        return float(self.http.get("/lag").json()["worst_s"])

    def cpu_s(self) -> float:
        """Of the server, in user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) * 1024


def split(weights: Weights, buckets: int) -> list[list[tuple[str, torch.Tensor]]]:
    """Neighbours together, as near to equal numbers as may be."""
    pairs = list(weights.items())
    edges = [len(pairs) * n // buckets for n in range(buckets + 1)]
    return [pairs[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@contextmanager
def running(model: Path, state: Path) -> Iterator[Bench]:
    with watched_server(model, state) as (process, url):
        bench = Bench(process.pid, url)
        yield bench
        bench.client.close()
        bench.http.close()


def cost_of_a_bucket(bench: Bench, weights: Weights) -> Rows:
    """PUT of one small tensor beside GET /healthz, in turns, over the same connection."""
    puts: list[float] = []
    healths: list[float] = []
    small = {f"model.layers.1.mlp.experts.{n}.down_proj.weight" for n in range(62)}
    names = [name for name in weights if name not in small and weights[name].nbytes < 4096]
    bodies = [body_of(weights, name) for name in names]
    while len(puts) < PUTS:
        opened = {"source": {"type": "upload"}}
        update = bench.http.post("/reload", json=opened).raise_for_status().json()["id"]
        for number, (body, digest) in enumerate(bodies):
            headers = {"content-type": "application/octet-stream", "content-digest": digest}
            path = f"/reloads/{update}/buckets/{number}"
            puts.append(timed(bench.http, "PUT", path, content=body, headers=headers))
            healths.append(timed(bench.http, "GET", "/healthz"))
        bench.client.cancel(update)
    cost_ms = (statistics.median(puts) - statistics.median(healths)) * 1e3
    return [
        ["PUT of a small bucket, median", f"{statistics.median(puts) * 1e3:.2f} ms", ""],
        ["GET /healthz in turns with it, median", f"{statistics.median(healths) * 1e3:.2f} ms", ""],
        ["control cost of a bucket: the difference", f"{cost_ms:.2f} ms", "<= 2 ms"],
    ]


def body_of(weights: Weights, name: str) -> tuple[bytes, str]:
    (bucket,) = pack({name: weights[name]}, 1 << 30, "xxh3-128")
    return b"".join(bucket.blocks()), bucket.digest


def timed(http: httpx.Client, method: str, path: str, **request: Any) -> float:
    begun = time.perf_counter()
    answer = http.request(method, path, **request)
    seconds = time.perf_counter() - begun
    assert answer.status_code == 200, answer.text
    return seconds


def few_and_many(bench: Bench, weights: Weights) -> Rows:
    """The same bytes in 8 buckets and in 2,400, in turns."""
    bench.push(weights, FEW)
    found: dict[int, list[Push]] = {FEW: [], MANY: []}
    for _ in range(ROUNDS):
        for buckets in (FEW, MANY):
            before = bench.cpu_s()
            seconds, record = bench.push(weights, buckets)
            receiving = record.phases_s["receiving"]
            found[buckets].append(Push(seconds, receiving, bench.cpu_s() - before))
    few, many = (Push(*map(statistics.median, zip(*found[n], strict=True))) for n in (FEW, MANY))
    each_ms = (many.receiving - few.receiving) / (MANY - FEW) * 1e3
    rows = [
        [f"{n:,} buckets, {what}", spread([push[at] for push in found[n]], digits=1), ""]
        for at, what in enumerate(("open to active", "of it receiving", "CPU of the server"))
        for n in (FEW, MANY)
    ]
    return [
        *rows,
        [
            f"{MANY:,} buckets against {FEW}, open to active",
            f"{many.seconds / few.seconds:.2f}",
            "<= 1.3",
        ],
        ["one more bucket, sender and server together", f"{each_ms:.1f} ms", ""],
        *attention(bench, weights),
    ]


def attention(bench: Bench, weights: Weights) -> Rows:
    """Whether the server answers while it receives, checks, loads and switches."""
    lags = []
    bench.worst_lag_s()
    with probing(bench.url) as health:
        for buckets in (FEW, MANY):
            bench.push(weights, buckets)
            lags.append(bench.worst_lag_s())
    health.sort()
    middle, late = health[len(health) // 2], health[int(len(health) * 0.99)]
    figure = f"{middle * 1e3:.1f}, {late * 1e3:.1f}, {health[-1] * 1e3:.1f} ms"
    return [
        ["GET /healthz every 5 ms meanwhile: median, 99 %, max", figure, "< 50 ms"],
        ["event loop late at worst", f"{max(lags) * 1e3:.1f} ms", "< 50 ms"],
    ]


def shares(bench: Bench, path: Path) -> Rows:
    """Loads from disk with and without each of the things that an update does beside the load."""
    plain = {"stats": "none", "atomic": "off"}
    cases: dict[str, dict[str, Any]] = {
        "load alone: in place, no checks, no statistics": {"verify": "none", **plain},
        "verify bytes": {"verify": "bytes", **plain},
        "verify loaded": {"verify": "loaded", **plain},
        "staged, no checks, no statistics": {"verify": "none", "stats": "none"},
        "staged, no checks, statistics": {"verify": "none"},
        "as it is by default: staged, bytes, statistics": {"verify": "bytes"},
    }
    times: dict[str, list[float]] = {}
    for name, options in cases.items():
        # the first of a kind may have to ask for the memory of a second copy
        bench.reload(path, **options)
        times[name] = [bench.reload(path, **options)[0] for _ in range(ROUNDS)]
    alone = statistics.median(next(iter(times.values())))
    return [
        [f"from disk, {name}", spread(seconds), f"{statistics.median(seconds) / alone:.2f} x"]
        for name, seconds in times.items()
    ]


def memory(bench: Bench, weights: Weights) -> Rows:
    """Resident memory after each of some updates, without those that it settles in."""
    found = []
    for _ in range(UPDATES):
        bench.push(weights, FEW)
        found.append(bench.rss_bytes())
    slope = statistics.linear_regression(range(UPDATES - SETTLED), found[SETTLED:]).slope
    size = sum(tensor.nbytes for tensor in weights.values())
    return [
        [
            f"resident memory, {UPDATES} updates of {size / 1e6:.0f} MB: first, last",
            f"{found[0] / 1e6:.0f}, {found[-1] / 1e6:.0f} MB",
            "",
        ],
        [f"slope of the last {UPDATES - SETTLED}", f"{slope / 1e6:+.2f} MB an update", "0"],
    ]


def main() -> None:
    rows: Rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small = make_weights(SMALL)
        with running(write_v3(folder / "small", **SMALL), folder / "a") as bench:
            rows += cost_of_a_bucket(bench, small)
            rows += memory(bench, small)
        del small
        large = make_weights(LARGE)
        size = sum(tensor.nbytes for tensor in large.values())
        count = len(large)
        path = write_v3(folder / "large", **LARGE)
        with running(path, folder / "b") as bench:
            rows += few_and_many(bench, large)
            write_weights(path, large)
            del large
            gc.collect()
            rows += shares(bench, path)
    title = f"Updates: {count:,} tensors, {size / 1e9:.2f} GB"
    show(
        title,
        "python benchmarks/updates.py",
        ["what", "figure", "wanted, or against the load alone"],
        rows,
    )


if __name__ == "__main__":
    main()
