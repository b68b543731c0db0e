"""The weights as they stand in memory: checksums of all of them, and one tensor looked at."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response

from loadscope.app import weights_reader
from loadscope.app.api.examples import problem
from loadscope.app.api.requests import Json, Rank, RoleName, example
from loadscope.app.services import ServicesDep

router = APIRouter(tags=["weights"])
MAX_NAMES = 60_000
Q_A = "model.layers.0.self_attn.q_a_proj.weight"
FUSED = "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"
WK = "model.layers.0.self_attn.indexer.wk.weight"
OVERALL = "5b1e00c2a4f94d1c8a1f5f0d3c2b1a09"
STANDING = {"version": "128", "epoch": 24}
CHECKSUMS: dict[str, Any] = {
    "scope": "hf",
    "algorithm": "xxh3-128",
    **STANDING,
    "overall": OVERALL,
    "tensors": {Q_A: "e4c191d091bd8853e5cf9e1a3b2c6d70"},
    "not_comparable": {WK: "converted on its way: dequantise_block"},
}
WEIGHT: dict[str, Any] = {
    "name": Q_A,
    "kind": "tensor",
    "role": "target",
    "rank": None,
    "dtype": "F8_E4M3",
    "shape": [1536, 7168],
    "shards": [
        {
            "rank": 0,
            "param": FUSED,
            "source_slice": [[0, 1536], [0, 7168]],
            "target_slice": [[0, 1536], [0, 7168]],
        }
    ],
    "slice": [[0, 2], [0, 3]],
    "algorithm": "xxh3-128",
    "stats": {
        "min": -448.0, "max": 448.0, "mean": 0.01, "rms": 61.5, "nan": 0, "inf": 0, "zeros": 412,
    },
    "values": [[-12.0, 0.5, 96.0], [3.25, -0.0625, 44.0]],
    "checksum": "e4c191d091bd8853e5cf9e1a3b2c6d70",
    "replicas_agree": True,
    "disagreeing": [],
    "reason": None,
    **STANDING,
}  # fmt: skip
REFUSALS: dict[int | str, dict[str, Any]] = {
    404: problem(404, "unknown-name", f"{Q_A} names no tensor here", suggestions=[Q_A]),
    409: problem(409, "weights-changing", "the weights are being written: ask again"),
    503: problem(503, "poisoned", "the weights are a mixture; reload to repair"),
}
KNOWN: dict[int | str, dict[str, Any]] = {304: {"description": "If-None-Match names the ETag"}}
Names = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_NAMES,
        description="names with commas between, each may be a glob; left out: all",
        examples=["model.layers.0.*,model.norm.weight"],
    ),
]
Slice = Annotated[
    str | None,
    Query(
        alias="slice",
        min_length=1,
        max_length=200,
        description="start:stop per dim, as numpy reads it; at most 4,096 values",
        examples=["0:4,:8"],
    ),
]


@router.get(
    "/weights/checksums",
    responses={**example(CHECKSUMS, "what stands in memory"), **KNOWN, **REFUSALS},
)
def checksums(
    services: ServicesDep,
    scope: Literal["hf", "runtime"] = "hf",
    names: Names = None,
    algorithm: Literal["xxh3-128", "sha256"] = "xxh3-128",
    role: RoleName = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Checksums of the weights in memory, one per name, and `overall`, which is the ETag too.

    `hf`: by checkpoint name, over the bytes that the files have, gathered from the ranks and taken
    out of fused parameters. Names that cannot be had back are in `not_comparable` with the reason.
    `runtime`: by `role/rank/name` of each parameter and derived tensor. `overall` is the digest of
    the lines "name checksum", sorted by name, with a line feed behind each. 409 while the weights
    are being written, 404 with `suggestions` for a name that means nothing.
    """
    found = weights_reader.checksums(services.jobs, scope, names, algorithm, role)
    tag = f'"{found["overall"]}"'
    if _is_known(if_none_match, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return Json(found, headers={"ETag": tag})


def _is_known(header: str | None, tag: str) -> bool:
    if header is None:
        return False
    tags = [one.strip().removeprefix("W/") for one in header.split(",")]
    return tag in tags or tags == ["*"]


@router.get("/weights/{name}", responses={**example(WEIGHT, "one tensor"), **REFUSALS})
def weight(
    services: ServicesDep,
    name: Annotated[str, Path(max_length=400, description="of a tensor or a parameter")],
    slice_text: Slice = None,
    role: RoleName = None,
    rank: Rank = None,
) -> Json:
    """One tensor by checkpoint name, gathered from the ranks and taken out of fused parameters.

    Or a parameter or derived tensor, of the first rank that has it. With `rank`, a parameter of
    this name on this rank comes first. `values` has the first few row by row, or those of `slice`
    with its dims; NaN and infinities are text. `stats` and `checksum` are of the whole tensor, min,
    max, mean and rms of its finite elements. What cannot be had back has a `reason` instead.
    """
    return Json(weights_reader.weight(services.jobs, name, slice_text, role, rank))
