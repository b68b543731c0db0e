"""docs/rl-updates.md is true: its commands and its Python, run in order against a real server."""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
from support.processes import Server, server

from loadscope.app.client import Client

PAGE = Path(__file__).parents[1] / "docs" / "rl-updates.md"
ADDRESS = "localhost:8787"
MARK = "--- end of the answer ---"
NEEDED = ("bash", "curl", "openssl", "base64")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, NEEDED)), reason=f"the page needs {', '.join(NEEDED)}"
)


class Step(NamedTuple):
    """One command, program or server of the page, and the output that it shows."""

    kind: str
    text: str
    expected: str


def steps_of(page: str) -> Iterator[Step]:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    for at, (kind, text) in enumerate(blocks):
        if kind == "console":
            yield from _commands(text)
        elif kind == "python":
            is_shown = at + 1 < len(blocks) and blocks[at + 1][0] == "text"
            yield Step(kind, text, blocks[at + 1][1] if is_shown else "")
        elif kind == "sh":
            yield Step(kind, text, "")
        else:
            assert kind == "text", kind


def _commands(block: str) -> Iterator[Step]:
    """As in a terminal: `$ ` begins a command, `> ` goes on with it, the rest is its answer."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        more = next(n for n, line in enumerate(lines[1:], 1) if not line.startswith("> "))
        command = [lines[0], *(line.removeprefix("> ") for line in lines[1:more])]
        yield Step("console", "\n".join(command), "\n".join(lines[more:]))


def agrees(expected: str, found: str) -> bool:
    """`…` stands for anything, also for nothing."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, found.strip(), flags=re.DOTALL) is not None


class Shell:
    """One bash for the whole page: what a command defines the next one has."""

    def __init__(self, folder: Path, path: str) -> None:
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={"PATH": path, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        """What it printed; nothing of it is lost if it fails."""
        stdin, stdout = self._pipes()
        stdin.write(f"{command}\necho; echo '{MARK}'\n")
        stdin.flush()
        lines = []
        for line in stdout:
            if line.strip() == MARK:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"bash ended: {''.join(lines)}")

    def close(self) -> None:
        stdin, stdout = self._pipes()
        stdin.close()
        self.process.wait(10)
        stdout.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout


class Reader:
    """Does what the page says, in a folder of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self._shell = Shell(folder, path)
        stack.callback(self._shell.close)
        self._names: dict[str, Any] = {}
        self._server: Server | None = None

    def do(self, step: Step) -> str:
        if step.kind == "sh":
            return self._serve(step.text)
        text = self._addressed(step.text)
        return self._shell.run(text) if step.kind == "console" else self._python(text)

    def _serve(self, text: str) -> str:
        program, *arguments = text.split()
        assert program == "loadscope"
        serving = server(*arguments, state_dir=self._folder / "state")
        self._server = self._stack.enter_context(serving)
        with Client(self._server.url) as client:
            assert client.wait("u-1").state == "active"
        return ""

    def _addressed(self, text: str) -> str:
        if self._server is None:
            return text
        return text.replace(ADDRESS, self._server.url.split("/")[2])

    def _python(self, text: str) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, str(PAGE), "exec"), self._names)
        return printed.getvalue()


STEPS = list(steps_of(PAGE.read_text()))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What each step printed; all are done once, in order."""
    folder = tmp_path_factory.mktemp("walk")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.chdir(folder)
        reader = Reader(folder, stack)
        yield [reader.do(step) for step in STEPS]


@pytest.mark.parametrize(
    "number", range(len(STEPS)), ids=lambda n: f"{n} {STEPS[n].text.split()[0]}"
)
def test_the_page_shows_what_happens(number: int, outputs: list[str]) -> None:
    step, found = STEPS[number], outputs[number]
    assert agrees(step.expected, found), f"{step.text}\nprinted\n{found[:3000]}"


def test_every_curl_of_the_page_is_run() -> None:
    shown = sum(line.count("curl ") for line in PAGE.read_text().splitlines() if line[:2] == "$ ")
    assert sum(step.text.count("curl ") for step in STEPS if step.kind == "console") == shown > 20
