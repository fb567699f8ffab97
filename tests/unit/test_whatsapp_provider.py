"""The WhatsApp adapter against the fake server: every outcome of a send, and the line between unsent and unknown."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.fake_graph.model import Config, Faults
from handbill.kit.errors import Busy, Conflict, Invalid
from handbill.messaging.errors import Action, by_outcome
from handbill.messaging.limits import TIERS
from handbill.messaging.model import (
    Accepted,
    Account,
    Credentials,
    Lost,
    Media,
    Message,
    Refused,
    TemplateSend,
    Text,
    Unwritten,
)
from handbill.messaging.providers.graph import Graph as Client
from handbill.messaging.providers.graph import Reply
from handbill.messaging.providers.port import Provider
from handbill.messaging.providers.whatsapp import WhatsApp, outcome_of, send_body
from handbill.messaging.render import Binding, Filled, fill
from tests.kit.graph import NUMBER, WABA, Graph, StillClock, graph, many_numbers
from tests.kit.waiting import eventually, soon

ACCOUNT = Account(tenant_id=1, number_id=NUMBER, waba_id=WABA, secret="whatsapp/1")
HELLO = TemplateSend("hello_world", "en_US")


class Kept:
    """Secrets as the core would open them."""

    def __init__(self, token: str = "good", app_secret: str | None = "s") -> None:
        self.value = Credentials(token, app_secret)

    async def credentials(self, account: Account) -> Credentials:
        return self.value


@asynccontextmanager
async def provider(url: str, *, insecure: bool = True, **options: Any) -> AsyncIterator[Provider]:
    made = WhatsApp(Client(url, insecure=insecure, **options), Kept())
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def both(config: Config | None = None, clock: StillClock | None = None) -> AsyncIterator[tuple[Graph, Provider]]:
    config = config or Config(app_secret="s", require_proof=True)
    async with graph(config, clock) as fake, provider(fake.url) as made:
        yield fake, made


def hello(n: int = 0) -> Message:
    return Message(f"4915{n:06d}", HELLO, f"c:{n}")


async def test_a_template_a_text_and_a_picture_arrive() -> None:
    async with both() as (fake, whatsapp):
        sent = await whatsapp.send(ACCOUNT, hello())
        assert isinstance(sent, Accepted)
        assert sent.address == "4915000000"
        await fake.control(inbound=[{"number": NUMBER, "sender": "4915000001", "text": "hi"}])
        media = await whatsapp.upload(ACCOUNT, b"picture", mime="image/png", filename="a.png")
        assert fake.world.media[media]["sha256"] == hashlib.sha256(b"picture").hexdigest()
        for content in (Text("Hello"), Media("image", media_id=media, caption="See"), Media("video", link="https://x")):
            assert isinstance(await whatsapp.send(ACCOUNT, Message("4915000001", content, "n", "wamid.1")), Accepted)
        log = await fake.log()
        assert [line["kind"] for line in log] == ["template", "text", "image", "video"]
        assert log[0]["wamid"] == sent.wamid


async def test_a_refusal_carries_its_code() -> None:
    async with both() as (fake, whatsapp):
        refused = await whatsapp.send(ACCOUNT, Message("4915000001", Text("Hello"), "n"))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.http_status) == (131047, 400)
        await fake.control(dead=True)
        dead = await whatsapp.send(ACCOUNT, hello())
        assert isinstance(dead, Refused)
        assert (dead.code, dead.subcode) == (190, 463)
        assert by_outcome(dead).action is Action.PAUSE_TENANT  # type: ignore[union-attr]
        with pytest.raises(Conflict) as caught:
            await whatsapp.templates(ACCOUNT)
        assert caught.value.code == "PROVIDER_TOKEN"


async def test_nothing_was_written_when_nobody_listens() -> None:
    async with provider("http://127.0.0.1:1") as whatsapp:
        outcome = await whatsapp.send(ACCOUNT, hello())
        assert isinstance(outcome, Unwritten)
        with pytest.raises(Busy) as caught:
            await whatsapp.number(ACCOUNT)
        assert caught.value.code == "PROVIDER_AWAY"


async def test_waiting_for_a_free_connection_writes_nothing() -> None:
    hold = asyncio.Event()
    taken = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        taken.set()
        await hold.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, provider(url, connections=1, connect_s=0.05) as whatsapp:
        while not taken.is_set():  # a slow machine may need more than the short time that connecting has here
            first = asyncio.create_task(whatsapp.send(ACCOUNT, hello(1)))
            arrived = asyncio.create_task(taken.wait())
            await soon(asyncio.wait((first, arrived), return_when=asyncio.FIRST_COMPLETED))
            arrived.cancel()
        assert isinstance(await whatsapp.send(ACCOUNT, hello(2)), Unwritten)
        hold.set()
        assert isinstance(await first, Lost), "this one had been read when the connection ended"


async def test_a_late_answer_is_a_lost_one() -> None:
    async with graph(Config(faults=Faults(latency_ms=60_000))) as fake, provider(fake.url, answer_s=0.05) as whatsapp:
        assert isinstance(await whatsapp.send(ACCOUNT, hello()), Lost)
        (line,) = await eventually(fake.log)
        assert line["outcome"] == "accepted", "it was taken: sending it again would have been wrong"


async def test_every_fault_ends_in_the_outcome_that_the_log_allows() -> None:
    rates = Faults(lost_answer=0.1, dropped=0.1, bare_5xx=0.1, bare_5xx_taken=0.1, graph_5xx=0.1, throttled=0.1)
    numbers = many_numbers(1, per_second=1_000_000)
    async with both(Config(seed=11, app_secret="s", numbers=numbers, faults=rates)) as (fake, whatsapp):
        outcomes = await asyncio.gather(*(whatsapp.send(ACCOUNT, hello(n)) for n in range(150)))
        log = {line["opaque"]: line for line in await fake.log()}
        assert len(log) == 150
        for n, outcome in enumerate(outcomes):
            line = log[f"c:{n}"]
            kinds: dict[str, type[object]] = {"accepted": Accepted, "refused": Refused, "lost": Lost, "dropped": Lost}
            assert type(outcome) is kinds[line["outcome"]], (outcome, line)
            if isinstance(outcome, Accepted):
                assert outcome.wamid == line["wamid"]
            if isinstance(outcome, Refused):
                assert outcome.code == line["code"]
        seen = Counter(line["outcome"] for line in log.values())
        assert min(seen[kind] for kind in ("accepted", "refused", "lost", "dropped")) > 5


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b'{"messages":[{"id":"wamid.1"}]}', Accepted),
        (200, b'{"messages":[{"id":"w","message_status":"held_for_quality_assessment"}],"new":1}', Accepted),
        (200, b'{"messages":[{"id":"w","message_status":7}],"contacts":[7]}', Accepted),
        (200, b'{"messages":[]}', Lost),
        (200, b"{}", Lost),
        (200, b"<html>", Lost),
        (204, b"", Lost),
        (302, b"", Lost),
        (403, b"<html>forbidden by a proxy</html>", Lost),
        (500, b'{"error":"text"}', Lost),
        (502, b"\xff", Lost),
        (500, b'{"error":{"code":131000,"error_data":"text"}}', Refused),
        (500, b'{"error":{"code":2,"message":"m","new":[]}}', Refused),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, kind: type) -> None:
    outcome = outcome_of(Reply(status, body))
    assert type(outcome) is kind
    if b"held" in body:
        assert outcome == Accepted("w", None, held=True)


async def test_templates_are_read_page_by_page_and_sent_as_rendered() -> None:
    async with both() as (fake, whatsapp):
        rows = [
            {"id": str(700 + n), "name": f"t_{n:03d}", "language": "en", "status": "NEW_STATE" if n == 7 else "PAUSED"}
            for n in range(230)
        ]
        await fake.control(templates={WABA: rows})
        parts = [{"type": "BODY", "text": "Hi {{1}}"}]
        made = await whatsapp.create_template(
            ACCOUNT, name="sale", language="en", category="MARKETING", components=parts
        )
        assert made.state == "PENDING"
        found = {one.name: one for one in await whatsapp.templates(ACCOUNT)}
        assert len(found) == 232
        assert found["t_007"].state == "UNKNOWN"
        assert found["sale"].components == tuple(parts)
        await fake.control(template={"name": "sale", "status": "APPROVED"})
        filled = fill(found["sale"], {"body.1": Binding("name")}, {"name": "Ada"})
        assert isinstance(filled, Filled)
        assert isinstance(await whatsapp.send(ACCOUNT, Message("4915000001", filled.send, "x")), Accepted)
        with pytest.raises(Conflict) as caught:
            await whatsapp.create_template(ACCOUNT, name="sale", language="en", category="X", components=parts)
        assert caught.value.code == "PROVIDER_REFUSED"
        await whatsapp.delete_template(ACCOUNT, "sale")
        assert "sale" not in {one.name for one in await whatsapp.templates(ACCOUNT)}


async def test_what_a_number_and_a_token_are_good_for() -> None:
    async with both(Config(app_secret="s", tiers={"300000000000001": 10_000})) as (_, whatsapp):
        info = await whatsapp.number(ACCOUNT)
        assert (info.per_second, info.tier, info.quality) == (80, TIERS["TIER_10K"], "GREEN")
        assert (await whatsapp.token(ACCOUNT)).valid


def test_addresses_that_would_carry_tokens_in_the_open_are_refused() -> None:
    for url in (
        "http://graph.example",
        "http://127.0.0.1:9400",
        "https://10.0.0.1",
        "https://１０.０.０.１",
        "https://user@graph.example",
        "ftp://x",
        "https://",
    ):
        with pytest.raises(Invalid) as caught:
            Client(url)
        assert caught.value.code == "OUTGOING_REFUSED"


async def test_a_public_name_that_leads_inside_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async def inside(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", inside)
    async with provider("https://graph.example", insecure=False) as whatsapp:
        outcome = await whatsapp.send(ACCOUNT, hello())
        assert outcome == Unwritten("no connection (ClientConnectorDNSError)"), "not even tried"


async def test_ids_are_digits_and_notes_are_short() -> None:
    async with provider("http://127.0.0.1:1") as whatsapp:
        with pytest.raises(Invalid):
            await whatsapp.send(msgspec.structs.replace(ACCOUNT, number_id="1/../2"), hello())
    with pytest.raises(Invalid):
        send_body(Message("49", HELLO, "x" * 513))
    with pytest.raises(Invalid):
        send_body(Message("49", Media("image"), "x"))


def test_credentials_are_never_shown() -> None:
    assert "hunter2" not in repr(Credentials("hunter2", "hunter2"))


@given(
    code=st.integers(-(2**63), 2**63 - 1),
    text=st.text(st.characters(), max_size=1_000),
    status=st.sampled_from([400, 500]),
)
def test_provider_answers_can_always_be_stored(code: int, text: str, status: int) -> None:
    escaped = b'"' + b"".join(b"\\u%04x" % (ord(letter) & 0xFFFF) for letter in text + "\0\ud800") + b'"'
    refused = outcome_of(Reply(status, b'{"error":{"code":%d,"error_data":{"details":%s}}}' % (code, escaped)))
    if isinstance(refused, Refused):
        assert -(2**31) <= refused.code < 2**31
        assert_storable(refused.details)
    accepted = outcome_of(Reply(200, b'{"messages":[{"id":%s}],"contacts":[{"wa_id":%s}]}' % (escaped, escaped)))
    if isinstance(accepted, Accepted):
        assert_storable(accepted.wamid)
        assert_storable(accepted.address or "")


def test_provider_keeps_a_refusal_with_a_huge_code_or_a_nul() -> None:
    body = b'{"error":{"code":%d,"error_data":{"details":"a\\u0000b"}}}' % (2**40)
    assert outcome_of(Reply(400, body)) == Refused(0, "ab", 400)


async def test_provider_without_credentials_sends_nothing() -> None:
    class Failing:
        async def credentials(self, account: Account) -> Credentials:
            raise Busy("later")

    async with graph() as fake:
        whatsapp = WhatsApp(Client(fake.url, insecure=True), Failing())
        assert isinstance(await whatsapp.send(ACCOUNT, hello()), Unwritten)
        with pytest.raises(Busy):
            await whatsapp.open_credentials(ACCOUNT)
        await whatsapp.close()


def assert_storable(text: str) -> None:
    assert "\0" not in text
    assert len(text) <= 500
    text.encode()
