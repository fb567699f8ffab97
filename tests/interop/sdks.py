"""Node's clients of other products, unmodified, through a recording proxy to a real process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches._shop import house
from handbill.events.model import CapturedEvent
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import House
from tests.kit.captured import Sender
from tests.kit.recorder import Recorder, recorder
from tests.kit.stack import stack

LIBRARIES = {"posthog": 4, "segment": 5}
"""Each with the number of events that it sends."""


async def run(home: Path, only: str) -> tuple[int, int]:
    """Passed and failed."""
    wanted = [name for name in LIBRARIES if only in f"{name} client"]
    if not wanted:
        return 0, 0
    failed = 0
    async with stack() as built, house(built) as ours, built.api() as port, recorder(f"http://127.0.0.1:{port}") as net:
        for library in wanted:
            try:
                await one(library, home, ours, net)
                word = "ok    "
            except AssertionError as error:
                failed += 1
                word = f"FAILED {error}"
            print(f"{word} the {library} client's events arrive as they were sent", flush=True)
    return len(wanted) - failed, failed


async def one(library: str, home: Path, ours: House, net: Recorder) -> None:
    tenant = await ours.tenants.create_tenant(NewTenant(name=library, slug=library), actor="interop")
    key = await ours.tenants.create_key(tenant.tenant_id, NewKey(kind="write", name="site"), actor="interop")
    net.sent.clear()
    for lost in (0, 1):  # once plainly, once with an answer that gets lost
        net.lose = lost
        child = await asyncio.create_subprocess_exec("node", "sdks.js", library, net.url, key.key, cwd=home)
        assert await asyncio.wait_for(child.wait(), 120) == 0, "the client gave up"
    assert {sent.status for sent in net.sent} == {200}, [(sent.path, sent.status) for sent in net.sent]
    messages = {message.get("uuid") or message["messageId"]: message for message in net.messages()}
    assert len(messages) == 2 * LIBRARIES[library] < len(net.messages()), "nothing was sent again"
    events = {event.id: event for event in await Sender(tenant.tenant_id, key.key, "", ours.redis).events()}
    assert set(events) == set(messages), (set(events), set(messages))
    for identity, message in messages.items():
        (_posthog if library == "posthog" else _segment)(events[identity], message)
    _edges([event for event in events.values() if event.edge], library)


def _posthog(event: CapturedEvent, message: dict[str, Any]) -> None:
    assert (event.name, event.distinct_id) == (message["event"], message["distinct_id"])
    _all(message["properties"], json.loads(event.properties))
    sets = {**message["properties"].get("$set", {}), **message.get("$set", {})}
    assert json.loads(event.set or b"{}") == sets, (event.set, sets)


def _segment(event: CapturedEvent, message: dict[str, Any]) -> None:
    kept = json.loads(event.properties)
    assert event.distinct_id == message["userId"]
    _all(message.get("properties", {}), kept)
    assert kept["$context"] == message["context"]
    if message["type"] == "identify":
        assert json.loads(event.set or b"") == message["traits"]


def _all(sent: dict[str, Any], kept: dict[str, Any]) -> None:
    different = {name: (value, kept.get(name)) for name, value in sent.items() if kept.get(name) != value}
    assert not different, different


def _edges(events: Sequence[CapturedEvent], library: str) -> None:
    found = {(event.distinct_id, event.edge.other) for event in events if event.edge}
    expected = {("ada", "anon-1")} if library == "posthog" else {("ada", "anon-1"), ("ada", "anon-2")}
    assert found == expected, found
