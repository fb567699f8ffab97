"""Meta's Marketing API: asynchronous insights reports, read in pages, with its limits respected.

The token travels in a header and is never part of an error or a log line; of an address only where Meta is asked about
the token itself, and takes it in no other place. Addresses that Meta sends for the
next page are not followed, only their cursor is used: nobody else decides where we connect to.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlencode

import msgspec
from yarl import URL

from handbill.adstats import cadence
from handbill.adstats.model import LEVELS, Figures, Kind, Level, Listed, RawStatRow
from handbill.adstats.providers.port import (
    Account,
    AccountChanged,
    AccountFacts,
    ProviderError,
    ProviderThrottled,
    Question,
    RequestRefused,
    TokenDead,
)
from handbill.adstats.providers.usage import TooMuch, fault_of, pause_s
from handbill.infra.safe_http import HttpPolicy, ReplyTooLarge, RequestFailed, Response, SafeHttpClient
from handbill.kit.clock import Clock
from handbill.kit.telemetry import metrics
from handbill.kit.token_ends import end_of
from handbill.kit.untrusted_json import UNREADABLE

LARGEST = 32 * 1024 * 1024
CONNECTIONS = 100
MAX_ID_DIGITS = 64
_DAY = timedelta(days=1)
_WHOLE = frozenset(("CLP", "COP", "CRC", "HUF", "IDR", "ISK", "JPY", "KRW", "PYG", "TWD", "VND"))
"""Meta's own list, which is not ISO's: there a forint has no hundredths, and a dinar no thousandths."""
_FOUR = Decimal("0.0001")
_FIELDS = "date_start,date_stop,account_currency,spend,impressions,inline_link_clicks,actions,action_values"
_ACCOUNT_FIELDS = "account_id,currency,timezone_name"
_STATUSES = {"ACTIVE": "ACTIVE", "PAUSED": "PAUSED", "ARCHIVED": "ARCHIVED", "DELETED": "DELETED"}
_EDGES: tuple[tuple[str, Level, str, str], ...] = (
    ("campaigns", "CAMPAIGN", "id,name,status,daily_budget,lifetime_budget", ""),
    ("adsets", "ADSET", "id,name,status,daily_budget,lifetime_budget,campaign_id", "campaign_id"),
    ("ads", "AD", "id,name,status,adset_id", "adset_id"),
)
_KINDS = ("omni_{}", "{}", "offsite_conversion.fb_pixel_{}")
"""The same action under three names, the widest first. They overlap: one is taken, never their sum."""


class MetaPolicy(msgspec.Struct, frozen=True):
    url: str = "https://graph.facebook.com"
    version: str = "v23.0"
    app_secret: str = ""
    page: int = 500
    poll_s: float = 2.0
    patience_s: float = 600.0
    """How long a report may take."""
    timeout_s: float = 60.0
    insecure: bool = False
    """Allows plain HTTP and private addresses: for a stand-in of the platform."""


class MetaProvider:
    """Raises Invalid for a base URL that is not https with a public host, unless the policy is `insecure`."""

    kind: Kind = "CUMULATIVE"
    ad_source = "META"
    silence_is_zero = False  # what was deleted at Meta is no longer in its answers; its spend was spent all the same
    levels: tuple[Level, ...] = LEVELS
    look_back_days = 28
    needs_token = True

    def __init__(self, clock: Clock, policy: MetaPolicy | None = None) -> None:
        self._clock = clock
        self._policy = policy or MetaPolicy()
        self._http = SafeHttpClient(
            HttpPolicy(
                https_only=not self._policy.insecure,
                public_only=not self._policy.insecure,
                ports=None,
                max_bytes=LARGEST,
                total_s=self._policy.timeout_s,
                connections=CONNECTIONS,
            )
        )
        self._http.check(self._policy.url)
        self._root = f"{self._policy.url.rstrip('/')}/{self._policy.version}"
        self._paused: dict[str, float] = {}

    async def close(self) -> None:
        await self._http.close()

    async def read_account(self, account: Account) -> AccountFacts:
        """A zone that we do not know is left out: the one that was given stays."""
        answer = await self._call(account, "GET", f"act_{account.external_id}", {"fields": _ACCOUNT_FIELDS})
        currency, zone = answer.get("currency"), answer.get("timezone_name")
        if not isinstance(currency, str) or not _is_currency(currency):  # Meta leaves out what the token may not see
            raise RequestRefused("the platform does not show the account's currency to this token")
        return AccountFacts(currency, zone if isinstance(zone, str) and cadence.is_zone(zone) else None)

    # --- figures

    async def fetch_stats(self, question: Question) -> list[RawStatRow]:
        account = question.account
        known = {entity.external_id: entity for entity in question.of_level() if entity.external_id}
        found: list[RawStatRow] = []
        unknown = 0
        for row in await self._insights(account, question.level, question.date_from, question.date_to):
            if row.get("account_currency", account.currency) != account.currency:
                raise AccountChanged("the account's currency is not the one it was connected with; it is asked again")
            external = _id(row.get(f"{question.level.lower()}_id"))
            entity = known.get(external)
            if entity is None:
                unknown += 1
                if external:
                    question.strangers.add(external)
                continue
            found.append(RawStatRow(entity.entity_id, entity.external_id, _day(row), figures(row)))
        metrics.ADSTATS_UNMATCHED.inc(unknown)
        return found

    async def _insights(self, account: Account, level: Level, first: date, last: date) -> list[dict[str, Any]]:
        """One report; asked for less at once, the range is halved down to single days."""
        try:
            report = await self._report(account, level, first, last)
            return [row async for row in self._pages(account, f"{report}/insights", {}, self._policy.page)]
        except TooMuch:
            if first == last:
                raise
        middle = first + (last - first) // 2
        return [
            *await self._insights(account, level, first, middle),
            *await self._insights(account, level, middle + _DAY, last),
        ]

    async def _report(self, account: Account, level: Level, first: date, last: date) -> str:
        """Start an asynchronous report and wait until it is whole."""
        asked = {
            "level": level.lower(),
            "fields": f"{_FIELDS},{level.lower()}_id",
            "time_increment": "1",
            "time_range": msgspec.json.encode({"since": first.isoformat(), "until": last.isoformat()}).decode(),
        }
        started = await self._call(account, "POST", f"act_{account.external_id}/insights", asked)
        report = str(started.get("report_run_id", ""))
        if not report.isdigit():
            raise ProviderError("the platform started no report")
        deadline = self._clock.monotonic() + self._policy.patience_s
        while True:
            state = await self._call(account, "GET", report, {})
            status = state.get("async_status")
            if status == "Job Completed" and state.get("async_percent_completion") == 100:
                return report
            if status in ("Job Failed", "Job Skipped"):
                raise ProviderError(f"the platform gave its report up ({status})")
            if self._clock.monotonic() >= deadline:
                raise ProviderError("the platform's report was not ready in time")
            await asyncio.sleep(self._policy.poll_s)

    # --- what runs

    async def list_entities(self, account: Account) -> list[Listed]:
        found: list[Listed] = []
        for edge, level, fields, parent in _EDGES:
            path = f"act_{account.external_id}/{edge}"
            async for row in self._pages(account, path, {"fields": fields}, self._policy.page):
                if _id(row.get("id")) and (not parent or _id(row.get(parent))):
                    found.append(_listed(row, level, parent, account.currency))
                else:
                    metrics.ADSTATS_UNMATCHED.inc()
        return found

    async def token_end(self, account: Account) -> datetime | None:
        """The end of the token, or of its access to data. Raises TokenDead for one that is not valid."""
        data = (await self._call(account, "GET", "debug_token", {"input_token": account.token})).get("data")
        data = data if isinstance(data, dict) else {}
        if data.get("is_valid") is False:
            raise TokenDead("the account must be connected again (the platform says that the token is not valid)")
        return end_of(data.get("expires_at"), data.get("data_access_expires_at"))

    # --- calls

    async def _pages(
        self, account: Account, path: str, asked: Mapping[str, str], size: int
    ) -> AsyncIterator[dict[str, Any]]:
        """All rows behind a path; a page that is too large is asked for again, half as large."""
        cursor = ""
        while True:
            query = {**asked, "limit": str(size), **({"after": cursor} if cursor else {})}
            try:
                answer = await self._call(account, "GET", path, query)
            except TooMuch:
                if size == 1:
                    raise
                size //= 2
                continue
            rows = answer.get("data")
            if not isinstance(rows, list):
                raise ProviderError("the platform's page holds no rows")
            for row in rows:
                if isinstance(row, dict):
                    yield row
            paging = answer.get("paging") or {}
            after = str((paging.get("cursors") or {}).get("after") or "")
            if not paging.get("next") or not after or after == cursor:
                return
            cursor = after

    async def _call(self, account: Account, method: str, path: str, asked: Mapping[str, str]) -> dict[str, Any]:
        self._check_pause(account)
        params = dict(asked)
        if self._policy.app_secret:
            secret = self._policy.app_secret.encode()
            params["appsecret_proof"] = hmac.new(secret, account.token.encode(), hashlib.sha256).hexdigest()
        url = URL(f"{self._root}/{path}")
        headers = {"Authorization": f"Bearer {account.token}"}
        form = None
        if method == "POST":
            form = urlencode(params).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        else:
            url = url.with_query(params)
        try:
            response = await self._http.request(method, url, headers=headers, body=form)
        except ReplyTooLarge:
            raise TooMuch("the platform's answer is too large") from None
        except RequestFailed as error:
            raise ProviderError(f"the platform did not answer ({error.reason})") from None
        body = _decode(response)
        self._pause(account, pause_s(response.headers))
        if response.status != 200 or "error" in body:
            raise fault_of(response.status, body, response.headers)
        return body

    def _check_pause(self, account: Account) -> None:
        left = self._paused.get(account.external_id, 0.0) - self._clock.monotonic()
        if left > 0:
            raise ProviderThrottled("the account rests, it has used up most of its calls", left)
        self._paused.pop(account.external_id, None)

    def _pause(self, account: Account, seconds: float) -> None:
        if seconds:
            self._paused[account.external_id] = self._clock.monotonic() + seconds


def _decode(response: Response) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(response.body)
    except UNREADABLE:
        body = None
    if not isinstance(body, dict):
        raise ProviderError(f"the platform answered {response.status} with something that is not JSON")
    return body


def figures(row: Mapping[str, Any]) -> Figures:
    """Numbers come as strings; actions come as a list under overlapping names."""
    actions, values = _actions(row.get("actions")), _actions(row.get("action_values"))
    return Figures(
        _money(row.get("spend")),
        _count(row.get("impressions")),
        _count(row.get("inline_link_clicks")),
        int(_action(actions, "view_content")),
        int(_action(actions, "add_to_cart")),
        int(_action(actions, "initiate_checkout")),
        int(_action(actions, "purchase")),
        _action(values, "purchase"),
    )


def _actions(rows: Any) -> dict[str, Decimal]:
    pairs = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {str(row.get("action_type")): _money(row.get("value")) for row in pairs}


def _action(actions: Mapping[str, Decimal], name: str) -> Decimal:
    for kind in _KINDS:
        if kind.format(name) in actions:
            return actions[kind.format(name)]
    return Decimal(0)


def _money(value: Any) -> Decimal:
    try:
        found = Decimal(str(value)) if value is not None else Decimal(0)
    except InvalidOperation:
        raise ProviderError("the platform sent a figure that is no number") from None
    if not found.is_finite() or not 0 <= found < 10**14:
        raise ProviderError("the platform sent a figure that cannot be")
    return found.quantize(_FOUR, ROUND_HALF_UP)


def _count(value: Any) -> int:
    return int(_money(value))


def _day(row: Mapping[str, Any]) -> date:
    try:
        return date.fromisoformat(str(row.get("date_start")))
    except ValueError:
        raise ProviderError("the platform sent a row without its day") from None


def _is_currency(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isupper() and text.isalpha()


def _id(value: Any) -> str:
    """An id of the platform: digits. Empty where the platform sent none, or something that is not an id."""
    text = str(value) if isinstance(value, str | int) else ""
    return text if text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS else ""


def _listed(row: Mapping[str, Any], level: Level, parent: str, currency: str) -> Listed:
    """Budgets come in hundredths, but for a few currencies that Meta counts whole."""
    daily, lifetime = _count(row.get("daily_budget")), _count(row.get("lifetime_budget"))
    name = str(row.get("name") or row.get("id")).replace("\0", "")[:300]
    return Listed(
        level,
        _id(row.get("id")),
        name,
        _id(row.get(parent)) if parent else None,
        _STATUSES.get(str(row.get("status")), "PAUSED"),  # type: ignore[arg-type]
        "DAILY" if daily or not lifetime else "LIFETIME",
        Decimal(daily or lifetime) / (1 if currency in _WHOLE else 100),
    )
