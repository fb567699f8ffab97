"""The OpenAPI page: what Litestar knows of the routes, plus examples, scopes and the one shape of errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from litestar import Litestar, Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import Server
from litestar.response import Redirect
from litestar.router import Router
from litestar.routes import HTTPRoute

import handbill
from handbill.api import openapi_errors
from handbill.api.head import restore_method
from handbill.api.openapi_descriptions import describe_fields, describe_parameters, schemas_of, structs
from handbill.api.openapi_names import name_schemas, open_objects
from handbill.api.problems import Problem
from handbill.kit.errors import NotFound
from handbill.kit.fast import FastDoc, FastRoute

_METHODS = ("get", "post", "put", "patch", "delete")
_SECURITY_SCHEMES: dict[str, Any] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A secret key (hbs_...) or a session token (hbt_...).",
    },
    "writeKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Write-Key",
        "description": "A publishable key (hbw_...): tracks and decides, nothing else.",
    },
}


class Page(OpenAPIRenderPlugin):
    """Serves the finished document as JSON. It loads nothing from anywhere: no page of ours calls a foreign server."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json", media_type="application/json")  # type: ignore[arg-type] # any type is fine
        self._finished: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        if self._finished is None:
            self._finished = msgspec.json.encode(finished(openapi_schema, request.app))
        return self._finished


_PAGES = frozenset({"swagger", "redoc", "rapidoc", "elements", "scalar"})
"""Where other programs have their page to try the API."""


async def _before_request(request: Request[Any, Any, Any]) -> Redirect | None:
    """Sends those who look for a page to ours. Raises NotFound for what else is not there: Litestar answers in HTML."""
    await restore_method(request)
    name = request.url.path.rstrip("/").removeprefix("/schema").removeprefix("/")
    if name in ("", "openapi.json"):
        return None
    if name in _PAGES:
        return Redirect("/docs")
    raise NotFound("There is nothing at this address. The document is /schema/openapi.json, its page /docs.")


def config(public_url: str | None = None) -> OpenAPIConfig:
    """`public_url`: where the document says that the API is."""
    return OpenAPIConfig(
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, before_request=_before_request),
        title="Handbill",
        servers=[Server(url=(public_url or "/").rstrip("/") or "/")],
        version=handbill.__version__,
        path="/schema",
        render_plugins=[Page()],
        use_handler_docstrings=True,
    )


def document(app: Litestar) -> dict[str, Any]:
    """The same document without a server, for tests and for the reference page."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(finished(app.openapi_schema.to_schema(), app)))
    return plain


def finished(document: dict[str, Any], app: Litestar) -> dict[str, Any]:
    handlers = {(path, method): handler for path, method, handler in routes(app)}
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(openapi_errors.schemas())
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                _finish(item[method], handlers[(path, method)].opt, schemas, path)
    bodies = structs([each.parsed_data_field.annotation for each in handlers.values() if each.parsed_data_field])
    _close(schemas, bodies)
    hot = [(route, route.doc) for route in app.state.get("fast_routes", ()) if route.doc is not None]
    for route, doc in hot:
        document["paths"].setdefault(route.path, {})[route.method.lower()] = _hot(route, doc, schemas)
    kinds = [*bodies, *_replies_and_raw_bodies(handlers.values()), Problem]
    kinds += [kind for _, doc in hot for kind in (doc.body, doc.reply, doc.error)]
    describe_fields(schemas, structs(kinds))
    name_schemas(document)
    open_objects(document["paths"])
    open_objects(document["components"])
    return document


def _close(schemas: dict[str, Any], bodies: Iterable[type[msgspec.Struct]]) -> None:
    """Say of each schema of a body that it takes no other members, where that is so: Litestar does not say it."""
    for kind in bodies:
        if kind.__struct_config__.forbid_unknown_fields:
            for schema in schemas_of(kind, schemas):
                schema["additionalProperties"] = False


def _replies_and_raw_bodies(handlers: Iterable[HTTPRouteHandler]) -> list[Any]:
    """The types that handlers give back, and those of bodies that they read themselves."""
    handlers = list(handlers)
    return [each.parsed_return_field.annotation for each in handlers] + [
        each.opt["body"] for each in handlers if "body" in each.opt
    ]


def _hot(route: FastRoute, doc: FastDoc, schemas: dict[str, Any]) -> dict[str, Any]:
    """A hot route's operation, from what it says of itself."""
    reply: dict[str, Any] = {"description": "Done."}
    if doc.reply is not None:
        reply["content"] = {"application/json": _content(doc.reply, doc.reply_example, schemas)}
    operation: dict[str, Any] = {
        "tags": [doc.tag],
        "summary": doc.summary,
        "description": doc.description or (route.handler.__doc__ or doc.summary).strip(),
        "operationId": doc.operation_id or f"{route.method.lower()}{route.path.title().replace('/', '')}",
        "parameters": [
            {
                "name": one.name,
                "in": "query",
                "description": one.description,
                "required": one.required,
                "schema": {"type": "string"},
            }
            for one in doc.query
        ],
        "responses": {str(doc.status): reply, **{str(code): openapi_errors.reply(code) for code in doc.codes}},
    }
    if doc.body is not None:
        body = _content(doc.body, doc.body_example, schemas)
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    operation["responses"]["default"] = openapi_errors.default_reply()
    if doc.error is not None:
        for status, failed in operation["responses"].items():
            if status == "default" or status >= "400":
                failed["content"]["application/json"] = _content(doc.error, doc.error_example, schemas)
    operation["security"] = [{"writeKey": []}] if doc.write_key else []
    return operation


