"""The fake Graph server: what it refuses, what it tells, and that its misfortunes follow the seed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import msgspec
import pytest

from handbill.fake_graph.model import Config, Faults
from handbill.messaging import webhooks
from handbill.messaging.facts import Fact, InboundFact, PreferenceFact, StatusFact, TemplateFact
from handbill.messaging.lattice import Standing, Status, fold
from tests.kit.graph import HELLO, NUMBER, WABA, Hook, StillClock, graph, many_numbers
from tests.kit.waiting import eventually

SALE = {
    "id": "401",
    "name": "sale",
    "language": "es",
    "components": [{"type": "BODY", "text": "{{1}} and {{2}} and {{1}}"}],
}


def sale(*values: str) -> dict[str, Any]:
    parameters = [{"type": "text", "text": value} for value in values]
    template = {"name": "sale", "language": {"code": "es"}, "components": [{"type": "body", "parameters": parameters}]}
    return {"type": "template", "template": template}


async def test_a_message_is_taken_and_written_down() -> None:
    async with graph() as fake:
        status, answer = await fake.send("+4915112345", "campaign:7")
        assert status == 200
        assert answer["contacts"] == [{"input": "+4915112345", "wa_id": "4915112345"}]
        (line,) = await fake.log()
        assert (line["to"], line["opaque"], line["outcome"]) == ("4915112345", "campaign:7", "accepted")
        assert line["wamid"] == answer["messages"][0]["id"]


async def test_bodies_that_the_real_server_refuses() -> None:
    async with graph() as fake:
        text: dict[str, Any] = {"type": "text", "text": {"body": "hi"}}
        assert await fake.code("4915112345", number="999") == 100
        assert await fake.code("not a number") == 100
        assert await fake.code("4915112345", "x" * 513) == 100
        assert await fake.code("4915112345", type="text") == 100
        assert await fake.code("4915112345", type="text", text={"body": ""}) == 100
        assert await fake.code("4915112345", type="image", image={"caption": "c"}) == 131008
        assert await fake.code("4915112345", **text) == 131047
        assert await fake.code("15550000000") == 131021
        await fake.control(inbound=[{"number": NUMBER, "sender": "4915112345", "text": "hello"}])
        assert await fake.code("4915112345", **text) == 0
        async with fake.client.post(f"{fake.url}/v23.0/{NUMBER}/messages", data=b"\xff{") as reply:
            assert (await reply.json())["error"]["code"] == 190, "no token comes first"
        assert (await fake("POST", f"/v23.0/{NUMBER}/messages", [1]))[1]["error"]["code"] == 100
        assert (await fake("GET", "/v23.0/what/is/this"))[1]["error"]["code"] == 2500
        assert {line["outcome"] for line in await fake.log()} == {"refused", "accepted"}


async def test_templates_live_and_die() -> None:
    async with graph() as fake:
        await fake.control(templates={WABA: [SALE]})
        assert await fake.code("4915112345", **sale("a", "b")) == 0
        assert await fake.code("4915112345", **sale("a")) == 132000
        for status, code in (("PAUSED", 132015), ("DISABLED", 132016), ("PENDING", 132001), ("APPROVED", 0)):
            await fake.control(template={"name": "sale", "status": status})
            assert await fake.code("4915112345", **sale("a", "b")) == code
        await fake.control(preferences=[{"number": NUMBER, "address": "4915112345", "value": "stop"}])
        assert await fake.code("4915112345", **sale("a", "b")) == 131050
        assert await fake.code("4915112345", **HELLO) == 0, "only marketing was stopped"
        _, made = await fake("POST", f"/v23.0/{WABA}/message_templates", {**SALE, "name": "new", "category": "UTILITY"})
        assert made["status"] == "PENDING"
        path = f"/v23.0/{WABA}/message_templates"
        await eventually(lambda: _status(fake, path, "APPROVED"))
        assert (await fake("DELETE", path, name="new"))[0] == 200
        assert (await fake("DELETE", path, name="new"))[0] == 400
        assert len((await fake("GET", path))[1]["data"]) == 2


async def _status(fake: Any, path: str, wanted: str) -> bool:
    _, listed = await fake("GET", path, name="new")
    return bool(listed["data"][0]["status"] == wanted)


async def test_tokens_die_and_come_back() -> None:
    async with graph(Config(tokens=("good",), app_secret="s")) as fake:
        assert await fake.code("4915112345") == 0
        _, told = await fake("GET", "/v23.0/debug_token", input_token="other")
        assert told["data"]["is_valid"] is False
        await fake.control(kill_tokens=["good"])
        status, answer = await fake.send("4915112345")
        assert (status, answer["error"]["code"], answer["error"]["error_subcode"]) == (401, 190, 463)
        await fake.control(revive_tokens=["good"])
        assert (await fake("GET", f"/v23.0/{NUMBER}", appsecret_proof="wrong"))[1]["error"]["code"] == 100


async def test_a_wrong_control_changes_nothing() -> None:
    async with graph() as fake:
        wrongs: tuple[Any, ...] = ({"fault": {}}, {"faults": {"lost_answer": 2}}, [])
        for wrong in wrongs:
            assert (await fake("POST", "/_control", wrong))[0] == 400


async def _luck(seed: int, order: list[int]) -> dict[str, str]:
    """What became of each message: its outcome, or the code it was refused with."""
    rates = Faults(lost_answer=0.1, dropped=0.1, bare_5xx=0.1, graph_5xx=0.1, throttled=0.1, codes={"131026": 0.2})
    numbers = many_numbers(1, per_second=1_000_000)
    async with graph(Config(seed=seed, numbers=numbers, faults=rates), StillClock()) as fake:

        async def one(n: int) -> None:
            try:
                await fake.send(f"4915{n:06d}", f"m{n}")
            except (aiohttp.ClientError, msgspec.DecodeError, json.JSONDecodeError):
                return

        await asyncio.gather(*(one(n) for n in order))
        return {line["opaque"]: f"{line['outcome']}{line['code'] or ''}" for line in await fake.log()}


async def test_misfortune_follows_the_seed_and_not_the_order() -> None:
    order = list(range(120))
    first = await _luck(5, order)
    assert await _luck(5, order[::-1]) == first
    assert await _luck(6, order) != first
    kinds = Counter(first.values())
    assert set(kinds) == {"accepted", "lost", "dropped", "refused131000", "refused130429", "refused131026"}


async def test_webhooks_are_signed_repeated_late_and_lead_to_one_end() -> None:
    async with Hook(fail_first=2).running() as hook, graph(Config(seed=3)) as fake:
        rates = {"webhook_jitter_ms": 60, "repeated": 0.5, "delivered_missing": 0.2, "unread": 0.2}
        wrong = {"url": hook.url, "verify_token": "not mine", "app_secret": "s3"}
        assert (await fake("POST", "/_control", {"webhook": wrong}))[0] == 400
        await fake.control(webhook={**wrong, "verify_token": "mine"}, faults=rates | {"late_codes": {"131026": 0.2}})
        for n in range(40):
            assert await fake.code(f"4915{n:06d}", f"c:{n}") == 0
        await fake.control(hurry=True)
        await eventually(lambda: fake.world.courier.pending == 0)
        assert fake.world.courier.given_up == 0
        assert fake.world.courier.failed > 0, "two deliveries were refused and tried again"
        facts: list[Fact] = []
        for body, signature in hook.seen:
            assert webhooks.signed(["s3"], body, signature)
            facts += webhooks.parse(body)
        ends: dict[str | None, Standing] = {}
        for fact in facts:
            assert isinstance(fact, StatusFact)
            ends[fact.opaque] = fold(ends.get(fact.opaque, fold()), fact.standing)
        assert len(ends) == 40
        assert len(facts) > len({fact.key for fact in facts}), "some came twice"
        statuses = Counter(end.status for end in ends.values())
        assert set(statuses) == {Status.READ, Status.DELIVERED, Status.FAILED}


async def test_people_write_and_templates_change() -> None:
    async with Hook().running() as hook, graph() as fake:
        await fake.control(webhook={"url": hook.url})
        await fake.control(
            inbound=[
                {"number": NUMBER, "sender": "4915001", "text": "STOP"},
                {"number": NUMBER, "sender": "4915002", "button": "Yes", "payload": "y"},
            ],
            preferences=[{"number": NUMBER, "address": "4915003", "value": "stop"}],
            template={"name": "hello_world", "status": "PAUSED"},
            skew_ms=-60_000,
        )
        await eventually(lambda: fake.world.courier.told == 4)
        facts = [fact for body, _ in hook.seen for fact in webhooks.parse(body)]
        kinds = Counter(type(fact) for fact in facts)
        assert kinds == {InboundFact: 2, PreferenceFact: 1, TemplateFact: 1}
        assert {fact.text for fact in facts if isinstance(fact, InboundFact)} == {"STOP", "Yes"}


@pytest.mark.parametrize("path", ["/_log?after=-1&limit=x", "/v23.0/1/message_templates?after=%ff", "/_state"])
async def test_odd_questions_get_answers(path: str) -> None:
    async with graph() as fake, fake.client.get(fake.url + path, headers={"Authorization": "Bearer x"}) as reply:
        assert reply.status in (200, 400)
