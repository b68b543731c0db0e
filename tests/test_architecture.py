"""Rules of the house: who imports whom, what planning costs, what every finding has."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadscope.loader.findings import CODES

ROOT = Path(__file__).parents[1]
EFFECTS = {
    "change",
    "checksums",
    "convert",
    "copies",
    "derive",
    "execute",
    "fingerprints",
    "freshness",
    "fuse",
    "gather",
    "identity",
    "keeper",
    "parameters",
    "rank_load",
    "read",
    "revert",
    "staging",
    "undo",
    "update",
    "write",
}
EFFECT_LIBRARIES = {"torch", "safetensors", "numpy", "xxhash"}
KERNEL_LIBRARIES = {"torch", "triton"}
HEAVY = ("torch", "fastapi", "transformers", "numpy", "safetensors")


def modules_of(package: str) -> dict[str, Path]:
    """Every module below a folder by its dotted name without the package."""
    root = ROOT / package
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in sorted(root.rglob("*.py"))
    }


def is_effectful(name: str) -> bool:
    return name.partition(".")[0] in EFFECTS


LOADER = modules_of("loader")
PURE = sorted(name for name in LOADER if not is_effectful(name))
IMPURE = sorted(name for name in LOADER if is_effectful(name))
APP = modules_of("app")


def imports_of(path: Path) -> Iterator[str]:
    """Full names of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign(path: Path, allowed: set[str]) -> list[str]:
    """Imports that are neither the standard library nor allowed."""
    return [
        name
        for name in imports_of(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not any(name == ok or name.startswith(ok + ".") for ok in allowed)
    ]


@pytest.mark.parametrize("name", PURE)
def test_a_pure_loader_module_imports_only_pure_loader_modules(name: str) -> None:
    effects = [
        used
        for used in imports_of(LOADER[name])
        if used.startswith("loadscope.loader.")
        and is_effectful(used.removeprefix("loadscope.loader."))
    ]
    assert foreign(LOADER[name], {"loadscope.loader"}) + effects == []


@pytest.mark.parametrize("name", IMPURE)
def test_an_effectful_loader_module_knows_nothing_of_the_web(name: str) -> None:
    allowed = {"loadscope.loader", "loadscope.kernels", *EFFECT_LIBRARIES}
    assert foreign(LOADER[name], allowed) == []


@pytest.mark.parametrize("name", sorted(modules_of("kernels")))
def test_a_kernel_imports_only_torch_and_triton(name: str) -> None:
    allowed = {"loadscope.kernels", *KERNEL_LIBRARIES}
    assert foreign(modules_of("kernels")[name], allowed) == []


@pytest.mark.parametrize("name", sorted(modules_of("kernels")))
def test_a_kernel_module_imports_without_triton(name: str) -> None:
    tree = ast.parse(modules_of("kernels")[name].read_text())
    at_import = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = [alias.name for n in at_import if isinstance(n, ast.Import) for alias in n.names]
    names += [n.module or "" for n in at_import if isinstance(n, ast.ImportFrom)]
    assert not [used for used in names if used.partition(".")[0] == "triton"]


@pytest.mark.parametrize("name", sorted(name for name in APP if name.startswith("panels.")))
def test_a_panel_imports_only_pure_loader_modules_and_panels(name: str) -> None:
    pure = {f"loadscope.loader.{module}" for module in PURE if module != "__init__"}
    assert foreign(APP[name], pure | {"loadscope.app.panels"}) == []


def test_only_jobs_runs_loads() -> None:
    users = {
        name
        for name, path in APP.items()
        if any(used.startswith("loadscope.loader.execute") for used in imports_of(path))
    }
    assert users == {"jobs"}


def test_planning_in_a_fresh_interpreter_needs_no_heavy_library() -> None:
    pack = ROOT / "tests" / "data" / "headers" / "deepseek-v2-lite.headers.json.gz"
    code = f"""
import sys
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.explain import explain
from loadscope.loader.plan import make_plan
plan = make_plan(open_checkpoint({str(pack)!r}))
assert explain(plan, "model.embed_tokens.weight") is not None
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def documented_codes() -> list[str]:
    """Codes that head an entry of docs/findings.md, in order."""
    text = (ROOT / "docs" / "findings.md").read_text()
    return re.findall(r"^(?:#+ |\| ?)`?(LS\d{3})", text, flags=re.MULTILINE)


def test_every_finding_code_has_one_entry_in_the_docs() -> None:
    assert sorted(documented_codes()) == sorted(CODES)


def test_every_finding_code_is_used() -> None:
    paths = [path for name, path in LOADER.items() if name != "findings"] + list(APP.values())
    sources = "".join(path.read_text() for path in paths)
    assert [code for code in CODES if f'"{code}"' not in sources] == []
