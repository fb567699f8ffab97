"""Descriptions of fields and parameters in the API's document: where they come from."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pytest
from msgspec import Meta

from handbill.api import app, openapi
from handbill.api import field_docs as docs
from handbill.api import openapi_descriptions as descriptions
from handbill.api.feature_texts import BY_FEATURE
from handbill.api.field_texts import PARAMETERS, SHARED
from handbill.api.readiness import readiness
from handbill.settings import load
from handbill.wiring.house import build
from tests.architecture.pages import NOBODY

T = TypeVar("T")
FEATURE = __name__.partition(".")[2].partition(".")[0]


class Base(msgspec.Struct):
    first: int
    """Text of the base."""
    second: int
    """Text of the base, too."""


class Child(Base, rename="camel"):
    second: int
    """Text of the child."""
    third_one: Annotated[int, Meta(description="Text of the type.")]
    """Text that the type's replaces."""
    fourth: int = msgspec.field(name="from", default=0)
    """Text over
    two lines."""
    next: str | None = None
    bare: int = 0


class Nested:
    class Inner(msgspec.Struct):
        value: int
        """Text of a nested class."""


class Row(msgspec.Struct):
    row: int
    """Number of the row."""


class Parcel(msgspec.Struct, Generic[T]):
    items: list[T]


class Holder(msgspec.Struct):
    parcel: Parcel[Row]
    optional: Annotated[int, Meta(description="Text of a branch.")] | None = None
    child: Child | None = None


def described(kind: type[msgspec.Struct]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([kind])
    descriptions.describe_fields(schemas, descriptions.structs([kind]))
    return {
        f"{name}.{member}": part.get("description")
        for name, schema in schemas.items()
        for member, part in schema["properties"].items()
    }


def test_a_field_has_the_text_below_it_under_the_name_it_is_sent_with() -> None:
    assert docs.field_docs(Base) == {"first": "Text of the base.", "second": "Text of the base, too."}
    assert docs.field_docs(Child) == {
        "first": "Text of the base.",
        "second": "Text of the child.",
        "thirdOne": "Text that the type's replaces.",
        "from": "Text over two lines.",
    }
    assert docs.field_docs(Nested.Inner) == {"value": "Text of a nested class."}


def test_a_module_without_its_source_has_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_up", ModuleType("made_up"))
    kind = msgspec.defstruct("Made", [("value", int)], module="made_up")
    assert docs.field_docs(kind) == {}


def test_the_description_of_a_type_wins_and_a_shared_one_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "SHARED", {"next": "Shared text.", "second": "Not taken.", "bare": "Shared."})
    monkeypatch.setattr(
        descriptions, "BY_FEATURE", {FEATURE: {"bare": "Text of the feature."}, "other": {"next": "No."}}
    )
    assert described(Child) == {
        "Child.first": "Text of the base.",
        "Child.second": "Text of the child.",
        "Child.thirdOne": "Text of the type.",
        "Child.from": "Text over two lines.",
        "Child.next": "Shared text.",
        "Child.bare": "Text of the feature.",
    }


def test_fields_of_structs_inside_of_structs_have_theirs_and_generic_ones_too() -> None:
    texts = described(Holder)
    assert texts["Row.row"] == "Number of the row."
    assert texts["Parcel_Row_.items"] == SHARED["items"]
    assert texts["Holder.optional"] == "Text of a branch."
    assert texts["Child.second"] == "Text of the child."


def test_a_schema_under_a_qualified_name_is_its_structs_and_another_of_that_name_is_not() -> None:
    own: dict[str, Any] = {"properties": {"row": {}}}
    schemas = {f"{Row.__module__.replace('.', '_')}_Row": own, "Row": {"properties": {"other": {}}}}
    assert descriptions.schemas_of(Row, schemas) == [own]


def test_a_parameter_without_a_text_has_that_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {("path", "banner_id"): "The banner's id.", ("query", "limit"): "Not taken."}
    monkeypatch.setattr(descriptions, "PARAMETERS", texts)
    operation: dict[str, Any] = {
        "parameters": [
            {"name": "banner_id", "in": "path"},
            {"name": "banner_id", "in": "query"},
            {"name": "limit", "in": "query", "description": "Own text."},
        ]
    }
    descriptions.describe_parameters(operation)
    assert [each.get("description") for each in operation["parameters"]] == ["The banner's id.", None, "Own text."]


def is_described(name: str, text: str) -> bool:
    """Whether a description says more than the name itself."""
    words = [word.lower() for word in re.findall(r"\w+", text)]
    return len(words) >= 3 and "".join(words) not in (name.lower(), name.replace("_", "").lower())


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document of an installation that is built and never started, hot routes included."""
    with tempfile.TemporaryDirectory() as directory:
        settings = load({"HANDBILL_HOME": directory, **NOBODY})
        house = build(settings)
        litestar = app.litestar(house, settings, readiness(house))
        litestar.state["fast_routes"] = app._fast_routes(house)
        return openapi.document(litestar)


def objects(node: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema with properties, and where it stands; examples left out."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield where, node["properties"]
        for key, value in node.items():
            if key not in ("example", "properties"):
                yield from objects(value, f"{where}.{key}")
        for name, value in node.get("properties", {}).items():
            yield from objects(value, f"{where}.{name}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from objects(value, f"{where}.{index}")


def described_parts(document: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The description of every field and parameter: by schema or operation, and name."""
    found = {
        (where, name): member.get("description", "")
        for where, properties in objects(document, "")
        for name, member in properties.items()
    }
    for item in document["paths"].values():
        for operation in item.values():
            for each in operation.get("parameters", ()):
                found[operation["operationId"], each["name"]] = each.get("description", "")
    return found


def test_every_field_and_every_parameter_has_a_description(document: dict[str, Any]) -> None:
    texts = described_parts(document)
    assert len(texts) > 1500
    assert {at: text for at, text in texts.items() if not is_described(at[1], text)} == {}


def test_every_text_of_the_shared_tables_is_in_use(document: dict[str, Any]) -> None:
    used = set(described_parts(document).values())
    tables: list[Mapping[Any, str]] = [SHARED, PARAMETERS, *BY_FEATURE.values()]
    assert [text for table in tables for text in table.values() if text not in used] == []
