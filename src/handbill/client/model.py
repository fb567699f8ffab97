"""What the client hands out and takes: small frozen values in the words of the wire."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any, Literal

import msgspec

from handbill.client.ids import new_id

Kind = Literal["impression", "view", "click", "event"]
How = Literal["timer", "dismiss", "leave"]
"""How a showing ended: its time was over, the user dismissed it, or the user went away."""


class Banner(msgspec.Struct, frozen=True):
    """One banner to show, for `z_duration_sec` seconds."""

    banner_id: str
    z_duration_sec: float
    variant: str | None = None
    title: str | None = None
    description: str | None = None
    image_url: str | None = None
    asset_url: str | None = None
    click_url: str | None = None
    token: str | None = None
    expires_at: str | None = None
    campaign_id: str | None = None


class Showing(msgspec.Struct, frozen=True):
    """One banner on one screen, once. Its id makes the ids of everything reported about it."""

    id: str
    banner: Banner
    placement_id: str | None
    user: str
    session: str | None = None
    device: str | None = None
    at: int = 0
    page: str | None = None
    referrer: str | None = None
    viewable: bool | None = None


class Moment(msgspec.Struct, frozen=True):
    """Whose an event is, and when: `id` makes its id; `user` is who is known, `device` who is not."""

    id: str
    at: int
    user: str | None = None
    device: str | None = None
    context: dict[str, Any] = {}

    @classmethod
    def now(cls, user: str | None = None, device: str | None = None, **context: Any) -> Moment:
        return cls(new_id(), time.time_ns() // 1_000_000, user, device, context)


class Decision(msgspec.Struct, frozen=True):
    """What one placement shows now."""

    placement: str | None
    placement_id: str | None
    banners: tuple[Banner, ...]

    def showing(self, banner: Banner, *, user: str, session: str | None = None, device: str | None = None) -> Showing:
        """A showing that begins now."""
        now = time.time_ns() // 1_000_000
        return Showing(new_id(), banner, self.placement_id, user, session, device, now)


class Report(msgspec.Struct, frozen=True):
    """The two facts of a view."""

    view_duration_ms: int
    dismissed: bool


class Fate(msgspec.Struct, frozen=True):
    """Whether a report is sent again, and after how long at the earliest.

    With `batch_max` its batch was too large: it is sent again at once, in batches of so many.
    """

    keep: bool
    wait_ms: int
    batch_max: int | None = None


class State(StrEnum):
    KEPT = "kept"
    QUEUED = "queued"
    REFUSED = "refused"


class Outcome(msgspec.Struct, frozen=True):
    """What became of a report: durable on the server, waiting here, or refused for good with the server's code."""

    state: State
    code: str | None = None

    @property
    def kept(self) -> bool:
        return self.state is State.KEPT
