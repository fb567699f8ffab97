"""The application over an empty house: every route says who may use it and what it looks like."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from litestar import Litestar, get
from litestar.testing import TestClient
from prometheus_client import generate_latest

from handbill.api import app, auth, openapi
from handbill.kit.codes import CODES
from handbill.kit.errors import Broken, HandbillError
from handbill.kit.telemetry import metrics
from handbill.settings import Settings


class Empty:
    """A house in which nobody lives; building the application asks nobody anything."""

    def __getattr__(self, name: str) -> Any:
        return Empty()

    def fast_routes(self) -> list[Any]:
        return []


@pytest.fixture(scope="module")
def built() -> Litestar:
    return app.litestar(Empty(), Settings(), Empty())  # type: ignore[arg-type]


def test_every_route_declares_who_may_use_it(built: Litestar) -> None:
    declared = openapi.routes(built)
    assert len(declared) > 15
    for path, method, handler in declared:
        assert len(auth.DECLARATIONS & set(handler.opt)) == 1, (method, path)

    @get("/open", sync_to_thread=False)
    def forgotten() -> None:
        """Nobody said who may call this."""

    with pytest.raises(Broken, match="must say"):
        app._check_declared(Litestar([forgotten], openapi_config=None))


FILES = ("text/html", "text/javascript", "image/svg+xml")
"""For browsers: an example would be the file itself."""


def test_every_operation_is_described_with_an_example_that_fits(built: Litestar) -> None:
    document = openapi.document(built)
    ids = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            where = (method, path)
            ids.append(operation["operationId"])
            assert operation["summary"], where
            assert operation["description"], where
            bodies = [*operation["responses"].values(), operation.get("requestBody", {})]
            data = [(kind, content) for body in bodies for kind, content in body.get("content", {}).items()]
            for content in (content for kind, content in data if kind not in FILES):
                assert "example" in content, where
                jsonschema_rs.validate({**content["schema"], "components": document["components"]}, content["example"])
    assert len(ids) == len(set(ids))
    assert "/ping" in document["paths"]


def test_the_default_codes_of_the_error_tree_are_listed() -> None:
    def tree(kind: type[HandbillError]) -> list[type[HandbillError]]:
        return [kind, *(one for child in kind.__subclasses__() for one in tree(child))]

    assert {kind.code for kind in tree(HandbillError) if kind.__module__.startswith("handbill")} <= set(CODES)


def test_the_pages_of_other_programs_lead_to_ours_and_texts_name_their_charset_once(built: Litestar) -> None:
    with TestClient(built) as client:
        for name in ("swagger", "redoc", "elements", "rapidoc", "scalar"):
            reply = client.get(f"/schema/{name}", follow_redirects=False)
            assert (reply.status_code, reply.headers["location"]) == (302, "/docs")
        for path in ("/schema/nothing", "/schema/nothing.json"):
            reply = client.get(path)
            assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json")
            assert reply.json()["code"] == "NOT_FOUND"
        for path in ("/schema", "/schema/openapi.json"):
            assert client.get(path).json()["openapi"].startswith("3.1")
        for path, kind in (("/docs", "html"), ("/handbill.js", "javascript"), ("/docs/swagger-ui.css", "css")):
            assert client.get(path).headers["content-type"] == f"text/{kind}; charset=utf-8"


def test_metrics_have_no_series_of_when_they_began() -> None:
    assert b"_created" not in generate_latest(metrics.REGISTRY)
