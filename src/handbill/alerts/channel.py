"""What one sender has reported and still has to report: once per incident, in order, within a limit per hour.

A sender that fails is tried again after a growing pause. It neither loses an incident nor delays another sender.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from handbill.alerts.incidents import Incident
from handbill.alerts.messages import MAX_CHANGES, Change, Message

HOUR_MS = 3_600_000
MAX_WAITING = 200
"""Ended incidents that wait for a sender that fails; of older ones only the number is kept."""
FIRST_RETRY_MS = 5_000
LONGEST_RETRY_MS = 300_000


class Sender(Protocol):
    """Delivers one message, or raises HandbillError with the reason."""

    name: str

    async def send(self, message: Message) -> None: ...

    async def close(self) -> None: ...


class ChannelState(msgspec.Struct):
    """What is kept of a channel over a restart."""

    reported: list[Incident] = []
    """Incidents whose beginning was reported and whose end was not."""
    waiting: list[Incident] = []
    """Incidents that are over and whose end is to be reported; also those whose beginning never was."""
    dropped: int = 0
    sent_ms: list[int] = []
    is_limited: bool = False


class Channel:
    """One sender's account of the incidents. Times come in as arguments, milliseconds since 1970."""

    def __init__(self, sender: Sender, installation: str, max_per_hour: int, state: ChannelState) -> None:
        self.sender = sender
        self.state = state
        self._installation = installation
        self._max_per_hour = max_per_hour
        self._failures = 0
        self._retry_ms = 0

    def add_recovered(self, incidents: Iterable[Incident]) -> None:
        """Incidents that have just ended."""
        self.state.waiting += incidents
        if over := self.state.waiting[:-MAX_WAITING]:
            self.state.dropped += len(over)
            self._forget(over)

    def next_message(self, now_ms: int, open_incidents: Collection[Incident]) -> Message | None:
        """What is to be sent now; None if there is nothing, or it must wait."""
        changes = self._changes(open_incidents)
        if now_ms < self._retry_ms or not (changes or self.state.dropped):
            return None
        self.state.sent_ms = [when for when in self.state.sent_ms if now_ms - when < HOUR_MS]
        if self.state.is_limited and len(self.state.sent_ms) > self._max_per_hour // 2:
            return None
        self.state.is_limited = False
        if len(self.state.sent_ms) >= self._max_per_hour - 1:
            note = (
                f"More than {self._max_per_hour} messages in an hour. The next one summarises what changes until then."
            )
            return Message(self._installation, note=note, is_limit_notice=True)
        return Message(self._installation, tuple(changes[:MAX_CHANGES]), dropped=self.state.dropped)

    def record_sent(self, message: Message, now_ms: int) -> None:
        """The message was delivered: its changes are reported."""
        self._failures, self._retry_ms = 0, 0
        self.state.sent_ms.append(now_ms)
        self.state.is_limited = message.is_limit_notice
        self.state.dropped -= message.dropped
        self.state.reported += [one.incident for one in message.changes if one.kind == "opened"]
        self._forget([one.incident for one in message.changes if one.kind != "opened"])

    def record_failed(self, now_ms: int) -> float:
        """The message was not delivered; returns the seconds until the next try."""
        pause = min(FIRST_RETRY_MS << min(self._failures, 10), LONGEST_RETRY_MS)
        self._failures += 1
        self._retry_ms = now_ms + pause
        return pause / 1000

    def _changes(self, open_incidents: Collection[Incident]) -> list[Change]:
        """Ends first: who reads the newest lines last sees what is open now."""
        reported = {_identity(one) for one in self.state.reported}
        changes = [Change("recovered" if _identity(one) in reported else "missed", one) for one in self.state.waiting]
        return changes + [Change("opened", one) for one in open_incidents if _identity(one) not in reported]

    def _forget(self, incidents: Iterable[Incident]) -> None:
        ended = {_identity(one) for one in incidents}
        self.state.reported = [one for one in self.state.reported if _identity(one) not in ended]
        self.state.waiting = [one for one in self.state.waiting if _identity(one) not in ended]


def restore_channel_state(state: ChannelState | None, open_incidents: Iterable[Incident]) -> ChannelState:
    """A saved state without incidents that ended while their sender was not configured."""
    if state is None:
        return ChannelState()
    current = {_identity(one) for one in (*open_incidents, *state.waiting)}
    state.reported = [one for one in state.reported if _identity(one) in current]
    return state


def _identity(incident: Incident) -> tuple[object, int]:
    return (incident.key, incident.opened_ms)
