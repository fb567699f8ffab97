"""The page /docs: read every operation and try it, without anything from another server.

Swagger UI comes with a package from which only files are taken: its code is not imported.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from handbill.api.served_files import ServedFile, serve, static
from handbill.kit.errors import NotFound

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI writes style attributes; no script but the two files runs."""
_PUBLIC: dict[str, Any] = {"public": True, "open_query": True}
_CACHED = "public, max-age=300"
_ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")

_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Handbill API</title>
<link rel="icon" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<main id="api">
<p>Loading the operations. Without scripts, read <a href="/schema/openapi.json">the document</a>.</p>
</main>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"""
_START = b"""SwaggerUIBundle({
  url: "/schema/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  displayRequestDuration: true,
  tryItOutEnabled: true,
  persistAuthorization: false,
  validatorUrl: null,
});
"""


def handlers() -> list[HTTPRouteHandler]:
    page = static(_PAGE, "html")

    @get("/docs", operation_id="apiDocs", tags=["Client"], opt=_PUBLIC, media_type="text/html")
    async def docs(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A page to read every operation and to try it with a key of yours, which the page keeps in its memory only."""
        return serve(request, page, {"Content-Security-Policy": _POLICY, "Cache-Control": _CACHED})

    @get("/docs/{name:str}", operation_id="apiDocsPart", tags=["Client"], opt=_PUBLIC, media_type="text/javascript")
    async def part(request: Request[Any, Any, Any], name: Annotated[FromPath[str], "a file"]) -> Response[bytes]:
        """A script, style sheet or picture of the page."""
        found = _parts().get(name)
        if found is None:
            raise NotFound("The page has no such file.")
        return serve(request, found, {"Cache-Control": _CACHED})

    return [docs, part]


@cache
def _parts() -> dict[str, ServedFile]:
    """Read and compressed when the page is first opened: most API processes never serve it."""
    spec = find_spec("swagger_ui")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "static"
    parts = {name: static((folder / name).read_bytes(), name.rpartition(".")[2]) for name in _ASSETS}
    return {**parts, "start.js": static(_START, "js")}
