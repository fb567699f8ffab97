"""Node's and browsers' clients, unmodified: two calls in a row are stored in that order, whatever the network does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg

from benches._shop import house
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import House
from tests.interop.browser import Shop, shop
from tests.kit.recorder import Recorder, recorder
from tests.kit.sdk_order import exported, folded, funnel, properties
from tests.kit.stack import stack
from tests.kit.waiting import eventually

Send = Callable[[Recorder, str, list[str]], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    name: str
    send: Send
    people: int
    properties: Mapping[str, str]
    """What everybody has at the end: `plan` is the later one, `first` the first one."""

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-")


ONCE = {"plan": "b", "first": "a"}
LAST = {"plan": "b"}
NODE = {"posthog": ONCE, "segment": LAST, "rudder": LAST}
BROWSER = {"posthog": ({**ONCE, "city": "b"}, 6), "segment": (LAST, 4), "rudder": (LAST, 4)}
"""With the number of events of each person."""


def cases(home: Path, chromium: Shop) -> list[Case]:
    node = [
        Case(f"{client} in Node{how}", partial(_node, home, client, lossy), 100, after)
        for client, after in NODE.items()
        for lossy, how in ((0, ""), (1, " in a lossy network"))
    ]
    browser = [
        Case(f"{client} in Chromium", partial(_browser, chromium, client, events), 20, after)
        for client, (after, events) in BROWSER.items()
    ]
    return node + browser


async def _node(home: Path, client: str, lossy: int, net: Recorder, key: str, people: list[str]) -> None:
    """In the lossy network the first request arrives after its repetition, and that one's answer is lost."""
    net.delay = net.lose = lossy
    child = await asyncio.create_subprocess_exec("node", "order.js", client, net.url, key, ",".join(people), cwd=home)
    assert await asyncio.wait_for(child.wait(), 120) == 0, "the client gave up"
    assert (len(_ids(net)) > len(set(_ids(net)))) == bool(lossy)


async def _browser(chromium: Shop, client: str, events: int, net: Recorder, key: str, people: list[str]) -> None:
    """Everybody's second request overtakes the first one; and the first person's client has to repeat one."""
    for count, person in enumerate(people, start=1):
        net.overtake = 1
        net.lose = int(count == 1)
        page = await chromium.visit(client, net.url, key, person)
        arrived = partial(_arrived, net, count * events)
        await eventually(arrived, what=f"{client} has sent {count * events} events, and some of them twice")
        await page.context.close()


def _arrived(net: Recorder, events: int) -> bool:
    ids = _ids(net)
    return len(ids) > len(set(ids)) == events


def _ids(net: Recorder) -> list[str]:
    return [message.get("uuid") or message["messageId"] for message in net.messages()]


async def run(home: Path, only: str) -> tuple[int, int]:
    """Passed and failed."""
    passed = failed = 0
    async with (
        shop(home) as chromium,
        stack(clickhouse=True) as built,
        house(built) as ours,
        built.api() as port,
        built.worker(),
    ):
        connection = await asyncpg.connect(built.postgres_url)
        for case in cases(home, chromium):
            if only not in case.name:
                continue
            try:
                async with recorder(f"http://127.0.0.1:{port}") as net:
                    await one(case, ours, net, connection)
                passed += 1
                word = "ok    "
            except AssertionError as error:
                failed += 1
                word = f"FAILED {error}"
            print(f"{word} {case.name} keeps the order of calls", flush=True)
        await connection.close()
    return passed, failed


async def one(case: Case, ours: House, net: Recorder, connection: asyncpg.Connection) -> None:
    tenant = await ours.tenants.create_tenant(NewTenant(name=case.name, slug=case.slug.lower()), actor="interop")
    key = await ours.tenants.create_key(tenant.tenant_id, NewKey(kind="write", name="site"), actor="interop")
    secret = NewKey(kind="secret", name="all", scopes=["*"])
    secret_key = (await ours.tenants.create_key(tenant.tenant_id, secret, actor="interop")).key
    people = [f"{case.slug}-{n}" for n in range(case.people)]
    await case.send(net, key.key, people)
    assert {sent.status for sent in net.sent} == {200}, [(sent.path, sent.status) for sent in net.sent]
    events = len(set(_ids(net)))
    await folded(connection, tenant.tenant_id, events, len(_ids(net)) - events)
    found = await properties(connection, tenant.tenant_id)
    after = case.properties.items()
    wrong = {person: found.get(person) for person in people if not after <= found.get(person, {}).items()}
    assert not wrong, f"{len(wrong)} of {len(people)} are wrong: {wrong}"
    await exported(connection, [tenant.tenant_id])
    steps = await funnel(net.base, secret_key)
    assert steps == [len(people)] * 2, f"a funnel of {len(people)} people counts {steps}"
