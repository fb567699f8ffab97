"""What the fake server is told, what it keeps, and what it writes down."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Rate = Annotated[float, Meta(ge=0, le=1)]

WABA = "200000000000001"
PORTFOLIO = "300000000000001"
FIRST_NUMBER = 100_000_000_000_001


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often what goes wrong. Rates are between 0 and 1; they are drawn from the seed and the message, not from the
    order of arrival, so that two runs with the same messages meet the same faults."""

    latency_ms: float = 0
    jitter_ms: float = 0
    lost_answer: Rate = 0
    """The message is taken and the connection dropped."""
    dropped: Rate = 0
    """The connection is dropped and nothing was taken: the sender sees the same."""
    bare_5xx: Rate = 0
    """502 with a page of HTML, nothing taken."""
    bare_5xx_taken: Rate = 0
    """The same page, and the message was taken."""
    graph_5xx: Rate = 0
    """500 with a proper error body (131000), nothing taken."""
    throttled: Rate = 0
    """130429 although the number is not too fast."""
    codes: dict[str, Rate] = {}
    """Refused in the answer with this code, at this rate."""
    late_codes: dict[str, Rate] = {}
    """Taken, and failed by webhook with this code."""
    webhook_delay_ms: float = 20
    webhook_jitter_ms: float = 0
    """Each status is late by up to this: more than the delay, and they arrive out of order."""
    repeated: Rate = 0
    """A webhook is sent once more."""
    delivered_missing: Rate = 0
    """`read` comes without `delivered`."""
    unread: Rate = 0
    """No `read` ever comes."""


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    waba: str = WABA
    portfolio: str = PORTFOLIO
    display: str = "15550000000"
    name: str = "Handbill test"
    per_second: int = 80
    quality: str = "GREEN"


class Template(msgspec.Struct):
    """A message template. `status` is changed by the control route and by time (approval)."""

    id: str
    name: str
    language: str
    category: str = "MARKETING"
    status: str = "APPROVED"
    components: list[dict[str, Any]] = []
    parameter_format: str = "POSITIONAL"


class AdAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ad account with two campaigns, and the token that may read it."""

    id: str = "1000"
    token: str = "fake"  # noqa: S105 - of the stand-in
    currency: str = "USD"
    time_zone: str = "UTC"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the server starts; /_control changes most of it later."""

    seed: int = 1
    ad_accounts: tuple[AdAccount, ...] = (AdAccount(),)
    numbers: tuple[Number, ...] = (Number(str(FIRST_NUMBER)),)
    tiers: dict[str, int | None] = {}
    """People per portfolio in 24 hours; a portfolio that is not named has no limit."""
    pair_interval_ms: int = 6_000
    pair_burst: int = 45
    tokens: tuple[str, ...] = ()
    """The tokens that are good; none named means that every token is, until it dies."""
    token_ends: dict[str, int] = {}
    """When a token expires, in Unix seconds; one that is not named does not expire."""
    data_access_ends: dict[str, int] = {}
    """When a token's access to data expires, in Unix seconds."""
    app_secret: str = ""
    """Signs the webhooks, and checks `appsecret_proof` where one is sent."""
    require_proof: bool = False
    webhook_url: str = ""
    approve_after_ms: int = 0
    service_window: bool = True
    """Whether free text needs a message from the person within 24 hours."""
    tier_code: int = 131064
    webhook_tries: int = 10
    log_limit: int = 5_000_000
    faults: Faults = Faults()


Outcome = Literal["accepted", "lost", "refused", "dropped"]


class Logged(msgspec.Struct, frozen=True, gc=False):
    """One line of the log. accepted: taken and answered. lost: taken, and the answer was not given. refused: not taken,
    with the code. dropped: not taken, and the sender was not told."""

    n: int
    at_ms: int
    number: str
    to: str
    opaque: str
    outcome: Outcome
    code: int = 0
    wamid: str = ""
    kind: str = ""
    answer: bool = False
    """Whether the person had written within the last 24 hours."""


class Inbound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person writes: free text, or the title of a button with its payload."""

    number: str
    sender: str
    text: str = ""
    button: str = ""
    payload: str = ""
    name: str = "Test person"


class Preference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: str
    address: str
    value: Literal["stop", "resume"]


class TemplateChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    status: str
    language: str = ""
    """Empty: every language."""
    waba: str = WABA
    reason: str = "NONE"


class Alert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    field: str
    value: dict[str, Any]
    waba: str = WABA


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    verify_token: str = ""
    """Where given, the address must repeat our challenge before it is used, as the real one asks."""
    app_secret: str | None = None


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that /_control can change, each part on its own."""

    faults: Faults | None = None
    numbers: tuple[Number, ...] = ()
    templates: dict[str, tuple[Template, ...]] = {}
    """By business account."""
    template: TemplateChange | None = None
    tiers: dict[str, int | None] | None = None
    kill_tokens: tuple[str, ...] = ()
    revive_tokens: tuple[str, ...] = ()
    dead: bool | None = None
    """Every token at once: dead, or good again."""
    ahead_ms: int = 0
    """Moves the server's whole clock forward: days pass."""
    skew_ms: int | None = None
    """The times in webhooks are wrong by this much."""
    inbound: tuple[Inbound, ...] = ()
    preferences: tuple[Preference, ...] = ()
    alerts: tuple[Alert, ...] = ()
    webhook: Webhook | None = None
    hurry: bool = False
    """What waits to be told is told now."""
