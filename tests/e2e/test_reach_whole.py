"""Reach from end to end, in real processes: a messy file in, campaigns by tag and by segment out, STOP and START."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.service import JobsService
from tests.kit.audit import RecordedAudit
from tests.kit.captured import SEAL, Sender, new_sender
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, Graph, graph
from tests.kit.http import Api
from tests.kit.processes import handbill, process
from tests.kit.reach import free_numbers
from tests.kit.receiver import Receiver
from tests.kit.waiting import eventually

SECRET = "an-app-secret"
PATIENCE = 120.0
CAMPAIGNS = "/admin/messaging/campaigns"
ANA, BOB, ZOE = "+5511987654321", "+5511987650000", "+5521987651111"
FILE = (
    "customer_id;Nome;Celular;Cidade\n"
    "c-1;Ana;(11) 98765-4321;São Paulo\n"
    "c-2;Bob;5511987650000;Rio\n"
    "c-9;Eve;5.51E+12;Rio\n"
    '"c-3";"Zoë\nMaria";+55 21 98765-1111;\n'
    "c-1;Ana Souza;+55 11 98765 4321;São Paulo\n"
)
"""Letters of Windows, a line end inside quotes, a number that a spreadsheet has spoilt, one person twice."""


class Shop:
    """One tenant, seen from outside."""

    def __init__(self, api: Api, sender: Sender, fake: Graph, jobs: JobsService, env: dict[str, str]) -> None:
        self.api, self.sender, self.fake, self.jobs, self.env = api, sender, fake, jobs, env
        self.connection: dict[str, Any] = {}

    async def call(self, method: str, path: str, expected: int = 200, **options: Any) -> Any:
        reply = await self.api(method, path, key=self.sender.secret_key, **options)
        assert reply.status == expected, (reply.status, reply.body)
        return reply.json()

    async def connect(self) -> None:
        new = {"name": "Main", "waba_id": WABA, "numbers": [NUMBER], "token": "good", "app_secret": SECRET}
        self.connection = await self.call("POST", "/admin/connections", 201, json=new)
        hook = {"url": self.api.base + self.connection["webhook"], "app_secret": SECRET}
        await self.fake.control(webhook={**hook, "verify_token": self.connection["verify_token"]})

    async def imported(self) -> str:
        form = aiohttp.FormData()
        form.add_field("file", FILE.encode("cp1252"), filename="clientes.csv")
        made = await self.call("POST", "/admin/imports?region=BR", 201, data=form)
        path = f"/admin/imports/{made['import_id']}"
        targets = [column["target"] for column in made["plan"]["columns"]]
        assert targets == ["external_id", "name", "phone", "attribute:Cidade"]
        consent = {"channels": ["whatsapp"], "source": "loyalty form"}
        await self.call("PATCH", path, json={"tags": ["spring"], "consent": consent, "key": "phone"})
        await self.call("POST", f"{path}/start", 202)
        return str(made["import_id"])

    async def circle(self) -> str:
        """A segment of those who pay: Ana and Zoë do, Bob does not, and somebody pays whom the book does not know."""
        made = await self.call("POST", "/admin/segments", 201, json={"name": "Pro", "rule": {"person.plan": "pro"}})
        plans = {"c-1": "pro", "c-2": "free", "c-3": "pro", "nobody": "pro"}
        events = [
            {"event": "paid", "distinct_id": who, "user_properties": {"$set": {"plan": plan}}}
            for who, plan in plans.items()
        ]
        headers = {"X-Write-Key": self.sender.write_key}
        sent = await self.api("POST", "/v1/events", json={"events": events}, headers=headers)
        assert sent.status == 202, sent.body

        async def there() -> bool:
            found = await self.call("GET", f"/admin/segments/{made['segment_id']}")
            return bool(found["size"] == 3 and found["state"] == "ready")

        await eventually(there, PATIENCE, what="three people pay")
        return str(made["segment_id"])

    async def campaign(self, **audience: Any) -> str:
        """Sent to its end. The poller is rung: it comes by itself, but only once a minute."""
        content = {"type": "template", "name": "hello_world", "language": "en_US"}
        draft = {"name": "Spring", "connection_id": self.connection["connection_id"], "content": content}
        made = await self.call("POST", CAMPAIGNS, 201, json={**draft, "audience": audience})
        path = f"{CAMPAIGNS}/{made['campaign_id']}"
        await self.call("POST", f"{path}/start", json={})
        await self.jobs.queues.queue("system").add("cron.campaign_poll", {})

        async def over() -> bool:
            return bool((await self.call("GET", path))["state"] == "completed")

        await eventually(over, PATIENCE, what="the campaign is completed")
        return str(made["campaign_id"])

    async def proved(self, campaign: str) -> dict[str, Any]:
        """By the command line, whose exit code tells the same."""
        command = ("campaign", "verify", campaign, "--tenant", str(self.sender.tenant), "--json")
        code, said = await handbill(*command, env=self.env)
        assert code == 0, said
        return dict(json.loads(said.splitlines()[-1]))

    async def taken(self, campaign: str) -> dict[str, int]:
        """How often the outside world took each person's message of this campaign, by its own log."""
        page = await self.call("GET", f"{CAMPAIGNS}/{campaign}/messages")
        ours = {one["message_id"] for one in page["items"]}
        lines = [line for line in await self.fake.log() if line["outcome"] == "accepted" and line["opaque"] in ours]
        return dict(Counter("+" + line["to"].lstrip("+") for line in lines))

    async def says(self, word: str, suppressed: list[str]) -> None:
        """Ana writes; her id has the old form, without the ninth digit. The book has heard of it afterwards.

        Words carry whole seconds, and of two at once the no counts: the outside world's clock goes on a little.
        """
        said = [{"number": NUMBER, "sender": "551187654321", "text": word}]
        await self.fake.control(ahead_ms=2_000, inbound=said)

        async def heard() -> bool:
            found = await self.call("GET", "/admin/suppressions")
            return [one["address"] for one in found["items"]] == suppressed

        await eventually(heard, PATIENCE, what=f"{word} is heard")


