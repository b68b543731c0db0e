"""What the commands print: verdict first, then tables; data to stdout, the rest to stderr."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadscope.app.units import seconds_text, size_text
from loadscope.loader.topology import compact
from loadscope.loader.views import is_expected

VERDICT_STYLE = {"pass": "bold green", "fail": "bold red", "pending": "bold yellow"}
MAX_SOURCES = 40
SWITCHES = ("fuse_shared_experts", "deepgemm_bmm", "nvfp4_attention_fp8", "nextn_moe_fp8")
LEVEL_STYLE = {"error": "red", "warning": "yellow", "note": "cyan"}

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def log_to_stderr() -> None:
    """Show what the process reports, and nothing of the libraries below warning."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("loadscope").setLevel(logging.INFO)


def print_json(document: object) -> None:
    # plain print of the console: one document, nothing coloured or wrapped
    stdout.print(Text(json.dumps(document, indent=2)), soft_wrap=True)


def print_plan(document: Mapping[str, Any]) -> None:
    """The plan for a person: verdict, model, totals, ranks, findings."""
    totals, layout = document["totals"], document["layout"]
    stdout.print(verdict_line(document["verdict"], plan_sentence(document)))
    stdout.print(Text(model_line(document)))
    sizes = ", ".join(f"{key.removesuffix('_size')} {layout[key]}" for key in layout)
    stdout.print(Text(f"layout {sizes}; digest {document['digest'][:16]}"))
    stdout.print(Text(f"role {document['role']}; {options_text(document['options'])}"))
    stdout.print(_totals(totals))
    if totals["skips"]:
        stdout.print(Text(f"skipped: {skips_text(totals['skips'])}"))
    if document["ranks"]:
        stdout.print(_ranks(document["ranks"]))
    print_findings(document["findings"])


def options_text(options: Mapping[str, Any]) -> str:
    """Options that were chosen: platform cuda, no indexer fusion, set num_hidden_layers=4."""
    words = [f"platform {options['platform']}"]
    words += [] if options["indexer_fusion"] else ["no indexer fusion"]
    words += [name.replace("_", " ") for name in SWITCHES if options[name]]
    if options["quantization"] is not None:
        words.append(f"quantization {options['quantization']}")
    words += [f"set {field}={value}" for field, value in options["overrides"]]
    return ", ".join(words)


def verdict_line(verdict: str, sentence: str) -> Text:
    return Text.assemble((verdict.upper(), VERDICT_STYLE[verdict]), f"  {sentence}")


def plan_sentence(document: Mapping[str, Any]) -> str:
    """What the plan promises, in one line."""
    errors = [one for one in document["findings"] if one["level"] == "error"]
    if errors:
        more = f" (and {len(errors) - 1:,} more errors below)" if len(errors) > 1 else ""
        return f"{errors[0]['message']}{more}"
    totals = document["totals"]
    skipped, ranks = totals["outcomes"]["skipped"], document["layout"]["ranks"]
    return (
        f"every element of {totals['parameters']['checkpoint']:,} parameters will be written "
        f"exactly once on {ranks} {'rank' if ranks == 1 else 'ranks'}; {skipped:,} tensors skipped"
    )


def skips_text(skips: Mapping[str, int]) -> str:
    """Reasons with counts, each said to be expected or not."""
    return ", ".join(
        f"{count:,} {reason} ({'expected' if is_expected(reason) else 'unexpected'})"
        for reason, count in skips.items()
    )


def model_line(document: Mapping[str, Any]) -> str:
    model = document["model"]
    if model is None:
        return f"{document['checkpoint']}: model unknown"
    return (
        f"{document['checkpoint']}: {model['model_type']}, {model['num_hidden_layers']} layers, "
        f"{model['n_routed_experts'] or 0} experts, {document['format']}"
    )


def _totals(totals: Mapping[str, Any]) -> Table:
    table = Table("tensors", "bytes", *totals["outcomes"], "parameters", box=None)
    fills = ", ".join(f"{count:,} {fill}" for fill, count in totals["parameters"].items() if count)
    counts = [f"{count:,}" for count in totals["outcomes"].values()]
    table.add_row(f"{totals['tensors']:,}", size_text(totals["bytes"]), *counts, fills)
    return table


def _ranks(ranks: Iterable[Mapping[str, Any]]) -> Table:
    """Ranks that hold and read the same share a row."""
    table = Table("ranks", "layers", "parameters", "memory", "read", box=None)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in ranks:
        sizes = [size_text(row[key]) for key in ("parameter_bytes", "read_bytes")]
        groups.setdefault((row["layers"], f"{row['parameters']:,}", *sizes), []).append(row["rank"])
    for cells, members in groups.items():
        table.add_row(compact(members), *cells)
    return table


def print_findings(findings: Iterable[Mapping[str, Any]]) -> None:
    """Each with its message and what to do; grouped by pattern already."""
    for one in findings:
        count = f" ({one['count']:,} names)" if one["count"] > 1 else ""
        stdout.print(
            Text.assemble(
                (one["level"], LEVEL_STYLE[one["level"]]),
                f" {one['code']}  {one['message']}{count}\n    fix: {one['fix']}",
            )
        )


def print_mapping(document: Mapping[str, Any]) -> None:
    """One name's journey, forward or backward."""
    reason = f" ({document['reason']})" if document.get("reason") else ""
    head = f"{document['name']}: {document['outcome'] or document['direction']}{reason}"
    stdout.print(Text(head, style="bold"))
    place = [str(document[key]) for key in ("file", "dtype", "shape") if document.get(key)]
    stdout.print(Text("  " + "  ".join(place)))
    for step in document.get("steps", ()):
        stdout.print(Text(f"  {step['rule']}: {step['before']} -> {step['after']}"))
    if pair := document.get("pair"):
        stdout.print(Text(f"  pair: {pair['with']} ({pair['state']})"))
    for place in document.get("destinations", ()):
        stdout.print(Text(f"  to {place['param']}  {_slice_line(place)}"))
    sources = document.get("sources", ())
    for source in sources[:MAX_SOURCES]:
        slices = "; ".join(_slice_line(one) for one in source.get("slices", ()))
        stdout.print(Text(f"  from {source['name']}  {slices}"))
    if len(sources) > MAX_SOURCES:
        stdout.print(Text(f"  and {len(sources) - MAX_SOURCES:,} more sources (--json has all)"))
    for derived in document.get("derived", ()):
        stdout.print(Text(f"  derives {derived['name']} by {derived['kernel']}"))


def _slice_line(one: Mapping[str, Any]) -> str:
    """Where one rank reads and writes: rank 1 [0:256, 0:64] -> [5:6, 0:256, 0:64]."""
    source, target = (
        ", ".join(f"{start}:{stop}" for start, stop in one[key])
        for key in ("source_slice", "target_slice")
    )
    return f"rank {one['rank']} [{source}] -> [{target}]"


def print_suggestions(name: str, suggestions: Iterable[str]) -> None:
    stderr.print(Text(f"{name}: no such tensor or parameter; nearest names:"))
    for suggestion in suggestions:
        stderr.print(Text(f"  {suggestion}"))


def load_line(document: Mapping[str, Any]) -> Text:
    """The last line of a load: what was proven, and how fast it went."""
    seconds = document["elapsed_s"]
    mean = document["mean_bps"]
    speed = f", {size_text(mean)}/s" if mean else ""
    tail = f"; {size_text(document['bytes_done'])} in {seconds_text(seconds)}{speed}"
    return verdict_line(document["verdict"], document["sentence"] + tail)
