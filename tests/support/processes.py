"""The console script in processes of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 30.0
COMMAND = (sys.executable, "-c", "from loadscope.app.cli import main; main()")


class Server:
    """A running server: its address, what it has printed, its end."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self.url + path.lstrip("/"), timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def stream(self) -> Any:
        """An open event stream whose first frame has come."""
        stream = urllib.request.urlopen(self.url + "events/stream", timeout=10)
        assert stream.readline() == b"event: snapshot\n"
        return stream

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Seconds from the signal to the end of the process."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=20)
        return time.monotonic() - began


@contextmanager
def server(
    *arguments: str, state_dir: Path | None = None, temporary: Path | None = None
) -> Iterator[Server]:
    """A `serve` or `demo` on a free port; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--port", "0", *state(state_dir)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1", **({"TMPDIR": str(temporary)} if temporary else {})},
    )
    try:
        yield Server(process, _address(process))
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    printed = []
    for line in process.stderr:
        printed.append(line)
        if found := re.search(r"http://\S+/", line):
            return found.group()
    raise AssertionError("".join(printed))


def run(*arguments: str, state_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments, *state(state_dir)],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )


def state(state_dir: Path | None) -> list[str]:
    return [] if state_dir is None else ["--state-dir", str(state_dir)]
