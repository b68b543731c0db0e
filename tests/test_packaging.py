"""The built wheel works away from the source tree, and so does the editable install."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACK = ROOT / "tests" / "data" / "headers" / "deepseek-v2-lite.headers.json.gz"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

SERVES_PAGES = """
from pathlib import Path
from starlette.testclient import TestClient
import loadscope.app
from loadscope.app.main import create_app
from loadscope.app.settings import Settings
client = TestClient(create_app(Settings(state_dir=Path("state"))), base_url="http://localhost")
page = client.get("/ui/")
assert page.status_code == 200, page.text
links = [part.split('"')[0] for part in page.text.split('href="')[1:] if "/static/" in part]
assert links and all(client.get(link).status_code == 200 for link in links), links
print(loadscope.app.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def source_copy(folder: Path) -> Path:
    """The tree that is built, without what earlier builds left in it."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("app", "kernels", "loader", "templates"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; dependencies come from the running one."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = source_copy(folder / "source")
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(copy)]
    run(*PIP, *build, cwd=folder)
    wheel = next(folder.glob("loadscope-*.whl"))
    environment = folder / "env"
    venv.create(environment, with_pip=False)
    site = next(environment.glob("lib/python*/site-packages"))
    # a path file inside an added folder is not read: the editable install stays out of sight
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = environment / "bin" / "python"
    run(*PIP, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    return environment


def test_the_wheel_plans_from_its_command(installed: Path, tmp_path: Path) -> None:
    document = json.loads(run(installed / "bin/loadscope", "plan", PACK, "--json", cwd=tmp_path))
    assert document["verdict"] == "pass"


def test_the_wheel_serves_its_templates_and_static_files(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "bin/python", "-c", SERVES_PAGES, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)


def test_the_editable_install_plans_from_its_command(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "loadscope"
    document = json.loads(run(command, "plan", PACK, "--json", cwd=tmp_path))
    assert document["verdict"] == "pass"
