"""Reads the metrics pages, evaluates the conditions and has incidents reported, until it is stopped.

Nothing that one round or one sender does ends the others: what fails is logged and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from handbill.alerts.certificate import CertificateCheck
from handbill.alerts.channel import Channel, Sender
from handbill.alerts.channel import restore_channel_state as restore
from handbill.alerts.conditions import CONDITIONS
from handbill.alerts.evaluation import Evaluator, Page
from handbill.alerts.incidents import Incident, IncidentTracker
from handbill.alerts.messages import summary
from handbill.alerts.pages import PageReader
from handbill.alerts.state_file import load_state, save_state
from handbill.kit.clock import Clock
from handbill.kit.errors import HandbillError
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs

_log = logs.get("alerts")
_WATCHED = tuple(one for one in CONDITIONS if not one.prometheus_only)
_CHANNEL_POLL_S = 1.0
SEND_TIMEOUT_S = 60.0


class WatchPolicy(msgspec.Struct, frozen=True):
    """How often pages are read, how much is sent, and where open incidents are kept over a restart."""

    installation: str
    interval_s: float
    max_per_hour: int
    state_path: Path


class Watcher:
    """Watches and sends between `start` and `stop`."""

    def __init__(self, reader: PageReader, senders: Sequence[Sender], policy: WatchPolicy, clock: Clock) -> None:
        self._reader = reader
        self._policy = policy
        self._clock = clock
        self._evaluator = Evaluator(_WATCHED)
        state = load_state(policy.state_path)
        self.incidents = IncidentTracker(_WATCHED, state.open)
        self.channels = [
            Channel(
                sender, policy.installation, policy.max_per_hour, restore(state.channels.get(sender.name), state.open)
            )
            for sender in senders
        ]
        self._certificate: CertificateCheck | None = None
        self._tasks: list[BackgroundTask] = []

    def watch_certificate(self, check: CertificateCheck) -> None:
        """Also watch the end of a certificate."""
        self._certificate = check

    async def start(self) -> None:
        """Begin to watch and to send, each in a background task of its own."""
        _log.info("alerts.watching", senders=[one.sender.name for one in self.channels])
        self._tasks = [BackgroundTask("alerts-check", self.check, period_s=self._policy.interval_s)]
        period_s = min(_CHANNEL_POLL_S, self._policy.interval_s)
        for channel in self.channels:
            name = f"alerts-{channel.sender.name}"
            health = TaskHealth(name, limit_s=SEND_TIMEOUT_S + 10)
            deliver = partial(self.deliver_once, channel)
            self._tasks.append(BackgroundTask(name, deliver, period_s=period_s, health=health))
        for task in self._tasks:
            await task.start()

    async def stop(self) -> None:
        """Stop watching and give back what is open; what was not sent yet is sent after the next start."""
        while self._tasks:
            await self._tasks.pop().stop()
        await self._reader.close()
        for channel in self.channels:
            await channel.sender.close()

    async def check(self) -> None:
        """One round: read, evaluate, and note what has begun and ended."""
        pages = await self._reader.read()
        is_whole = all(page.is_up for page in pages)
        if self._certificate is not None:
            pages = [*pages, await self._certificate.page()]
        self.note(pages, is_whole=is_whole)

    def note(self, pages: Sequence[Page], *, is_whole: bool) -> None:
        """Evaluate pages that were read just now."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        troubles = self._evaluator.observe(now, now_ms / 1000, pages)
        before = set(self.incidents.open)
        recovered = self.incidents.update(now, now_ms, troubles, can_recover=is_whole)
        opened = [one for key, one in self.incidents.open.items() if key not in before]
        _log_changes(opened, recovered)
        for channel in self.channels:
            channel.add_recovered(recovered)
        if opened or recovered:
            self._save()

    async def deliver_once(self, channel: Channel) -> bool:
        """Send what one channel has to send now; whether anything was tried."""
        message = channel.next_message(self._clock.now_ms(), self.incidents.open.values())
        if message is None:
            return False
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await channel.sender.send(message)
        except Exception as error:  # noqa: BLE001 - whatever a sender raises, its message is tried again later
            pause = channel.record_failed(self._clock.now_ms())
            reason = error.detail if isinstance(error, HandbillError) else f"{type(error).__name__}: {error}"
            _log.warning("alerts.send_failed", sender=channel.sender.name, reason=reason, retry_s=pause)
        else:
            channel.record_sent(message, self._clock.now_ms())
            self._save()
        return True

    def _save(self) -> None:
        states = {one.sender.name: one.state for one in self.channels}
        save_state(self._policy.state_path, list(self.incidents.open.values()), states)


def _log_changes(opened: Sequence[Incident], recovered: Sequence[Incident]) -> None:
    for incident in opened:
        _log.warning("alerts.opened", alert=incident.condition, detail=summary(incident))
    for incident in recovered:
        _log.info("alerts.recovered", alert=incident.condition, detail=summary(incident))


async def run_watcher(watcher: Watcher, stop: asyncio.Event) -> None:
    """Watch until `stop` is set."""
    try:
        await watcher.start()
        await stop.wait()
    finally:
        await watcher.stop()
