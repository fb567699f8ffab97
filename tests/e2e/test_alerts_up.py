"""`handbill up` reports a worker that hangs, and its recovery, to a webhook; `handbill alerts test` tries senders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from tests.e2e._up import ready, settings_of
from tests.kit.processes import free_port, handbill, process
from tests.kit.waiting import eventually


@contextlib.asynccontextmanager
async def webhook(bodies: list[dict[str, Any]]) -> AsyncIterator[str]:
    async def post(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/alerts", post)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/alerts"
    finally:
        await runner.cleanup()


def worker_of(home: Path) -> psutil.Process:
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_worker = candidate.cmdline()[-2:] == ["handbill.cli", "worker"]
            if is_worker and candidate.environ().get("HANDBILL_HOME") == str(home):
                return candidate
    raise AssertionError("there is no worker")


@pytest.mark.timeout(600)
async def test_a_worker_that_hangs_is_reported_and_so_is_its_recovery(short_tmp: Path) -> None:
    home, bodies = short_tmp / "home", list[dict[str, Any]]()

    def reported(status: str) -> bool:
        return any(
            one["status"] == status and one["alert"] == "HandbillDown" and one["labels"]["job"] == "handbill-worker"
            for body in bodies
            for one in body["incidents"]
        )

    async with webhook(bodies) as url:
        env = {
            **settings_of(home),
            "HANDBILL_API__METRICS_PORT": str(free_port()),
            "HANDBILL_WORKER__METRICS_PORT": str(free_port()),
            "HANDBILL_ALERTS__WEBHOOK_URL": url,
            "HANDBILL_ALERTS__INTERVAL_S": "1",
        }
        async with process("up", "--json", "--json-logs", env=env) as up:
            await ready(up)
            await up.log(event="alerts.watching")
            pid = worker_of(home).pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await eventually(lambda: reported("opened"), timeout=120)
            finally:
                with contextlib.suppress(ProcessLookupError):  # a supervisor may have replaced it by now
                    os.kill(pid, signal.SIGCONT)
            await eventually(lambda: reported("recovered"), timeout=180)
            assert await up.stop() == 0, up.tail()
    downs = [one for body in bodies for one in body["incidents"] if one["alert"] == "HandbillDown"]
    assert [one["status"] for one in downs] == ["opened", "recovered"]


async def test_a_test_message_says_how_each_sender_ended(short_tmp: Path) -> None:
    bodies = list[dict[str, Any]]()
    home = {"HANDBILL_HOME": str(short_tmp / "home")}
    async with webhook(bodies) as url:
        code, output = await handbill("alerts", "test", "--json", env={**home, "HANDBILL_ALERTS__WEBHOOK_URL": url})
        assert (code, json.loads(output)) == (0, {"webhook": "sent"})
        assert "Test message" in bodies[0]["text"]
        email = {
            "HANDBILL_ALERTS__EMAIL_TO": "a@example.com",
            "HANDBILL_ALERTS__EMAIL_FROM": "b@example.com",
            "HANDBILL_ALERTS__SMTP_HOST": "127.0.0.1",
            "HANDBILL_ALERTS__SMTP_PORT": str(free_port()),
        }
        code, output = await handbill(
            "alerts", "test", "--json", env={**home, **email, "HANDBILL_ALERTS__WEBHOOK_URL": url}
        )
        assert code == 1
        results = json.loads(output)
        assert results["webhook"] == "sent"
        assert "did not accept" in results["email"]


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("HANDBILL_ALERTS__NAME", "x", "No sender of alerts is configured"),
        ("HANDBILL_ALERTS__EMAIL_TO", "a@example.com", "HANDBILL_ALERTS__SMTP_HOST is needed"),
        ("HANDBILL_ALERTS__WEBHOOK_URL", "http://10.0.0.1/x", "HANDBILL_ALERTS__WEBHOOK_URL cannot be used"),
    ],
)
async def test_settings_that_cannot_work_are_named(short_tmp: Path, setting: str, value: str, words: str) -> None:
    for command in (("watch",), ("alerts", "test")):
        code, output = await handbill(*command, env={"HANDBILL_HOME": str(short_tmp / "home"), setting: value})
        assert code == 2, output
        assert words in output


async def test_watch_reports_a_page_that_does_not_answer(short_tmp: Path) -> None:
    bodies = list[dict[str, Any]]()
    async with webhook(bodies) as url:
        env = {
            "HANDBILL_HOME": str(short_tmp / "home"),
            "HANDBILL_ALERTS__WEBHOOK_URL": url,
            "HANDBILL_ALERTS__INTERVAL_S": "1",
            "HANDBILL_ALERTS__SCRAPE": f"handbill-api=http://127.0.0.1:{free_port()}/metrics",
        }
        async with process("watch", env=env) as watch:
            await eventually(lambda: bool(bodies), timeout=120)
            assert await watch.stop() == 0, watch.tail()
    assert bodies[0]["incidents"][0]["labels"]["job"] == "handbill-api"
    assert (short_tmp / "home" / "run" / "alerts-watch.json").exists()
