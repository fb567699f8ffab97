"""The Marketing API's stand-in: ad accounts, what runs on them, and insights as asynchronous reports.

Figures are drawn for ads and summed upwards, so that levels add up; a test may put its own in. Faults are scripted:
each is answered once, in order. Usage headers, tokens, page limits and the plea for less data are as the real one's.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from aiohttp import web

from handbill.fake_graph.model import AdAccount

Row = dict[str, Any]
Figures = Callable[[str, str, date], Row | None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
VERSION = r"/{version:v[0-9]+\.[0-9]+}"
LEVELS = ("campaign", "adset", "ad")
MOST = 500
FULL = 100
"""Percent of the calls of an hour; above, every call is refused."""


@dataclass
class FakeAccount:
    """An ad account. `tree`: campaign id -> ad set id -> ad ids. `figures` tells one entity's day, or None."""

    id: str
    token: str
    currency: str = "USD"
    zone: str = "UTC"
    tree: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    figures: Figures | None = None

    def parents(self, level: str) -> dict[str, str | None]:
        """Every entity of a level with its parent."""
        if level == "campaign":
            return dict.fromkeys(self.tree)
        sets = {adset: campaign for campaign, below in self.tree.items() for adset in below}
        if level == "adset":
            return dict(sets)
        return {ad: adset for below in self.tree.values() for adset, ads in below.items() for ad in ads}

    def told(self, level: str, entity: str, day: date) -> Row | None:
        if self.figures is not None:
            return self.figures(level, entity, day)
        return drawn(self, level, entity, day)


@dataclass
class InsightsState:
    """The accounts by number, faults still to be given, and how reports behave."""

    accounts: dict[str, FakeAccount] = field(default_factory=dict)
    faults: deque[Row] = field(default_factory=deque)
    """{"code": 17}, {"code": 190, "error_subcode": 463}, {"status": 500}, {"failed": True} (the next report fails)."""
    polls: int = 2
    """How often a report is asked for before it is ready."""
    most_rows: int = MOST
    """Rows of a page above which less is asked for."""
    most_days: int = 92
    usage: int = 0
    """Percent of its calls that an account has used up, as the headers say."""
    reports: dict[str, Row] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


def demo(accounts: Iterable[AdAccount]) -> InsightsState:
    """Accounts to try things with, of two campaigns each."""
    tree = {"11": {"21": ["31", "32"], "22": ["33"]}, "12": {"23": ["34"]}}
    budgets = {"11": 10_000, "12": 5_000}
    return InsightsState(
        {one.id: FakeAccount(one.id, one.token, one.currency, one.time_zone, tree, budgets) for one in accounts}
    )


def routes(state: InsightsState) -> list[web.RouteDef]:
    """The route table. Report ids have eighteen digits and begin with 9, so that no other object is taken for one."""
    report = VERSION + r"/{report:9[0-9]{17}}"
    account = VERSION + r"/act_{account:[0-9]+}"
    return [
        web.post(account + "/insights", _guarded(state, _start)),
        web.get(account + r"/{edge:campaigns|adsets|ads}", _guarded(state, _edge)),
        web.get(account, _guarded(state, _account)),
        web.get(report + "/insights", _guarded(state, _rows)),
        web.get(report, _guarded(state, _report)),
    ]


Work = Callable[[InsightsState, FakeAccount, web.Request, Row], Row]


