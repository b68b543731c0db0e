"""The command line: what it prints, the codes it ends with, and servers as real processes."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import pack_path
from support import processes
from support.golden_checkpoint import write_golden_checkpoint
from typer.testing import CliRunner

from loadscope.app.cli import app
from loadscope.app.plan_options import Platform
from loadscope.app.rank_choice import choose_ranks, parse_ranks
from loadscope.app.settings import Settings, make_settings
from loadscope.loader.plan import PLATFORMS

GATE = "model.layers.1.mlp.experts.5.gate_proj.weight"
LITE = str(pack_path("deepseek-v2-lite"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden_checkpoint("v3-fp8-block", tmp_path_factory.mktemp("disk") / "small-v3")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_plan_says_the_verdict_first(model: Path) -> None:
    done = run("plan", model)
    assert done.exit_code == 0
    assert done.stdout.startswith("PASS  every element of")
    assert "small-v3: deepseek_v3" in done.stdout
    assert "fix:" in done.stdout


def test_plan_json_is_one_document_on_stdout(model: Path) -> None:
    done = run("plan", model, "--tp-size", 2, "--ep-size", 2, "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, done.stderr, document["verdict"]) == (0, "", "pass")
    assert document["layout"] == {"tp_size": 2, "ep_size": 2, "pp_size": 1, "ranks": 2}
    assert set(document) >= {"model", "digest", "totals", "ranks", "findings", "seconds"}


def test_plan_opens_a_header_pack() -> None:
    done = run("plan", LITE, "--tp-size", 4)
    assert (done.exit_code, done.stdout[:4]) == (0, "PASS")


def test_an_illegal_layout_is_a_finding() -> None:
    done = run("plan", LITE, "--tp-size", 32)
    assert (done.exit_code, done.stdout[:4]) == (1, "FAIL")
    assert "LS2" in done.stdout


def test_set_overrides_the_config() -> None:
    done = run("plan", LITE, "--set", "num_hidden_layers=2", "--json")
    document = json.loads(done.stdout)
    assert document["model"]["num_hidden_layers"] == 2
    assert any(one["code"] == "LS209" for one in document["findings"])


def test_plan_names_the_role_and_the_options(model: Path) -> None:
    document = json.loads(run("plan", model, "--draft", "--platform", "cpu", "--json").stdout)
    assert (document["role"], document["options"]["platform"]) == ("draft", "cpu")
    assert (document["options"]["draft"], document["options"]["quantization"]) == (True, None)
    text = run("plan", model, "--draft", "--no-indexer-fusion", "--set", "rope_theta=1").stdout
    assert "role draft; platform cuda, no indexer fusion, set rope_theta=1" in text


@pytest.mark.parametrize(
    ("flag", "field", "value"),
    [
        ("--draft", "draft", True),
        ("--fuse-shared-experts", "fuse_shared_experts", True),
        ("--deepgemm-bmm", "deepgemm_bmm", True),
        ("--nvfp4-attention-fp8", "nvfp4_attention_fp8", True),
        ("--nextn-moe-fp8", "nextn_moe_fp8", True),
        ("--quantization=fp8", "quantization", "fp8"),
    ],
)
def test_every_option_reaches_the_plan(model: Path, flag: str, field: str, value: object) -> None:
    asked = json.loads(run("plan", model, flag, "--json").stdout)
    plain = json.loads(run("plan", model, "--json").stdout)
    assert asked["options"] == {**plain["options"], field: value}


def test_explain_tells_the_way_into_the_draft(model: Path) -> None:
    name = "model.layers.3.eh_proj.weight"
    document = json.loads(run("explain", model, name, "--draft", "--json").stdout)
    assert (document["role"], document["outcome"]) == ("draft", "loaded")
    assert "skipped (beyond_model)" in run("explain", model, name).stdout


@pytest.mark.parametrize("name", [GATE, "model.layers.1.mlp.experts.w13_weight"])
def test_explain_tells_the_way_of_a_name(model: Path, name: str) -> None:
    done = run("explain", model, name, "--tp-size", 2)
    assert done.exit_code == 0
    assert done.stdout.startswith(name)
    assert "rank 1" in done.stdout
    document = json.loads(run("explain", model, name, "--json").stdout)
    assert (document["name"], document["events"], document["load"]) == (name, [], None)


def test_explain_of_an_unknown_name_suggests(model: Path) -> None:
    done = run("explain", model, GATE.replace("gate_proj", "gate_prj"), "--json")
    assert done.exit_code == 1
    assert GATE in json.loads(done.stdout)["suggestions"]


def test_load_proves_and_records(model: Path, tmp_path: Path) -> None:
    prints = tmp_path / "prints.json"
    done = run(
        "load", model, "--tp-size", 2, "--rank", 1, "--state-dir", tmp_path / "state",
        "--fingerprints", prints, "--json",
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert (done.exit_code, document["verdict"], document["status"]) == (0, "pass", "finished")
    assert [row["rank"] for row in document["ranks"]] == [1]
    written = json.loads(prints.read_text())
    assert set(written) == {"params", "derived", "scalars", "flags", "tensors", "findings"}
    param = written["params"]["model.norm.weight"]
    assert param["written"] == param["numel"]
    again = run("load", model, "--state-dir", tmp_path / "state")
    assert again.stdout.splitlines()[-1].startswith("PASS")
    assert "fully written" in again.stdout.splitlines()[-1]


def test_the_draft_is_loaded_and_fingerprinted(model: Path, tmp_path: Path) -> None:
    prints = tmp_path / "prints.json"
    done = run(
        "load", model, "--draft", "--state-dir", tmp_path / "state", "--fingerprints", prints,
        "--json",
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert (done.exit_code, document["verdict"], document["role"]) == (0, "pass", "draft")
    params = json.loads(prints.read_text())["params"]
    assert "model.eh_proj.weight" in params
    assert "model.embed_tokens.weight" not in params
    assert all(
        one["written"] == one["numel"] for one in params.values() if one["fill"] != "initial"
    )


def test_a_load_that_is_refused_ends_with_1(tmp_path: Path) -> None:
    folder = write_golden_checkpoint("v3-bf16", tmp_path / "broken")
    min(folder.glob("*.safetensors")).unlink()
    done = run("load", folder, "--state-dir", tmp_path / "state")
    assert done.exit_code == 1
    assert "LS101" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAIL  refused before a byte was read")
    assert run("load", LITE, "--state-dir", tmp_path / "state").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "{model}", "--tp-size", "0"), "tp_size is 0"),
        (("plan", "{model}", "--tp-size", "x"), "--tp-size"),
        (("plan", "{model}", "--attn-dp-size", "2"), "No such option"),
        (("serve", "{model}", "--roles", ""), "expected target, draft, or target,draft"),
        (("serve", "{model}", "--roles", "teacher"), "'teacher' in 'teacher'"),
        (("serve", "{model}", "--roles", "draft,draft"), "named twice"),
        (("serve", "{model}", "--draft", "--roles", "target,draft"), "use --roles target,draft"),
        (("load", "{model}", "--roles", "draft"), "No such option"),
        (("plan", "{model}", "--set", "nonsense"), "FIELD=VALUE"),
        (("plan", "{model}", "--platform", "abacus"), "abacus"),
        (("plan", "{empty}"), "empty"),
        (("plan", "{empty}/nothing"), "nothing: no such file"),
        (("plan",), "MODEL"),
        (("load", "{model}", "--rank", "1"), "ranks 0 to 0"),
        (("load", "{model}", "--fingerprints", "{empty}/no/where.json"), "where.json"),
        (("explain", "{empty}", "x"), "empty"),
        (("serve", "{empty}"), "empty"),
        (("serve",), "--root"),
        (("serve", "--root", "{empty}/nothing"), "nothing"),
        (("serve", "{model}", "--ranks", "3"), "ranks 0 to 0"),
        (("serve", "{model}", "--ranks", "a-b"), "0,2-3"),
        (("serve", "{model}", "--host", "0.0.0.0"), "--insecure"),
        (("serve", "{model}", "--port", "99999"), "--port"),
        (("load", "{model}", "--device", "cuda"), "no CUDA device"),
        (("serve", "{model}", "--device", "cuda", "--port", "0"), "no CUDA device"),
        (("demo", "--host", "192.168.0.1"), "--insecure"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what(
    model: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run(*(text.format(model=model, empty=empty) for text in arguments))
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_unknown_environment_variables_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOADSCOPE_PROT", "1234")
    done = run("load", model, "--state-dir", tmp_path)
    assert done.exit_code == 2
    assert "LOADSCOPE_PROT" in done.stderr


def test_the_environment_sets_what_the_command_line_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOADSCOPE_PORT", "1234")
    assert make_settings(port=None).port == 1234
    assert make_settings(port=99).port == 99
    with pytest.raises(ValueError, match="hots"):
        make_settings(hots="x")
    assert Settings().host == "127.0.0.1"


def test_the_platforms_are_those_of_the_plan() -> None:
    assert tuple(platform.value for platform in Platform) == PLATFORMS


@pytest.mark.parametrize(
    ("text", "ranks"), [("all", (0, 1, 2, 3)), ("0", (0,)), ("2-3,0", (0, 2, 3)), ("1, 1", (1,))]
)
def test_ranks_are_read(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text, 4) == ranks


@pytest.mark.parametrize("text", ["", "4", "-1", "3-", "2-1", "a", "0,,1", "1-9"])
def test_ranks_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ranks"):
        parse_ranks(text, 4)


@pytest.mark.parametrize(
    ("text", "available", "ranks"),
    [(None, 20, (0, 1)), (None, 19, (0,)), (None, None, (0,)), ("1", 0, (1,)), ("all", 0, (0, 1))],
)
def test_all_ranks_that_fit_are_held(
    text: str | None, available: int | None, ranks: tuple[int, ...]
) -> None:
    assert choose_ranks(text, {0: 10, 1: 10}, available) == ranks


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[processes.Server]:
    state_dir = tmp_path_factory.mktemp("state")
    with processes.server("serve", str(model), state_dir=state_dir) as server:
        yield server


def test_a_real_server_loads_and_answers(served: processes.Server) -> None:
    deadline = time.monotonic() + 20
    while not served.get("/readyz")["ready"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert served.get("/loads/1")["verdict"] == "pass"
    assert served.get("/mapping?name=" + GATE)["load"] == 1


def test_a_second_server_on_one_state_directory_is_refused(
    served: processes.Server, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state_dir = next(Path(tmp_path_factory.getbasetemp()).glob("state*"))
    done = processes.run("serve", str(model), "--port", "0", state_dir=state_dir)
    assert done.returncode == 2
    assert "another server uses the state directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", model, "--port", port, "--state-dir", tmp_path)
    assert done.exit_code == 2
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr


def test_sigterm_ends_open_streams_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with processes.server("demo", "--seconds", "60", temporary=tmp_path) as server:
        stream = server.stream()
        assert list(tmp_path.iterdir())
        assert server.stop() < 2.0
        rest: Any = stream.read()
    assert rest.endswith(b'event: bye\ndata: {"reason": "server-shutdown"}\n\n')
    assert list(tmp_path.iterdir()) == []
