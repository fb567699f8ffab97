"""One tenant and somebody without a key do their worst; the traffic of another tenant hardly notices it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.attacked_site import Traffic, connected, is_counted, own_program, p99, prepare, resident, running, upload
from tests.kit.attacker import EXTRAS
from tests.kit.attacks import ATTACKS, Target
from tests.kit.processes import Process, free_port
from tests.kit.stack import stack
from tests.kit.waiting import eventually

QUIET_S = 5.0
ATTACK_S = 15.0
PAIRS = 3
FACTOR, OVER_S = 3.0, 0.1
MEMORY_FACTOR, MEMORY_OVER = 1.2, 64 << 20


class Pair(NamedTuple):
    """A quiet round and one beside the attacks."""

    quiet: list[dict[str, Any]]
    beside: list[dict[str, Any]]
    answers: dict[str, dict[str, int]]
    longest: dict[str, float]
    waiting: float
    """Processes that wanted each core. Others may load the machine as well: then everything takes so much longer."""

    @property
    def is_close(self) -> bool:
        return p99(self.beside) <= FACTOR * p99(self.quiet) + OVER_S * max(1.0, self.waiting)

    def __str__(self) -> str:
        slowest = sorted(self.beside, key=lambda one: -float(one["took"]))[:5]
        return (
            f"p99 {p99(self.quiet):.3f} s quiet, {p99(self.beside):.3f} s beside attacks; processes for each core:"
            f" {self.waiting:.1f}; slowest: {slowest}; attacks: {self.answers}; longest: {self.longest}"
        )


async def play(traffic: Traffic, attacker: Process) -> Pair:
    quiet = await traffic.span(QUIET_S)
    attacker.signal(signal.SIGUSR1)
    await attacker.log(event="begun")
    beside = await traffic.span(ATTACK_S)
    attacker.signal(signal.SIGTERM)
    done = await attacker.log(event="finished", timeout=120)
    return Pair(quiet, beside, done["answers"], done["longest"], os.getloadavg()[0] / (os.cpu_count() or 1))


async def play_until_close(traffic: Traffic, target: Target, folder: Path, servers: list[Process]) -> list[Pair]:
    """At most PAIRS: what else the machine does comes in waves, while what an attack costs is there every time."""
    pairs: list[Pair] = []
    before: list[int] = []
    while len(pairs) < PAIRS and not any(pair.is_close for pair in pairs):
        async with own_program("attacker", target, folder) as attacker:
            await attacker.log(event="prepared", timeout=300)
            before = before or [resident(server.pid) for server in servers]
            pairs.append(await play(traffic, attacker))
            print(pairs[-1])
    after = [resident(server.pid) for server in servers]
    for server, then, now in zip(servers, before, after, strict=True):
        assert now <= MEMORY_FACTOR * then + MEMORY_OVER, (server.name, then, now)
    return pairs


def check_answers(pair: Pair) -> None:
    """Every attack got through to what it attacks, and none broke anything."""
    assert pair.answers.keys() == {*ATTACKS, *EXTRAS}
    for name, answers in pair.answers.items():
        assert not [status for status in answers if status[0] == "5" and status != "503"], (name, answers)
        assert "timeout" not in answers, (name, answers)
    for name in ("targeting_patterns", "heavy_questions", "large_answers", "previews"):
        assert pair.answers[name].get("200"), (name, pair.answers[name])


@pytest.mark.timeout(480)
async def test_honest_traffic_hardly_notices_attacks(tmp_path: Path) -> None:
    """No honest request fails, p99 stays close to that of a quiet round, memory stays flat, each event counts once."""
    port = free_port()
    async with stack(clickhouse=True) as built:
        shop, site, target = await prepare(built, f"http://127.0.0.1:{port}")
        async with running(built, port) as servers:
            target = await upload(target)
            async with own_program("honest_traffic", site, tmp_path) as honest:
                await honest.log(event="request", kind="health", ok=True)
                traffic = Traffic(honest)
                pairs = await play_until_close(traffic, target, tmp_path, servers)
                accepted = await traffic.finish()
            assert [one for one in traffic.requests if not one["ok"]] == []
            for pair in pairs:
                check_answers(pair)
            assert any(pair.is_close for pair in pairs), "\n".join(map(str, pairs))
            async with connected(built) as database:
                await eventually(lambda: is_counted(database, shop, accepted), timeout=120, what="all is counted once")
