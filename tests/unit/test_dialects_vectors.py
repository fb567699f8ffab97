"""Bodies as real clients write them, beside what must become of them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest

from handbill.events.dialects import replies
from handbill.events.dialects.canon import CapturedEvent
from handbill.events.dialects.router import ROUTES, open_request
from handbill.kit.clock import to_ms
from handbill.kit.errors import HandbillError
from tests.kit.dialects import from_vector, moment, read, vectors

ALL = [
    pytest.param(vector, id=f"{name}: {vector['name']}")
    for name in ("own", "posthog", "posthog_v1", "segment")
    for vector in vectors(name)
]
JSON_FIELDS = frozenset({"properties", "set", "set_once", "unset"})


def shown(event: CapturedEvent, name: str) -> Any:
    value = getattr(event, name)
    if name in JSON_FIELDS:
        return None if value is None else json.loads(value)
    return json.loads(msgspec.json.encode(value))


def meant(name: str, value: Any) -> Any:
    return to_ms(datetime.fromisoformat(value)) if name == "at" else value


@pytest.mark.parametrize("vector", ALL)
def test_a_body_becomes_what_the_vector_says(vector: dict[str, Any]) -> None:
    asked = from_vector(vector)
    dialect = ROUTES[asked.method, asked.path]
    if "error" in vector:
        with pytest.raises(HandbillError) as caught:
            read(asked)
        assert [caught.value.status, caught.value.code] == vector["error"]
        reply = replies.refused(dialect, caught.value)
        assert reply.status == vector["error"][0]
        assert vector.get("error_reply", {}).items() <= json.loads(reply.body).items()
        return
    opened = open_request(dialect, asked, moment())
    parsed = read(asked)
    assert opened.api_key == parsed.api_key == vector["key"]
    assert opened.count == parsed.total == len(vector["events"]) + len(vector.get("dropped", []))
    assert [[note.index, note.reason.value] for note in parsed.dropped] == vector.get("dropped", [])
    assert [[note.index, note.reason.value] for note in parsed.warned] == vector.get("warned", [])
    assert len(parsed.events) == len(parsed.places) == len(vector["events"])
    for event, wanted in zip(parsed.events, vector["events"], strict=True):
        assert {name: shown(event, name) for name in wanted} == {name: meant(name, wanted[name]) for name in wanted}
    reply = replies.taken(parsed)
    assert reply.status == vector["status"]
    if "reply" in vector:
        assert json.loads(reply.body) == vector["reply"]