class _Fault(Exception):
    def __init__(self, code: int, message: str, status: int = 400, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": "OAuthException", "code": code, **more}}


def _guarded(state: InsightsState, work: Work) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        state.calls.append(f"{request.method} {request.path}")
        headers = {"x-app-usage": json.dumps({"call_count": state.usage, "total_time": 0, "total_cputime": 0})}
        try:
            asked: Row = dict(request.query)
            if request.method == "POST":
                asked |= {name: str(value) for name, value in (await request.post()).items()}
            _scripted(state)
            account = _owner(state, request, asked)
            _check_usage(state)
            return web.json_response(work(state, account, request, asked), headers=headers)
        except _Fault as fault:
            return web.json_response(fault.body, status=fault.status, headers=headers)

    return handle


def _scripted(state: InsightsState) -> None:
    if state.faults and "failed" not in state.faults[0]:
        fault = state.faults.popleft()
        status = fault.pop("status", 400)
        raise _Fault(fault.pop("code", 2), fault.pop("message", "An error that was asked for."), status, **fault)


def _check_usage(state: InsightsState) -> None:
    if state.usage >= FULL:
        raise _Fault(17, "(#17) User request limit reached", error_subcode=2446079)


def _owner(state: InsightsState, request: web.Request, asked: Row) -> FakeAccount:
    """The account behind the path, if the token is its own. A token of another account is valid, but not here."""
    report = state.reports.get(request.match_info.get("report", ""))
    account = state.accounts.get(request.match_info.get("account") or (report or {}).get("account", ""))
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ") or asked.get("access_token", "")
    if account is None:
        raise _Fault(100, "Unsupported request. The object does not exist.", error_subcode=33)
    if sent != account.token and any(sent == other.token for other in state.accounts.values()):
        raise _Fault(200, "(#200) Ad account owner has NOT grant ads_management or ads_read permission", 403)
    if sent != account.token:
        raise _Fault(190, "Error validating access token.", 401, error_subcode=463)
    return account


def _account(state: InsightsState, account: FakeAccount, request: web.Request, asked: Row) -> Row:
    """The fields that were asked for, and always the id; without any, the two that the real one answers."""
    fields: Row = {
        "id": f"act_{account.id}", "account_id": account.id, "account_status": 1, "currency": account.currency,
        "name": f"Account {account.id}", "timezone_name": account.zone,
    }  # fmt: skip
    wanted = [name for name in asked.get("fields", "account_id").split(",") if name]
    for name in wanted:
        if name not in fields:
            raise _Fault(100, f"(#100) Tried accessing nonexisting field ({name}) on node type (AdAccount)")
    return {name: fields[name] for name in ("id", *wanted)}


def _start(state: InsightsState, account: FakeAccount, request: web.Request, asked: Row) -> Row:
    try:
        span = json.loads(asked["time_range"])
        first, last = date.fromisoformat(span["since"]), date.fromisoformat(span["until"])
        level = LEVELS[LEVELS.index(asked["level"])]
    except (KeyError, ValueError, TypeError):
        raise _Fault(100, "Invalid parameter") from None
    if (last - first).days >= state.most_days:
        raise _Fault(1, "Please reduce the amount of data you're asking for, then retry your request", 500)
    failed = bool(state.faults and state.faults[0].get("failed"))
    if failed:
        state.faults.popleft()
    number = f"9{len(state.reports) + 1:017d}"
    state.reports[number] = {
        "account": account.id, "level": level, "first": first, "last": last, "polls": 0, "failed": failed,
    }  # fmt: skip
    return {"report_run_id": number}


def _report(state: InsightsState, account: FakeAccount, request: web.Request, asked: Row) -> Row:
    number = request.match_info["report"]
    report = state.reports[number]
    report["polls"] += 1
    done = report["polls"] > state.polls
    status = "Job Failed" if done and report["failed"] else "Job Completed" if done else "Job Running"
    percent = 100 if done else 100 * report["polls"] // (state.polls + 1)
    return {"id": number, "account_id": account.id, "async_status": status, "async_percent_completion": percent}


def _rows(state: InsightsState, account: FakeAccount, request: web.Request, asked: Row) -> Row:
    report = state.reports[request.match_info["report"]]
    if "rows" not in report:
        report["rows"] = _told(account, report)
    return _page(state, report["rows"], request, asked)


def _told(account: FakeAccount, report: Row) -> list[Row]:
    """All rows as they are at this moment. An entity without figures is not in the answer."""
    level = report["level"]
    found = []
    for number in range((report["last"] - report["first"]).days + 1):
        day = report["first"] + timedelta(days=number)
        for entity in sorted(account.parents(level)):
            figures = account.told(level, entity, day)
            if figures:
                known = {f"{level}_id": entity, "account_currency": account.currency}
                found.append({**known, "date_start": day.isoformat(), "date_stop": day.isoformat(), **figures})
    return found


def _edge(state: InsightsState, account: FakeAccount, request: web.Request, asked: Row) -> Row:
    edge = request.match_info["edge"]
    level = edge.removesuffix("s")
    above = {"adset": "campaign_id", "ad": "adset_id"}
    rows = []
    for entity, parent in account.parents(level).items():
        row = {"id": entity, "name": f"{level} {entity}", "status": account.statuses.get(entity, "ACTIVE")}
        if parent is not None:
            row[above[level]] = parent
        if entity in account.budgets:
            row["daily_budget"] = str(account.budgets[entity])
        rows.append(row)
    return _page(state, rows, request, asked)


def _page(state: InsightsState, rows: list[Row], request: web.Request, asked: Row) -> Row:
    try:
        size, start = int(asked.get("limit", "25")), int(asked.get("after", "0"))
    except ValueError:
        raise _Fault(100, "Invalid parameter") from None
    if not 1 <= size <= 1_000 or start < 0:
        raise _Fault(100, "Invalid parameter")
    if size > state.most_rows and len(rows) - start > state.most_rows:
        raise _Fault(1, "Please reduce the amount of data you're asking for, then retry your request", 500)
    end = start + size
    paging: Row = {"cursors": {"before": str(start), "after": str(end)}}
    if end < len(rows):
        paging["next"] = f"{request.url.origin()}{request.path}?after={end}&limit={size}"
    return {"data": rows[start:end], "paging": paging}


def drawn(account: FakeAccount, level: str, entity: str, day: date) -> Row:
    """Figures out of nothing but names: an ad's own, anything above it the sum of its ads."""
    ads = [entity] if level == "ad" else []
    if level == "adset":
        ads = [ad for ad, parent in account.parents("ad").items() if parent == entity]
    elif level == "campaign":
        ads = [ad for below in account.tree.get(entity, {}).values() for ad in below]
    cents = clicks = purchases = value = 0
    for ad in ads:
        word = int(hashlib.sha256(f"{account.id}:{ad}:{day}".encode()).hexdigest()[:8], 16)
        cents += 1_000 + word % 9_000
        clicks += 10 + word % 90
        purchases += word % 5
        value += word % 5 * (3_500 + word % 11_500)
    return {
        "spend": f"{cents / 100:.2f}",
        "impressions": str(clicks * 50),
        "inline_link_clicks": str(clicks),
        "actions": [
            {"action_type": "link_click", "value": str(clicks)},
            {"action_type": "view_content", "value": str(clicks * 7 // 10)},
            {"action_type": "omni_purchase", "value": str(purchases)},
            {"action_type": "offsite_conversion.fb_pixel_purchase", "value": str(purchases)},
        ],
        "action_values": [{"action_type": "omni_purchase", "value": f"{value / 100:.2f}"}],
    }
