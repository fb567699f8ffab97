"""Reads the metrics pages, evaluates the conditions and has incidents reported, until it is stopped.

Nothing that one round or one sender does ends the others: what fails is logged and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
from handbill.kit.telemetry import logs

_log = logs.get("alerts")
_WATCHED = tuple(one for one in CONDITIONS if not one.prometheus_only)
_CHANNEL_POLL_S = 1.0
_RESTART_S = 5.0
SEND_TIMEOUT_S = 60.0


class WatchPolicy(msgspec.Struct, frozen=True):
    """How often pages are read, how much is sent, and where open incidents are kept over a restart."""

    installation: str
    interval_s: float
    max_per_hour: int
    state_path: Path


class Watcher:
    """`run` watches until it is cancelled; `close` afterwards gives back what is open."""

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

    def watch_certificate(self, check: CertificateCheck) -> None:
        """Also watch the end of a certificate."""
        self._certificate = check

    async def run(self) -> None:
        _log.info("alerts.watching", senders=[one.sender.name for one in self.channels])
        async with asyncio.TaskGroup() as group:
            for channel in self.channels:
                group.create_task(self._deliver(channel), name=f"alerts-{channel.sender.name}")
            while True:
                began = self._clock.monotonic()
                await self._try_round()
                spent = self._clock.monotonic() - began
                await asyncio.sleep(max(0.1, self._policy.interval_s - spent))

    async def close(self) -> None:
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
        except (HandbillError, TimeoutError) as error:
            pause = channel.record_failed(self._clock.now_ms())
            reason = error.detail if isinstance(error, HandbillError) else "no answer in time"
            _log.warning("alerts.send_failed", sender=channel.sender.name, reason=reason, retry_s=pause)
        else:
            channel.record_sent(message, self._clock.now_ms())
            self._save()
        return True

    async def _try_round(self) -> None:
        try:
            await self.check()
        except Exception as error:  # noqa: BLE001 - a watcher that ends in silence would be the very fault it is for
            _log.exception("alerts.check_failed", error=f"{type(error).__name__}: {error}")

    async def _deliver(self, channel: Channel) -> None:
        while True:
            try:
                await self.deliver_once(channel)
            except Exception as error:  # noqa: BLE001 - the same
                pause = channel.record_failed(self._clock.now_ms())
                _log.exception("alerts.send_failed", sender=channel.sender.name, retry_s=pause, error=str(error))
            await asyncio.sleep(min(_CHANNEL_POLL_S, self._policy.interval_s))

    def _save(self) -> None:
        states = {one.sender.name: one.state for one in self.channels}
        save_state(self._policy.state_path, list(self.incidents.open.values()), states)


def _log_changes(opened: Sequence[Incident], recovered: Sequence[Incident]) -> None:
    for incident in opened:
        _log.warning("alerts.opened", alert=incident.condition, detail=summary(incident))
    for incident in recovered:
        _log.info("alerts.recovered", alert=incident.condition, detail=summary(incident))


async def run_watcher(watcher: Watcher, stop: asyncio.Event) -> None:
    """Watch until `stop` is set; a watcher that ends by itself is started again."""
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            task = asyncio.create_task(watcher.run(), name="alerts-watcher")
            try:
                await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                task.cancel()
                (error,) = await asyncio.gather(task, return_exceptions=True)
            if not stop.is_set():
                _log.error("alerts.watcher_ended", error=f"{type(error).__name__}: {error}")
                await asyncio.wait([stopping], timeout=_RESTART_S)
    finally:
        stopping.cancel()
        await watcher.close()
