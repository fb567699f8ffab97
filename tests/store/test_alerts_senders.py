"""Messages over real sockets: an HTTP receiver, an SMTP server, metrics pages that come and go."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from handbill.alerts import certificate
from handbill.alerts.certificate import CertificateCheck
from handbill.alerts.email import EmailSender, SmtpServer
from handbill.alerts.incidents import RECOVERY_S, Incident
from handbill.alerts.messages import Change, Message
from handbill.alerts.pages import MAX_SERIES, PageReader, Target, parse
from handbill.alerts.watcher import Watcher, WatchPolicy, run_watcher
from handbill.alerts.webhook import WebhookSender
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Busy, HandbillError, Invalid
from tests.kit.clocks import FakeClock
from tests.kit.processes import free_port
from tests.kit.waiting import eventually, soon

DOWN = Incident("HandbillDown", (("instance", "h:1"), ("job", "handbill-api")), 0.0, 1_000)
MESSAGE = Message("shop <1>", (Change("opened", DOWN),))


class Hook:
    """Keeps what is posted; `status` is its answer."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    async def post(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.status == 200:
            self.bodies.append(body)
        return web.Response(status=self.status)

    @property
    def incidents(self) -> list[tuple[str, str]]:
        return [(one["status"], one["alert"]) for body in self.bodies for one in body["incidents"]]


class Metrics:
    """A metrics page; `text` None does not answer."""

    def __init__(self) -> None:
        self.text: str | None = "handbill_journal_lag_seconds 0\n"
        self.url = ""

    async def get(self, request: web.Request) -> web.Response:
        if self.text is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(text=self.text)


@asynccontextmanager
async def serving(*handlers: Hook | Metrics) -> AsyncIterator[None]:
    app = web.Application()
    for number, handler in enumerate(handlers):
        if isinstance(handler, Hook):
            app.router.add_post(f"/{number}", handler.post)
        else:
            app.router.add_get(f"/{number}", handler.get)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        for number, handler in enumerate(handlers):
            handler.url = f"http://127.0.0.1:{runner.addresses[0][1]}/{number}"
        yield
    finally:
        await runner.cleanup()


