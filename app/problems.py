"""Errors over HTTP: every 4xx and 5xx is one RFC 9457 problem document."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from loadscope.app.encoding import dumps

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """A refusal for the client: `slug` names the kind, `detail` says what to do about it.

    The document names the kind twice: `type` for readers of RFC 9457, `code` for programs.
    """

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **extra: object,
    ) -> None:
        super().__init__(detail)
        self.status, self.slug, self.detail = status, slug, detail
        self.headers = dict(headers) if headers is not None else {}
        self.extra = extra

    def response(self) -> Response:
        return problem_response(self.status, self.slug, self.detail, self.headers, **self.extra)


def problem_response(
    status: int,
    slug: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    **extra: object,
) -> Response:
    document = {
        "type": f"urn:loadscope:{slug}",
        "code": code_of(slug),
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **extra,
    }
    return Response(dumps(document), status, dict(headers or {}), MEDIA_TYPE)


def code_of(slug: str) -> str:
    """`reload-in-progress` as a program compares it: `reload_in_progress`."""
    return slug.replace("-", "_")


def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem), error
    return error.response()


def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    phrase = HTTPStatus(error.status_code).phrase
    slug = phrase.lower().replace(" ", "-")
    detail = error.detail
    if error.status_code == 404 and detail == phrase:
        detail = "no such page; the list of endpoints is at /docs"
    return problem_response(error.status_code, slug, detail, error.headers)


def _field(location: Sequence[Any]) -> str:
    # the first part says query, path or body
    return ".".join(str(part) for part in location[1:]) or str(location[0])


def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), error
    errors = [
        {"field": _field(e["loc"]), "in": str(e["loc"][0]), "message": e["msg"]}
        for e in error.errors()
    ]
    detail = "; ".join(f"{e['field']}: {e['message']}" for e in errors)
    return problem_response(422, "invalid-request", detail, errors=errors)


def install(app: FastAPI) -> None:
    """Answer every error of this application with a problem document."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)
