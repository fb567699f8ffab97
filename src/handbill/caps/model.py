"""The words of this room: who is capped (subject), by what (scope), how (limits), and one counted view."""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b

import msgspec

from handbill.kit.errors import Fault, Invalid

EPOCH_MS = 1_704_067_200_000
"""2024-01-01: packed times count from here, in 39 bits of milliseconds, which last until June 2041."""
FOREVER_MS = (1 << 39) - 1
"""The window of a lifetime limit: a window without an end."""
OPEN_MS = 7 * 86_400_000
"""An unconfirmed time is kept this long beyond its window: until it is committed nobody else has it, and the window
may be raised. A longer outage of PostgreSQL than this is no longer a matter of caps."""
MAX_TIMES = 1_000
"""The largest X, and the most times kept per scope: a value stays bounded whatever a client sends."""
FINGERPRINT_BITS = 32
"""With five times kept, a view meets another one's print once in 8 x 10^8, and is then shown once too often.

Sixteen bits had been too few; 38 measured four bytes more for each (user, banner) at X = 5.
"""
SCOPE_IDS = 1 << 29
LEASED = 1 << 31
"""Set in a scope, this bit means its leases: slots that a strict decision holds until their time."""
ANY_LEASE = (1 << 32) - 1
"""For a view that cannot name its lease: the one that ends first is given back. Numbers of leases stay below it."""
SESSION_MS = 24 * 3_600_000
"""A session is remembered for a day after its last view: whoever comes back later has begun another one."""


class Kind(IntEnum):
    """What a limit counts over."""

    BANNER = 0
    CAMPAIGN = 1
    PLACEMENT = 2


class By(IntEnum):
    """Whose views are counted together. Each is a subject with a value of its own."""

    USER = 0
    DEVICE = 1  # without a device: the user's views that had none
    SESSION = 2  # of one user; without a session such a limit does not bind


class State(IntEnum):
    """How sure a time is."""

    MOVED = 0  # accepted at the edge, not yet committed: only this value knows it
    CONFIRMED = 1  # committed: PostgreSQL knows it too


class Verb(IntEnum):
    MOVE = 1
    CONFIRM = 2
    TAKE_BACK = 3


class Window(msgspec.Struct, frozen=True):
    """At most `x` views in any `y_ms`. A view exactly `y_ms` old no longer counts; one millisecond younger, it does."""

    x: int
    y_ms: int = FOREVER_MS

    def __post_init__(self) -> None:
        faults = []
        if not 1 <= self.x <= MAX_TIMES:
            faults.append(Fault("x", f"must be from 1 to {MAX_TIMES}"))
        if not 1 <= self.y_ms <= FOREVER_MS:
            faults.append(Fault("y", "must be at least one millisecond and at most 17 years"))
        if faults:
            raise Invalid("The limit is not one that can be kept.", faults=faults)


class Limits(msgspec.Struct, frozen=True):
    """All windows of one scope; every one of them must have room.

    `known_from_ms` is set when a limit was raised: views before that moment may have been dropped under the old limit,
    so that until the back-fill has run a "yes" that rests on their absence is not sure.
    """

    windows: tuple[Window, ...]
    known_from_ms: int = 0

    @property
    def keep(self) -> int:
        """How many committed times any window can need."""
        return max(window.x for window in self.windows)

    @property
    def horizon_ms(self) -> int:
        """The age at which a time matters to no window any more."""
        return max(window.y_ms for window in self.windows)


class Rule(msgspec.Struct, frozen=True):
    """The limits of one scope for one sort of subject."""

    by: By
    scope: int
    limits: Limits


class Subject(msgspec.Struct, frozen=True):
    """Whose value it is: a person or user id, a device, a session; "alone" is a user without a device.

    The last is apart from the user's own value: that one keeps what was counted by user, whatever the device.
    """

    tenant_id: int
    id: str
    kind: str = "user"


class Viewer(msgspec.Struct, frozen=True):
    """Who looks at banners, as far as the request or the stored view says."""

    tenant_id: int
    user_id: str
    device_id: str | None = None
    session_id: str | None = None

    def subject(self, by: By) -> Subject | None:
        """The subject a rule counts for; None where the rule does not bind."""
        if by is By.SESSION:
            return Subject(self.tenant_id, f"{self.user_id}\0{self.session_id}", "session") if self.session_id else None
        if by is By.DEVICE:
            alone = Subject(self.tenant_id, self.user_id, "alone")
            return Subject(self.tenant_id, self.device_id, "device") if self.device_id else alone
        return Subject(self.tenant_id, self.user_id)


class Change(msgspec.Struct, frozen=True):
    """One view's effect on one scope. Repeating it changes nothing; the fingerprint says which event it was.

    A move with a `lease` gives that lease back: by its number, or (ANY_LEASE) the one that ends first, once per view.
    """

    verb: Verb
    scope: int
    at_ms: int
    fingerprint: int
    keep: int
    horizon_ms: int
    lease: int = 0


class Seen(msgspec.Struct, frozen=True):
    """One time kept for a scope."""

    at_ms: int
    fingerprint: int
    state: State


class Verdict(msgspec.Struct, frozen=True):
    """May it be shown now; if not, from when on (None: never again). `unsure` asks for PostgreSQL's word first."""

    eligible: bool
    next_eligible_at: int | None
    unsure: bool = False


def scope(kind: Kind, number: int) -> int:
    """A scope in four bytes: one bit for leases, two of kind, 29 of the internal id. A banner's scope is its own id."""
    if not 0 <= number < SCOPE_IDS:
        raise Invalid(
            f"An id of {number} does not fit a cap's scope.", faults=[Fault("id", f"must be below {SCOPE_IDS}")]
        )
    return kind << 29 | number


def kind_of(scope: int) -> Kind:
    """What the limits of a scope, or of its leases, count over."""
    return Kind((scope & ~LEASED) >> 29)


def fingerprint(event_key: bytes) -> int:
    """An event's short name inside a packed value, cut from its 16-byte key, so that a stored row gives it again."""
    return int.from_bytes(event_key[: FINGERPRINT_BITS // 8], "big")


def digest(subject: Subject) -> bytes:
    """Sixteen bytes for a subject's key: short for Redis, and no user id lies about in it."""
    text = f"{subject.tenant_id}\0{subject.kind}\0{subject.id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
