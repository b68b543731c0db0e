"""Latency of /mapping on a plan of 92,000 names while a load runs, beside /healthz in the same run.

    python benchmarks/mapping.py

A real server process loads one of the 128 ranks of DeepSeek-V3 (tp 8, pp 16) from real headers over
files with holes; the load is paced so that bytes move during the whole measurement.
"""

import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from sparse import Entry, write_sparse
from table import show

PACK = Path(__file__).parents[1] / "tests" / "data" / "headers" / "deepseek-v3.headers.json.gz"
REQUESTS = 600
PACE_S = 60


def expand(folder: Path) -> list[str]:
    """The V3 pack as a directory; returns its names."""
    pack = json.loads(gzip.decompress(PACK.read_bytes()))
    shards: dict[str, list[Entry]] = {
        file: [(name, e["dtype"], tuple(e["shape"])) for name, e in entries.items()]
        for file, entries in pack["files"].items()
    }
    write_sparse(folder, pack["config"], shards)
    return [name for entries in shards.values() for name, _dtype, _shape in entries]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_loading(client: httpx.Client) -> None:
    for _ in range(600):
        try:
            state = client.get("/loads/1").json().get("state", {})
            if state.get("status") == "loading" and state.get("bytes_done"):
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit("the load did not start within 60 s")


def timed(client: httpx.Client, path: str, **query: str) -> float:
    begun = time.perf_counter()
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - begun


def row(name: str, seconds: list[float]) -> list[str]:
    ordered = sorted(seconds)
    at = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95, 0.99, 1.0)]
    return [name, str(len(ordered)), *(f"{value * 1e3:.2f}" for value in at)]


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = expand(folder / "deepseek-v3")
        port = free_port()
        command = [Path(sys.executable).parent / "loadscope", "serve", folder / "deepseek-v3"]
        layout = ["--tp-size", "8", "--pp-size", "16", "--ranks", "8", "--port", str(port)]
        server = subprocess.Popen(
            [*map(str, command), *layout, "--state-dir", str(folder / "state")],
            env={**os.environ, "LOADSCOPE_PACE_S": str(PACE_S)},
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                wait_until_loading(client)
                measure(client, names)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(10)


def measure(client: httpx.Client, names: list[str]) -> None:
    pick = random.Random(1)
    health, mapping, search = [], [], []
    for number in range(REQUESTS):
        health.append(timed(client, "/healthz"))
        mapping.append(timed(client, "/mapping", name=pick.choice(names)))
        if number % 10 == 0:
            search.append(timed(client, "/mapping/search", q=f"experts.{pick.randrange(256)}.up"))
    state = client.get("/loads/1").json()["state"]
    assert state["status"] == "loading", state["status"]
    header = ["request", "n", "p50 ms", "p95 ms", "p99 ms", "max ms"]
    rows = [
        row("/healthz", health),
        row("/mapping of a tensor", mapping),
        row("/mapping/search", search),
    ]
    show("/mapping with a load running", "python benchmarks/mapping.py", header, rows)
    done, total = state["bytes_done"] / 1e9, state["bytes_total"] / 1e9
    print(f"{len(names):,} names in the plan; the load stood at {done:.1f} of {total:.1f} GB")


if __name__ == "__main__":
    main()
