"""The tour of the README, pasted as it stands into a shell beside a real `handbill up`, answers what README says."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e._up import ready, settings_of
from tests.kit.processes import process
from tests.kit.waiting import eventually

README = Path(__file__).parents[2] / "README.md"
ASSIGNED = re.compile(r"^W=.*\nA=.*\n", re.MULTILINE)
ACROSS_MIDNIGHT = """date() {
  case "$*" in *tomorrow*) command date -u -d "2 days" +%F;; *) command date -u -d "1 hour ago" +%F;; esac
}"""
"""The days that the tour asks for hold all that it sends, also when midnight passes while it runs."""
BANNERS, FIRST_VIEW, SECOND_VIEW, GONE, IMPRESSION, STATS, EXPLAINED, EVENTS, PERSON, TRENDS = range(10)


def tour() -> str:
    """The blocks of the first five minutes, but for `make up`."""
    part = README.read_text().partition("## The first five minutes\n")[2].partition("\n## ")[0]
    blocks: list[str] = re.findall(r"^```\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    assert blocks[0] == "make up\n"
    return "\n".join(blocks[1:])


def commands(script: str) -> list[str]:
    """Each command by itself; a comment behind it or a line that goes on belongs to it."""
    whole = re.split(r"\n(?=curl |for )", ASSIGNED.sub("", script))
    return [each for each in whole if each.strip()]


async def answers(script: str) -> list[Any]:
    """What the commands of a script answer, one after the other."""
    shell = await asyncio.create_subprocess_exec(
        "bash", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, noise = await asyncio.wait_for(shell.communicate(script.encode()), 180)
    assert shell.returncode == 0, noise.decode()
    found, rest, decoder = [], said.decode().strip(), json.JSONDecoder()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].lstrip()
    return found


@pytest.mark.timeout(400)
async def test_the_tour_answers_right_when_pasted_in_one_go(short_tmp: Path) -> None:
    async with process("up", "--json", "--json-logs", env=settings_of(short_tmp / "home")) as up:
        facts: Any = await ready(up)
        demo, script = facts["demo"], tour()
        given = (
            f"W={demo['write_key']} S={demo['secret_key']} BANNER={demo['banner_id']} "
            f"PLACEMENT={demo['placement_id']}\nA={facts['api']}\n{ACROSS_MIDNIGHT}\n"
        )
        assert len(ASSIGNED.findall(script)) == 1
        found = await answers(ASSIGNED.sub(lambda _: given, script))
        assert len(found) == 10, found

        reads = dict(zip((STATS, EXPLAINED, PERSON, TRENDS), _waiting(script), strict=True))
        for number, command in reads.items():  # a machine with much else to do may take longer than five seconds
            if not found[number].get("complete"):
                assert found[number].get("lag") or found[number]["status"] == 404, found[number]
                found[number] = await eventually(lambda command=command: _complete(given + command), timeout=120)

        assert found[BANNERS]["banners"] == [demo["banner_id"]], found[BANNERS]
        assert found[GONE]["banners"] == [], found[GONE]
        totals = found[STATS]["totals"]
        assert (totals["impressions"], totals["views"], totals["clicks"]) == (1, 2, 0)
        assert (found[EXPLAINED]["outcome"], found[EXPLAINED]["kind"]) == ("counted", "view")
        person = found[PERSON]["person"]
        assert (person["named_by"], person["ids"], person["properties"]) == ("ada", 2, {"plan": "pro"})
        assert found[TRENDS]["lines"][0]["total"] == 1
        assert type(found[TRENDS]["lines"][0]["total"]) is int
        assert await up.stop() == 0, up.tail()


def _waiting(script: str) -> list[str]:
    return [each for each in commands(script) if "wait=5" in each]


async def _complete(script: str) -> Any:
    (answer,) = await answers(script)
    return answer if answer.get("complete") else None
