"""Each attack by itself, beside honest traffic: p99 of the honest requests stays below 250 ms, and none fails.

All attacks come twice. Memory may grow while they come for the first time (caches fill up to their limits), not again.

The short form in `make test` sends all attacks at once and compares with a quiet round, because a machine that does
other work as well has no absolute figures. This one needs the machine for itself.
`ATTACKS=previews,sockets` in the environment chooses some; evidence is written for all of them only.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit.attacked_site import (
    Traffic,
    connected,
    is_counted,
    own_program,
    p99,
    prepare,
    resident,
    running,
    upload,
)
from tests.kit.attacker import EXTRAS
from tests.kit.attacks import ATTACKS, Target
from tests.kit.processes import Process, free_port
from tests.kit.waiting import eventually
from tests.soak.context import Context

QUIET = "quiet"
EVERY = (*ATTACKS, *EXTRAS)
ROUND_S = 15.0
PASSES = 2
WARM_UP_S = 3.0
LIMIT_S = 0.25
MEMORY_FACTOR, MEMORY_OVER = 1.2, 64 << 20


def chosen(words: str) -> list[str]:
    """The attacks that are named; all of them without a name. Raises AssertionError for another name."""
    named = [word for word in words.split(",") if word]
    assert not (unknown := {*named} - {*EVERY}), f"no attack named {', '.join(sorted(unknown))}; there are: {EVERY}"
    return named or list(EVERY)


async def attack(name: str, traffic: Traffic, target: Target, folder: Path) -> dict[str, Any]:
    """One attack from its first request to its last, and what the honest clients saw meanwhile."""
    async with own_program("attacker", target, folder, name) as attacker:
        await attacker.log(event="prepared", timeout=300)
        attacker.signal(signal.SIGUSR1)
        await attacker.log(event="begun")
        beside = await traffic.span(ROUND_S)
        attacker.signal(signal.SIGTERM)
        done = await attacker.log(event="finished", timeout=120)
    answers = done["answers"].get(name, {})
    assert answers, f"{name} sent nothing"
    assert not [status for status in answers if status == "timeout" or (status[0] == "5" and status != "503")], answers
    return {**_figures(name, beside), "attackers_answers": answers}


def _figures(name: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "attack": name,
        "honest_requests": len(requests),
        "failed": sum(not one["ok"] for one in requests),
        "p99_ms": round(p99(requests) * 1e3, 1),
        "slowest_ms": round(max(one["took"] for one in requests) * 1e3, 1),
    }


async def run(ctx: Context) -> dict[str, Any]:
    names = chosen(os.environ.get("ATTACKS", ""))
    ctx.is_partial = len(names) < len(EVERY)
    ctx.settings.update(round_s=ROUND_S, requests_per_s=60, limit_ms=LIMIT_S * 1e3)
    port = free_port()
    async with ctx.stack(clickhouse=True) as built:
        shop, site, target = await prepare(built, f"http://127.0.0.1:{port}")
        async with running(built, port) as servers:
            target = await upload(target)
            with tempfile.TemporaryDirectory(prefix="hba-") as folder:
                async with own_program("honest_traffic", site, Path(folder)) as honest:
                    await honest.log(event="request", kind="health", ok=True)
                    traffic = Traffic(honest)
                    results = await _rounds(ctx, names, traffic, target, Path(folder), servers)
                    accepted = await traffic.finish()
            async with connected(built) as database:
                await eventually(lambda: is_counted(database, shop, accepted), timeout=120, what="all is counted once")
    wrong = [one for one in results["rounds"] if one["failed"] or one["p99_ms"] > LIMIT_S * 1e3]
    assert not wrong, wrong
    return {**results, "accepted_and_counted_once": accepted}


async def _rounds(
    ctx: Context, names: list[str], traffic: Traffic, target: Target, folder: Path, servers: list[Process]
) -> dict[str, Any]:
    await traffic.span(WARM_UP_S)
    rounds = [_figures(QUIET, await traffic.span(ROUND_S))]
    memory = [[resident(server.pid) for server in servers]]
    for _ in range(PASSES):
        for name in names:
            rounds.append(await attack(name, traffic, target, folder))
            ctx.say(_row(rounds[-1]))
        memory.append([resident(server.pid) for server in servers])
    for server, first, last in zip(servers, memory[1], memory[-1], strict=True):
        assert last <= MEMORY_FACTOR * first + MEMORY_OVER, (server.name, memory)
    mib = [[size >> 20 for size in sizes] for sizes in memory]
    return {"rounds": rounds, "mib_of_api_and_worker_before_and_after_each_pass": mib}


def table(counts: Mapping[str, Any]) -> str:
    """The results for people, in Markdown."""
    head = "| attack | honest requests | failed | p99 | slowest |\n|---|---|---|---|---|\n"
    return head + "".join(_row(one) + "\n" for one in counts["rounds"])


def _row(one: Mapping[str, Any]) -> str:
    cells = (one["attack"], one["honest_requests"], one["failed"], f"{one['p99_ms']} ms", f"{one['slowest_ms']} ms")
    return "| " + " | ".join(map(str, cells)) + " |"
