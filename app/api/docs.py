"""API documentation that needs no other host: Swagger UI if installed, else a plain list."""

from html import escape
from string import Template
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

SWAGGER = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>loadscope API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="$files/swagger-ui.css">
<link rel="stylesheet" href="/static/api-docs.css">
</head>
<body>
<div id="swagger" data-openapi="/openapi.json"></div>
<script src="$files/swagger-ui-bundle.js"></script>
<script src="/static/api-docs.js"></script>
</body>
</html>
""")
PLAIN = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>loadscope API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/api-docs.css">
</head>
<body>
<h1>loadscope API</h1>
<p>The whole description is at <a href="/openapi.json">/openapi.json</a>. For a page where requests
can be tried out, install <code>loadscope[docs]</code>.</p>
<dl>
$entries</dl>
</body>
</html>
""")


def docs_router(swagger_files: str | None) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/docs", response_class=HTMLResponse)
    def docs(request: Request) -> str:
        if swagger_files is not None:
            return SWAGGER.substitute(files=swagger_files)
        return PLAIN.substitute(entries=plain_entries(request.app.openapi()))

    return router


def plain_entries(openapi: dict[str, Any]) -> str:
    """One definition per endpoint: method and path, then what it answers."""
    return "".join(
        f"<dt><code>{method.upper()} {escape(path)}</code></dt>"
        f"<dd>{escape(operation.get('description', operation.get('summary', '')))}</dd>\n"
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    )