@asynccontextmanager
async def shop(
    settings: dict[str, str], database: Database, redis: Redis, tenant: int, fake: Graph
) -> AsyncIterator[Shop]:
    env = settings | {
        "HANDBILL_TENANTS__SEAL_KEY": SEAL,
        "HANDBILL_MESSAGING__GRAPH_URL": fake.url,
        "HANDBILL_MESSAGING__HOOKS_INSECURE": "true",
        "HANDBILL_CONTACTS__PARSERS": "1",
    }
    sender = await new_sender(database, redis, tenant)
    async with (
        process("api", env=env) as running,
        process("worker", env=env) as worker,
        aiohttp.ClientSession() as client,
    ):
        await running.log(event="api-ready")
        await worker.log(event="worker-ready")
        api = Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)
        yield Shop(api, sender, fake, JobsService(database, redis, audit=RecordedAudit()), env)


def is_signed(secret: str, signature: str, body: bytes) -> bool:
    """As docs/webhooks.md tells a receiver to check it."""
    time, mark = (part.split("=", 1)[1] for part in signature.split(","))
    return hmac.new(secret.encode(), time.encode() + b"." + body, hashlib.sha256).hexdigest() == mark


async def test_a_file_campaigns_and_the_word_of_those_who_got_them(
    handbill_env: dict[str, str], engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    await free_numbers(engines.postgres_url)
    async with (
        graph() as fake,
        Receiver().running() as receiver,
        shop(handbill_env, database, redis, tenant, fake) as one,
    ):
        await one.connect()
        hook = await one.call("POST", "/admin/hooks", 201, json={"url": receiver.url, "events": ["import.done"]})
        import_id = await one.imported()
        await eventually(lambda: receiver.seen, PATIENCE, what="import.done arrives")
        _, event, signature, body = receiver.seen[0]
        assert event == "import.done"
        assert is_signed(hook["secret"], signature, body)
        told = json.loads(body)["data"]
        assert (told["import_id"], told["status"], told["rows"]) == (import_id, "done", 5)
        assert (told["counts"]["created"], told["counts"]["rejected"]) == (3, 1)

        segment = await one.circle()
        listed = (await one.call("GET", "/admin/contacts?search=c-1"))["items"]
        contact = await one.call("GET", f"/admin/contacts/{listed[0]['contact_id']}")
        person = await one.call("GET", f"/admin/people/{contact['person_id']}")
        assert "c-1" in [each["distinct_id"] for each in person["distinct_ids"]], "the contact is a person of Know"
        by_tag = await one.campaign(tags_any=["spring"])
        assert await one.taken(by_tag) == {ANA: 1, BOB: 1, ZOE: 1}
        by_segment = await one.campaign(segment_id=segment)
        assert await one.taken(by_segment) == {ANA: 1, ZOE: 1}

        await one.says("STOP", [ANA])
        without = await one.campaign(tags_any=["spring"])
        assert await one.taken(without) == {BOB: 1, ZOE: 1}
        outcomes = await one.call("GET", f"{CAMPAIGNS}/{without}/outcomes")
        assert outcomes["reasons"] == {"skipped": {"suppressed_opt_out": 1}}
        await one.says("START", [])
        again = await one.campaign(segment_id=segment)
        assert await one.taken(again) == {ANA: 1, ZOE: 1}

        for campaign, figures in (
            (by_tag, (3, 3, 0)),
            (by_segment, (2, 2, 0)),
            (without, (3, 2, 1)),
            (again, (2, 2, 0)),
        ):
            proof = await one.call("GET", f"{CAMPAIGNS}/{campaign}/verify")
            assert proof["holds"] is True, proof
            assert (proof["audience"], proof["sent"], proof["skipped"]) == figures
        assert (await one.proved(without))["holds"] is True
        async with fake.client.get(f"{fake.url}/_audit") as reply:
            assert (await reply.json())["twice"] == 0
        assert [delivery for delivery, count in receiver.taken.items() if count != 1] == []