def _content(kind: Any, example: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    for name, component in components.items():
        schemas.setdefault(name, component)
    return {"schema": schema, **({"example": example} if example is not None else {})}


def _raw_body(opt: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The body of a route that reads the bytes itself, in each of its media types."""
    content = {kind: _content(opt["body"], opt.get("body_example"), schemas) for kind in opt["raw_body"]}
    if "text/csv" in content:
        schema = {"type": "string", "format": "binary"}
        content["text/csv"] = {"schema": schema, "example": opt["csv_example"]}
    return {"required": True, "content": content}


def _finish(operation: dict[str, Any], opt: dict[str, Any], schemas: dict[str, Any], path: str) -> None:
    replies: dict[str, Any] = operation["responses"]
    replies.pop("400", None)  # Litestar's own shape of errors, which we never send
    for status, reply in replies.items():
        if status == "204" or status.startswith("3"):  # neither has a body
            reply.pop("content", None)
        for content in reply.get("content", {}).values():
            if status.startswith("2") and "example" in opt:
                content["example"] = opt["example"]
    describe_parameters(operation)
    if "raw_body" in opt:
        operation["requestBody"] = _raw_body(opt, schemas)
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        if "body_example" in opt and kind != "text/csv":
            body["example"] = opt["body_example"]
    if opt.get("write_key"):
        operation["security"] = [{"writeKey": []}]
    elif opt.get("public"):
        operation["security"] = []
    else:
        operation["security"] = [{"bearer": []}]
        if scope := opt.get("scope"):
            operation["description"] = f"{operation.get('description', '')}\n\nScope: `{scope}`.".strip()
    replies.update({str(status): openapi_errors.reply(status) for status in openapi_errors.statuses(operation, path)})
    replies["default"] = openapi_errors.default_reply()


def routes(app: Litestar) -> list[tuple[str, str, HTTPRouteHandler]]:
    """Every route of ours: path as OpenAPI spells it, method, handler. Litestar's own (OPTIONS, the page) left out."""
    found: list[tuple[str, str, HTTPRouteHandler]] = []
    for route in app.routes:
        if not isinstance(route, HTTPRoute) or route.path.startswith("/schema"):
            continue
        for handler in route.route_handlers:
            found += [
                (route.path_format or "/", method.lower(), handler)
                for method in sorted(str(name) for name in handler.http_methods)
                if method.lower() in _METHODS
            ]
    return found
