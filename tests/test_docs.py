"""The documents say what is: their examples run, and what they name exists."""

import ast
import doctest
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from support.golden_checkpoint import write_golden_checkpoint
from support.updates import weights_of

from loadscope.app.plan_options import PlanOptions
from loadscope.loader.events import SKIP_MEANINGS
from loadscope.loader.families import BUILDERS
from loadscope.loader.formats import READERS
from loadscope.loader.model import MODEL_TYPES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]
LOADER = sorted((ROOT / "loader").glob("*.py"))
APP = sorted((ROOT / "app").glob("*.py"))
VARIANT = "v32-fp8-block"


def text_of(name: str) -> str:
    return (DOCS / name).read_text()


def quoted(name: str) -> set[str]:
    """Everything that a document sets in code type, outside its blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text_of(name), flags=re.DOTALL)))


def names_of_tests() -> set[str]:
    """Test modules, and the test functions in them."""
    found = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        found.add(path.stem)
        nodes = ast.walk(ast.parse(path.read_text()))
        found |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return found


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """The tensors are tiny: threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What README.md takes for the reader's own."""
    return write_golden_checkpoint(VARIANT, tmp_path_factory.mktemp("docs") / VARIANT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("_one_thread")
def test_the_examples_of_a_document_are_true(
    page: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    own = {"DIR": checkpoint, "weights": weights_of(checkpoint).items()}
    failed, _tried = doctest.testfile(str(page), module_relative=False, globs=own)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_document_names_exists(page: Path) -> None:
    named = set(re.findall(r"\btest_[a-z0-9_]+", page.read_text()))
    assert named - names_of_tests() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_document_names_exists(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    paths = re.findall(
        r"\b(?:docs|app|loader|tests|kernels|benchmarks)/[\w./-]*\w", page.read_text()
    )
    wanted = [page.parent / link for link in links] + [ROOT / path for path in paths]
    assert [str(path) for path in wanted if not path.exists()] == []


def test_every_format_is_documented() -> None:
    assert READERS.keys() - quoted("formats.md") == set()


def test_every_family_is_documented() -> None:
    assert BUILDERS.keys() - quoted("formats.md") == set()
    assert [name for name in MODEL_TYPES if name not in text_of("formats.md")] == []


def test_every_option_of_a_plan_is_documented() -> None:
    options = {"--" + one.name.strip("_").replace("_", "-") for one in fields(PlanOptions)}
    named = {word for code in quoted("formats.md") for word in code.split()}
    assert options - named == set()


def test_every_reason_for_a_skip_is_in_the_glossary() -> None:
    sources = [p.read_text() for p in (ROOT / "loader").rglob("*.py") if p.stem != "events"]
    given = {reason for reason in SKIP_MEANINGS if any(f'"{reason}"' in text for text in sources)}
    assert given - quoted("glossary.md") == set()


def test_every_loader_module_is_in_the_architecture() -> None:
    modules = {path.stem for path in LOADER if path.stem != "__init__"}
    assert modules - quoted("architecture.md") == set()


def test_every_app_module_is_in_the_architecture() -> None:
    modules = {path.stem for path in APP if path.stem != "__init__"}
    assert modules - quoted("architecture.md") == set()


@pytest.mark.parametrize(
    "label", [*(f"A{n}" for n in range(1, 41)), *(f"D{n}" for n in range(1, 6))]
)
def test_every_trap_of_the_reference_is_answered(label: str) -> None:
    assert re.search(rf"\b{label}\b", text_of("differences.md"))
