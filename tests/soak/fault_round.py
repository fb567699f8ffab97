"""Each process and engine of an installation gets SIGKILL, and SIGSTOP for up to a minute, in turn, under load.

`handbill up` with embedded engines and `handbill watch` beside it, as shipped, with a webhook for alerts. Tracking,
capture and decisions go on all the time. For each fault: what callers noticed, when everything was well again, which
alerts came and after how long. In the end each accepted event is in PostgreSQL and in ClickHouse, once.

`FAULTS=redis-stop,api-kill` in the environment chooses some of them; evidence is written for all of them only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from handbill.alerts.conditions import CONDITIONS
from handbill.banners.model import NewBanner, NewPlacement
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import build
from tests.kit import tracker
from tests.kit.alert_receiver import AlertReceiver, Received
from tests.kit.freezing import frozen
from tests.kit.installation import Installation
from tests.kit.knower import Knower
from tests.kit.mixed_load import Decisions, MixedLoad
from tests.kit.tracker import Tracker
from tests.kit.waiting import eventually
from tests.soak.context import Context
from tests.soak.fault_ledger import compare

ORDER = ("redis", "up", "postgres", "clickhouse", "worker", "api", "watch")
"""Faults of Redis come first: their alerts look five minutes back, and are over by the end."""
LIMIT_S = 60.0
STOPPED_S = {"up": 45.0, "watch": 15.0}
LEAST_STOPPED_S = 45.0
CALM_S = 12.0
"""The watchers look every ten seconds: they must see that all is well before the next fault."""
ALERTS: Mapping[str, str] = {
    "api": "HandbillDown(handbill-api)", "worker": "HandbillDown(handbill-worker)",
    "up": "HandbillDown(handbill-worker)",
    "postgres": "HandbillNotReady(postgres)", "redis": "HandbillNotReady(redis)",
    "clickhouse": "HandbillNotReady(clickhouse)",
}  # fmt: skip
"""What must be reported if the fault lasts. Nothing stops with `watch`: `up` watches, too."""
RECOVERS_IN_S = {one.name: one.window_s for one in CONDITIONS}


@dataclass(frozen=True)
class Fault:
    """A part of the installation and what it gets: `kill` or `stop`."""

    part: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.part}-{self.kind}"


def chosen(words: str) -> list[Fault]:
    """The faults that are named, in our order; all of them without a name. Raises AssertionError for another name."""
    every = [Fault(part, kind) for part in ORDER for kind in ("kill", "stop")]
    named = {word for word in words.split(",") if word}
    unknown = named - {one.name for one in every}
    assert not unknown, (
        f"no fault named {', '.join(sorted(unknown))}; there are: {', '.join(one.name for one in every)}"
    )
    return [one for one in every if not named or one.name in named]


def overdue(result: Mapping[str, Any]) -> str | None:
    """What is wrong with the alerts of one fault: whatever lasts a minute must be reported within it."""
    wanted = ALERTS.get(result["part"])
    lasting = result["well_again_s"] > LIMIT_S and not (result["part"] == "up" and result["kind"] == "stop")
    after = None if wanted is None else min(result["alerts"].get(wanted, {}).values(), default=None)
    if wanted is None or not lasting or (after is not None and after <= LIMIT_S):
        return None
    return f"{result['part']}-{result['kind']}: {wanted} came after {after} s, and it lasted {result['well_again_s']} s"


class Round:
    """One fault after the other."""

    def __init__(self, ctx: Context, running: Installation, load: MixedLoad, receiver: AlertReceiver) -> None:
        self._ctx, self._running, self._load, self._receiver = ctx, running, load, receiver
        self.results: list[dict[str, Any]] = []
        self._opened: list[list[Received]] = []

    async def hit(self, fault: Fault, http: aiohttp.ClientSession) -> None:
        """One fault from the signal until everything is well again, and its entry in the results."""
        pid = self._running.pid(fault.part)
        assert pid is not None
        mark, began = self._load.mark(), time.monotonic()
        self._ctx.say(f"{fault.name}: pid {pid}")
        if fault.kind == "kill":
            await self._kill(fault.part, pid, began)
        else:
            await self._stop(fault.part, pid, began)
        held = time.monotonic() - began

        last = await self._well(fault, pid, http)
        well = time.monotonic() - began
        await asyncio.sleep(CALM_S)
        opened = self._receiver.opened(began)
        self._opened.append(opened)
        self.results.append(
            {
                "part": fault.part, "kind": fault.kind, "held_s": round(held, 1), "well_again_s": round(well, 1),
                "last_to_recover": last, "replaced": self._running.pid(fault.part) != pid, **self._load.since(mark),
                "alerts": _by_name(opened, began),
            }
        )  # fmt: skip
        self._ctx.say(_row(self.results[-1]))

    async def _well(self, fault: Fault, pid: int, http: aiohttp.ClientSession) -> list[str]:
        """Wait until all is well; what was not, when it was looked at for the last time before."""
        last: list[str] = []

        async def is_well() -> bool:
            nonlocal last
            wrong = await self._running.failing(http)
            if fault.kind == "kill" and self._running.pid(fault.part) in (None, pid):
                wrong = [fault.part, *wrong]
            last = sorted(set(wrong)) or last
            return not wrong

        await eventually(is_well, timeout=180, what=f"all is well after {fault.name}")
        return last

    async def _kill(self, part: str, pid: int, began: float) -> None:
        """The supervisor starts its parts again by itself; `up` waits for an administrator who has read the alert."""
        os.kill(pid, signal.SIGKILL)
        if part == "up":
            await self._alert(part, began)
        if part in ("up", "watch"):
            await self._running.start(part)

    async def _stop(self, part: str, pid: int, began: float) -> None:
        """Until the supervisor ends it, or until the alert came and 45 s are over; for a minute at most."""
        with stopped(pid) if part == "up" else frozen(pid):  # its children are the other parts
            if part in STOPPED_S:
                await asyncio.sleep(STOPPED_S[part])
            elif part in ("api", "worker"):
                await self._until(lambda: self._running.pid(part) != pid, began)
            else:
                await asyncio.sleep(LEAST_STOPPED_S)
                await self._alert(part, began)

    async def _alert(self, part: str, began: float) -> None:
        await self._until(lambda: self._receiver.first(ALERTS[part], began) is not None, began)

    async def _until(self, check: Any, began: float) -> None:
        with contextlib.suppress(AssertionError):  # what did not come is judged by `overdue`
            await eventually(check, timeout=max(0.0, began + LIMIT_S + 1 - time.monotonic()))

    async def recovered(self) -> dict[str, int]:
        """Wait for the reports that incidents are over; of those that look back above five minutes only count them."""
        every = [one for opened in self._opened for one in opened]
        soon = [one for one in every if RECOVERS_IN_S[one.alert] <= 300]

        def unfinished() -> list[str]:
            return sorted(f"{one.name} by {one.by}" for one in soon if self._receiver.recovered(one) is None)

        def is_over() -> bool:
            assert not unfinished(), unfinished()
            return True

        await eventually(is_over, timeout=400, what="every incident is reported as over")
        return {
            "incidents_reported": len(every),
            "incidents_reported_as_over": sum(self._receiver.recovered(one) is not None for one in every),
            "of_them_must_be_over": len(soon),
        }


def _by_name(opened: Sequence[Received], began: float) -> dict[str, dict[str, float]]:
    """For each alert: after how many seconds each sender reported it."""
    found: dict[str, dict[str, float]] = {}
    for one in opened:
        found.setdefault(one.name, {}).setdefault(one.by, round(one.at - began, 1))
    return found


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for this process alone."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def prepare(ctx: Context, running: Installation, tenants: int = 3) -> MixedLoad:
    """Tenants with banners, whose events are tracked, and as many whose events are captured."""
    app = build(running.settings())
    await app.start("tool")
    shops, names, places, keys = [], {}, [], {}
    try:
        for number in range(2 * tenants):
            new = NewTenant(name=f"Shop {number}", slug=f"shop-{number}")
            tenant_id = (await app.tenants.create_tenant(new, actor="soak")).tenant_id
            write_key = (await app.tenants.create_key(tenant_id, NewKey(kind="write", name="shop"), actor="soak")).key
            if number >= tenants:
                keys[tenant_id] = write_key
                continue
            place = await app.banners.editor.create_placement(
                tenant_id, NewPlacement(name="Home", slug="home"), actor="soak"
            )
            for _ in range(3):
                banner = NewBanner(x_times=2, y_hours=24, z_duration_sec=3, placement_ids=[place.placement_id])
                await app.banners.editor.create_banner(tenant_id, banner, actor="soak")
            await app.catalogue.refresh()
            shop, names[tenant_id] = tracker.names(app.catalogue, tenant_id, write_key)
            shops.append(shop)
            places.append((write_key, "home"))
    finally:
        await app.stop()
    tracking = Tracker(running.url, shops, names, ctx.random, size=20, pace=200.0)
    capturing = Knower(running.url, keys, ctx.random, people=200, size=20, pace=200.0)
    ctx.settings.update(tracked_per_s=200, captured_per_s=200, decisions_per_s=10, tenants=2 * tenants)
    return MixedLoad(tracking, capturing, Decisions(running.url, places, ctx.random))


async def run(ctx: Context) -> dict[str, Any]:
    faults = chosen(os.environ.get("FAULTS", ""))
    ctx.settings["faults"] = [one.name for one in faults]
    ctx.is_partial = len(faults) < 2 * len(ORDER)
    folder = Path(tempfile.mkdtemp(prefix="hbf-", dir="/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None))
    folder.chmod(0o755)
    receiver = AlertReceiver()
    try:
        async with receiver.running(), Installation(folder / "home", receiver).alive() as running:
            return await _round(ctx, running, receiver, faults)
    except AssertionError:
        shutil.copytree(folder / "home" / "logs", logs := folder.with_suffix(".logs"), dirs_exist_ok=True)
        ctx.say(f"the logs are kept in {logs}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _round(ctx: Context, running: Installation, receiver: AlertReceiver, faults: list[Fault]) -> dict[str, Any]:
    load = await prepare(ctx, running)
    round_ = Round(ctx, running, load, receiver)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=8)) as http:

        async def is_well() -> bool:
            return not await running.failing(http)

        await eventually(is_well, timeout=120, what="the installation is ready")
        async with load.running():
            await eventually(lambda: load.answered > 1_000, what="a first thousand events")
            quiet = [one.name for one in receiver.changes]
            for fault in faults:
                await round_.hit(fault, http)
    ctx.say(f"{load.answered:,} events accepted; comparing")
    found = await compare(running.settings(), load)
    ctx.say(f"{found}; waiting for the reports that incidents are over")
    incidents = await round_.recovered()
    wrong = [text for result in round_.results if (text := overdue(result))]
    assert not wrong, wrong
    assert not receiver.repeated(), receiver.repeated()
    return {
        **found, **incidents, "alerts_before_the_first_fault": quiet, "faults": round_.results,
        "decisions": len(load.decisions.ended), "restarts": running.restarts(),
    }  # fmt: skip


def table(counts: Mapping[str, Any]) -> str:
    """The results for people, in Markdown."""
    head = (
        "| fault | held | all well again | events accepted | longest without one | requests sent again | decisions "
        "| alerts, and after how long |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|", *(_row(result) for result in counts["faults"])]
    return "\n".join(lines) + "\n"


def _row(result: Mapping[str, Any]) -> str:
    failed = sum(result["decisions_failed"].values())
    decisions = f"{result['decisions_answered']} answered, {failed} failed, slowest {result['slowest_decision_s']} s"
    cells = (
        f"{result['part']} SIG{result['kind'].upper()}", f"{result['held_s']} s", f"{result['well_again_s']} s",
        result["events_accepted"], f"{result['longest_without_accepted_event_s']} s",
        sum(result["event_requests_repeated"].values()), decisions, _alerts(result["alerts"]),
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def _alerts(alerts: Mapping[str, Mapping[str, float]]) -> str:
    """Each alert with its earliest report; one that came for more than two tasks or parts is counted."""
    groups: dict[str, list[str]] = {}
    for name in alerts:
        groups.setdefault(name.partition("(")[0], []).append(name)
    shown = []
    for alert, names in groups.items():
        first = {name: min(alerts[name].values()) for name in names}
        if len(names) > 2:
            shown.append(f"{alert} for {len(names)} {min(first.values()):g} s")
        else:
            shown += [f"{name} {after:g} s" for name, after in first.items()]
    return ", ".join(shown) or "none"