class Mailbox:
    """An SMTP server's memory; `refuse` is what it answers instead of accepting."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []
        self.refuse = ""

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        if self.refuse:
            return self.refuse
        self.mails.append(envelope)
        return "250 OK"

    def login(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        is_right = (data.login, data.password) == (b"user", b"secret")
        return AuthResult(success=is_right, handled=is_right)


@contextmanager
def smtp(mailbox: Mailbox) -> Iterator[int]:
    port = free_port()
    server = Controller(mailbox, hostname="127.0.0.1", port=port, authenticator=mailbox.login, auth_require_tls=False)
    server.start()
    try:
        yield port
    finally:
        server.stop()


def email(port: int, password: str = "secret") -> EmailSender:
    server = SmtpServer("127.0.0.1", port, "none", "user", password)
    return EmailSender(server, "handbill@example.com", ("a@example.com", "b@example.com"))


async def test_a_webhook_gets_text_for_people_and_fields_for_programs() -> None:
    hook = Hook()
    async with serving(hook):
        sender = WebhookSender(hook.url, insecure=True)
        try:
            await sender.send(MESSAGE)
            hook.status = 500
            with pytest.raises(HandbillError, match="answered 500"):
                await sender.send(MESSAGE)
        finally:
            await sender.close()
    (body,) = hook.bodies
    assert body["text"].startswith("CRITICAL HandbillDown: handbill-api at h:1 does not answer\n")
    assert body["installation"] == "shop <1>"
    assert body["incidents"][0]["alert"] == "HandbillDown"
    assert "<" not in body["text"]


async def test_a_webhook_of_ours_goes_to_public_https_only() -> None:
    with pytest.raises(Invalid):
        WebhookSender("http://127.0.0.1:1/x", insecure=False)


async def test_an_email_reaches_all_recipients() -> None:
    mailbox = Mailbox()
    with smtp(mailbox) as port:
        await email(port).send(MESSAGE)
    (mail,) = mailbox.mails
    assert mail.rcpt_tos == ["a@example.com", "b@example.com"]
    content = mail.content
    assert isinstance(content, bytes)
    assert b"Subject: [shop <1>] CRITICAL HandbillDown" in content
    assert b"Runbook: docs/runbook.md#handbilldown" in content


async def test_an_email_that_is_not_accepted_is_an_error_without_the_password() -> None:
    mailbox = Mailbox()
    mailbox.refuse = "451 later"
    with smtp(mailbox) as port:
        with pytest.raises(Busy, match="SMTPDataError 451"):
            await email(port).send(MESSAGE)
        with pytest.raises(Busy, match="SMTPAuthenticationError 535") as refused:
            await email(port, "wrong-secret").send(MESSAGE)
        with pytest.raises(Busy):  # this server offers no STARTTLS, and nothing is sent in the clear instead
            await EmailSender(SmtpServer("127.0.0.1", port, "starttls"), "a@b.c", ("d@e.f",)).send(MESSAGE)
    assert "wrong-secret" not in str(refused.value)
    with pytest.raises(Busy):
        await email(free_port()).send(MESSAGE)
    assert not mailbox.mails


@asynccontextmanager
async def watching(metrics: Metrics, hook: Hook, port: int, path: Path, clock: FakeClock) -> AsyncIterator[Watcher]:
    reader = PageReader([Target("handbill-worker", "w", metrics.url)])
    policy = WatchPolicy("shop", 10.0, 30, path)
    watcher = Watcher(reader, [WebhookSender(hook.url, insecure=True), email(port)], policy, clock)
    try:
        yield watcher
    finally:
        await watcher.stop()


async def round_of(watcher: Watcher, clock: FakeClock, seconds: float = 10) -> None:
    clock.advance(seconds=seconds)
    await watcher.check()
    for channel in watcher.channels:
        await watcher.deliver_once(channel)


async def test_an_incident_is_reported_once_by_each_sender_also_over_failures_and_restarts(tmp_path: Path) -> None:
    metrics, hook, mailbox, clock = Metrics(), Hook(), Mailbox(), FakeClock()
    path = tmp_path / "run" / "alerts.json"
    with smtp(mailbox) as port:
        async with serving(metrics, hook):
            async with watching(metrics, hook, port, path, clock) as watcher:
                await round_of(watcher, clock)
                assert hook.incidents == []
                metrics.text, hook.status = None, 500
                for _ in range(3):
                    await round_of(watcher, clock)
                assert len(mailbox.mails) == 1, "a sender that fails does not delay the other"
                assert hook.incidents == []
            async with watching(metrics, hook, port, path, clock) as watcher:
                hook.status = 200
                for _ in range(4):
                    await round_of(watcher, clock)
                assert hook.incidents == [("opened", "HandbillDown")]
                assert len(mailbox.mails) == 1
                metrics.text = "handbill_journal_lag_seconds 0\n"
                for _ in range(2 + int(RECOVERY_S / 10)):
                    await round_of(watcher, clock)
            async with watching(metrics, hook, port, path, clock) as watcher:
                await round_of(watcher, clock)
    assert hook.incidents == [("opened", "HandbillDown"), ("recovered", "HandbillDown")]
    assert len(mailbox.mails) == 2
    assert json.loads(path.read_text())["open"] == []


async def test_the_watcher_runs_until_it_is_stopped(tmp_path: Path) -> None:
    metrics, hook = Metrics(), Hook()
    metrics.text = "handbill_journal_gaps_total 0\n"
    async with serving(metrics, hook):
        reader = PageReader([Target("handbill-worker", "w", metrics.url)])
        policy = WatchPolicy("shop", 0.1, 30, tmp_path / "alerts.json")
        watcher = Watcher(reader, [WebhookSender(hook.url, insecure=True)], policy, SystemClock())
        stop = asyncio.Event()
        running = asyncio.create_task(run_watcher(watcher, stop))
        await eventually(lambda: len(watcher._evaluator._seen) == 1)
        metrics.text = "handbill_journal_gaps_total 2\n"
        await eventually(lambda: hook.incidents == [("opened", "HandbillJournalGap")])
        stop.set()
        await soon(running)


async def test_a_round_that_fails_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, hook = Metrics(), Hook()
    async with serving(metrics, hook):
        reader = PageReader([Target("handbill-worker", "w", metrics.url)])
        policy = WatchPolicy("shop", 0.1, 30, tmp_path / "alerts.json")
        sender = WebhookSender(hook.url, insecure=True)
        watcher = Watcher(reader, [sender], policy, SystemClock())
        tried = [0, 0]

        async def fail_reading() -> list[Any]:
            tried[0] += 1
            raise RuntimeError("a bug")

        async def fail_sending(message: Message) -> None:
            tried[1] += 1
            raise RuntimeError("another bug")

        with monkeypatch.context() as patch:
            patch.setattr(reader, "read", fail_reading)
            patch.setattr(sender, "send", fail_sending)
            watcher.incidents.open[DOWN.key] = DOWN
            stop = asyncio.Event()
            running = asyncio.create_task(run_watcher(watcher, stop))
            await eventually(lambda: tried[0] > 2 and tried[1] > 0)
        await eventually(lambda: len(watcher._evaluator._seen) == 1)
        stop.set()
        await soon(running)


def test_a_page_is_read_as_far_as_conditions_need_it() -> None:
    page = (
        b"# HELP handbill_journal_lag_seconds x\n# TYPE handbill_journal_lag_seconds gauge\n"
        b'handbill_journal_lag_seconds{lane="a\\"b"} 4.5\nhandbill_journal_lag_seconds_other 1\npython_info 1\n'
    )
    (sample,) = parse(page)
    assert (sample.name, dict(sample.labels), sample.value) == ("handbill_journal_lag_seconds", {"lane": 'a"b'}, 4.5)
    with pytest.raises(ValueError, match="more than"):
        parse(b"handbill_journal_lag_seconds 1\n" * (MAX_SERIES + 1))


@pytest.mark.parametrize("page", [b"handbill_journal_lag_seconds{ 1\n", b"handbill_journal_lag_seconds x\n", b"\xff"])
async def test_a_page_that_cannot_be_read_is_down(page: bytes) -> None:
    with pytest.raises(ValueError):
        parse(page)


async def test_a_certificate_is_asked_for_once_an_hour() -> None:
    clock, asked = FakeClock(), []

    async def read_end(host: str, port: int) -> float:
        asked.append((host, port))
        if len(asked) == 2:
            raise OSError("away")
        return 5.0

    check = CertificateCheck("shop.example", 443, clock, read_end)
    for _ in range(3):
        assert [one.value for one in (await check.page()).samples] == [5.0]
        clock.advance(seconds=certificate.CHECK_EVERY_S / 2)
    assert asked == [("shop.example", 443)] * 2


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(
        made.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem")
    return context


async def test_a_certificate_that_no_browser_accepts_counts_as_ended(tmp_path: Path) -> None:
    clock = FakeClock()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=self_signed(tmp_path))
    port = server.sockets[0].getsockname()[1]
    try:
        page = await CertificateCheck("127.0.0.1", port, clock).page()
    finally:
        server.close()
        await server.wait_closed()
    assert [one.value for one in page.samples] == [clock.now_ms() / 1000]


@pytest.mark.parametrize(("days", "opened"), [(13, ["HandbillCertificateEnds"]), (15, [])])
async def test_a_certificate_that_ends_soon_is_an_incident(tmp_path: Path, days: int, opened: list[str]) -> None:
    clock = FakeClock()

    async def read_end(host: str, port: int) -> float:
        return clock.now_ms() / 1000 + days * 86_400

    reader = PageReader([])
    watcher = Watcher(reader, [], WatchPolicy("shop", 10.0, 30, tmp_path / "alerts.json"), clock)
    watcher.watch_certificate(CertificateCheck("shop.example", 443, clock, read_end))
    await watcher.check()
    await watcher.stop()
    assert [one.condition for one in watcher.incidents.open.values()] == opened
