"""The command line: serve, plan, explain, load, demo. Exit code 0 fine, 1 findings, 2 usage."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from loadscope.app import options as opt
from loadscope.app import output
from loadscope.app.plan_document import plan_document
from loadscope.app.plan_options import PlanOptions, with_plan_options
from loadscope.loader.explain import explain as explain_name
from loadscope.loader.explain import suggest
from loadscope.loader.plan import Plan, make_plan

FAILED = 1
DEMO_SECONDS = 20.0
HELP = "A DeepSeek-family weight loader that accounts for every byte."
app = typer.Typer(
    help=HELP, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)


def main() -> None:
    app()


def _planned(model: Path, shape: PlanOptions) -> Plan:
    layout, options = shape.layout(), shape.options()
    return make_plan(opt.open_or_refuse(model), layout, options)


@app.command()
@with_plan_options
def plan(model: opt.Model, shape: PlanOptions, json: opt.Json = False) -> None:
    """Prove from headers alone that every parameter will be written exactly once."""
    made = _planned(model, shape)
    document = plan_document(made)
    if json:
        output.print_json(document)
    else:
        output.print_plan(document)
    raise typer.Exit(0 if made.verdict == "pass" else FAILED)


@app.command()
@with_plan_options
def explain(
    model: opt.Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a checkpoint tensor or a parameter")],
    shape: PlanOptions,
    json: opt.Json = False,
) -> None:
    """Say where one tensor goes and why, or what fills one parameter."""
    made = _planned(model, shape)
    document = explain_name(made, name)
    if document is None:
        suggestions = suggest(made, name)
        output.print_suggestions(name, suggestions)
        if json:
            output.print_json({"query": name, "outcome": None, "suggestions": suggestions})
        raise typer.Exit(FAILED)
    if json:
        output.print_json({**document, "events": [], "load": None})
    else:
        output.print_mapping(document)


@app.command()
@with_plan_options
def load(
    model: opt.Model,
    shape: PlanOptions,
    rank: Annotated[int, typer.Option("--rank", help="the rank to load")] = 0,
    device: opt.DeviceOption = None,
    fingerprints: Annotated[
        Path | None, typer.Option("--fingerprints", help="write a hash of every parameter there")
    ] = None,
    check_reload: Annotated[
        bool, typer.Option("--check-reload", help="load again and say whether all is the same")
    ] = False,
    state_dir: opt.StateDir = None,
    json: opt.Json = False,
) -> None:
    """Load one rank, record the load, and prove that every element was written."""
    from loadscope.app.identity_command import print_identity
    from loadscope.app.load_command import load_once

    layout = shape.layout()
    if not 0 <= rank < layout.world:
        opt.refuse(f"--rank {rank}: this layout has ranks 0 to {layout.world - 1}")
    checkpoint = opt.open_or_refuse(model)
    settings = opt.settings_or_refuse(
        model=model,
        origin="load",
        state_dir=state_dir,
        device=device,
        ranks=str(rank),
        roles=opt.roles_or_refuse(None, draft=shape.draft),
        layout=layout,
        options=shape.options(),
    )
    output.log_to_stderr()
    target = opt.writable_or_refuse(fingerprints)
    document = load_once(
        settings, checkpoint, target, check_again=check_reload, show_progress=not json
    )
    again = document.get("reload_identity")
    if json:
        output.print_json(document)
    else:
        output.print_findings(document["findings"])
        output.stdout.print(output.load_line(document))
        if again is not None:
            print_identity(again)
    is_fine = document["status"] == "finished" and (again is None or again["verdict"] == "pass")
    raise typer.Exit(0 if is_fine else FAILED)


@app.command()
@with_plan_options
def serve(
    shape: PlanOptions,
    model: opt.OptionalModel = None,
    host: opt.Host = None,
    port: opt.Port = None,
    root: Annotated[
        list[Path] | None, typer.Option("--root", help="folder that reloads may read from")
    ] = None,
    state_dir: opt.StateDir = None,
    device: opt.DeviceOption = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", help="0,2-3 or all; all that fit if left out")
    ] = None,
    roles: opt.Roles = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="allow a --host that others can reach, without a key")
    ] = False,
    api_key_file: opt.ApiKeyFile = None,
    spool_dir: opt.SpoolDir = None,
    memory_budget: opt.MemoryBudget = None,
) -> None:
    """Load a checkpoint and show the load live; answer questions about it over HTTP."""
    from loadscope.app.serve_command import run_server

    layout = shape.layout()
    settings = opt.settings_or_refuse(
        model=model,
        roots=opt.roots_or_refuse(root, model),
        state_dir=state_dir,
        host=host,
        port=port,
        insecure=insecure or None,
        api_key=opt.api_key_or_refuse(api_key_file),
        spool_dir=opt.spool_dir_or_refuse(spool_dir),
        memory_budget_bytes=opt.size_or_refuse("--memory-budget", memory_budget),
        device=device,
        ranks=opt.ranks_or_refuse(ranks, layout),
        roles=opt.roles_or_refuse(roles, draft=shape.draft),
        layout=layout,
        options=shape.options(),
    )
    checkpoint = opt.open_or_refuse(model) if model is not None else None
    output.log_to_stderr()
    run_server(settings, checkpoint)


@app.command()
def demo(
    host: opt.Host = None,
    port: opt.Port = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="how long the load shall take")
    ] = DEMO_SECONDS,
    roles: opt.Roles = None,
    api_key_file: opt.ApiKeyFile = None,
    spool_dir: opt.SpoolDir = None,
    memory_budget: opt.MemoryBudget = None,
) -> None:
    """Make a small true DeepSeek-V3 checkpoint, load it slowly enough to watch, serve the page."""
    from loadscope.app.demo_checkpoint import write_demo_checkpoint
    from loadscope.app.serve_command import run_server

    output.log_to_stderr()
    with tempfile.TemporaryDirectory(prefix="loadscope-demo-") as folder:
        model = Path(folder) / "demo"
        settings = opt.settings_or_refuse(
            model=model,
            roots=(model,),
            origin="demo",
            state_dir=Path(folder) / "state",
            host=host,
            port=port,
            api_key=opt.api_key_or_refuse(api_key_file),
            spool_dir=opt.spool_dir_or_refuse(spool_dir),
            memory_budget_bytes=opt.size_or_refuse("--memory-budget", memory_budget),
            roles=opt.roles_or_refuse(roles, draft=False),
            pace_s=seconds,
        )
        write_demo_checkpoint(model)
        run_server(settings, opt.open_or_refuse(model))
