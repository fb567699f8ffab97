"""An event changes what its sender is shown, within the same turn: journal, people, segments, projection, decision."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from handbill.banners.decide import Ask, Decider
from handbill.banners.explain import Explainer
from handbill.banners.model import BannerPatch
from handbill.caps.model import Viewer
from handbill.events.model import CapturedEvent, Edge, EdgeKind
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit import crashpoints
from handbill.kit.errors import Conflict, Invalid
from handbill.segments.model import NewSegment
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop


@dataclass
class Stage:
    loop: Loop
    tenant: int
    clock: FakeClock
    said: int = 0

    @property
    def decider(self) -> Decider:
        return self.loop.banners.show.decider

    async def say(self, who: str, edge: Edge | None = None, **properties: Any) -> None:
        """One event that sets properties of its sender."""
        self.said += 1
        self.clock.advance(ms=1)
        now = self.clock.now_ms()
        told = json.dumps(properties).encode() if properties else None
        event = CapturedEvent(self.tenant, f"e{self.said}", now, now, "seen", who, "own", set=told, edge=edge)
        await self.loop.events.accept([event])

    async def known(self) -> None:
        """Until the pipeline and the keeper have nothing left to do."""
        await self.loop.drained()
        keeper = self.loop.segments.keeper
        while await keeper.turn():
            continue

    async def ask(self, who: str, **values: Any) -> Ask:
        return Ask(Viewer(self.tenant, who), self.clock.now_ms(), values)

    async def shown(self, who: str, **values: Any) -> set[str]:
        plan = await self.decider.plan(self.tenant)
        found = await self.decider.decided(plan, [(plan.anywhere, 100)], await self.ask(who, **values))
        return {entry.banner.name for entry in found.entries[0]}

    async def why(self, who: str) -> dict[str, str | None]:
        plan = await self.decider.plan(self.tenant)
        explainer = Explainer(self.decider, None)
        _, verdicts = await explainer.explained(plan, [(plan.anywhere, 100)], await self.ask(who))
        names = {entry.banner.public_id: entry.banner.name for entry in plan.entries}
        return {names[each.banner_id]: each.rule or str(each.reason) for each in verdicts}

    async def segment(self, name: str, rule: dict[str, Any]) -> UUID:
        made = await self.loop.segments.editor.create(self.tenant, NewSegment(name, rule), actor="test")
        return made.segment_id


@pytest.fixture
async def stage(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Stage]:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        await made.consumer()
        yield Stage(made, tenant, clock)


async def test_an_event_changes_what_its_sender_sees(stage: Stage) -> None:
    vip = await stage.segment("VIP", {"person.spent": {"op": "gte", "value": 100}})
    for name, rule in {
        "pro": {"person.plan": "pro"}, "vip": {"segment": str(vip)}, "rest": {"not": {"segment": str(vip)}},
        "either": {"any": [{"country": "NL"}, {"person.plan": "pro"}]}, "all": None,
    }.items():  # fmt: skip
        await stage.loop.banner(stage.tenant, name=name, targeting=rule)
    assert await stage.shown("ann", country="nl") == {"all"}, "nothing is known of anybody yet"
    assert (await stage.why("ann"))["rest"] == f"segment.{vip} of this user is not known yet"
    await stage.known()
    assert await stage.shown("ann", country="nl") == {"all", "rest", "either"}
    await stage.say("ann", plan="pro", spent=20)
    await stage.known()
    assert await stage.shown("ann") == {"all", "rest", "pro", "either"}
    assert (await stage.why("ann"))["vip"] == f"segment {vip}"
    assert (await stage.why("bob"))["pro"] == 'person.plan eq "pro"'
    await stage.say("ann", plan="free", spent=150)
    await stage.known()
    assert await stage.shown("ann") == {"all", "vip"}
    await stage.say("phone")
    await stage.say("ann", edge=Edge(EdgeKind.ALIAS, "phone"))
    await stage.known()
    assert await stage.shown("phone") == {"all", "vip"}, "two ids, one person"


async def test_a_merge_moves_members_and_taking_it_back_brings_them_home(stage: Stage) -> None:
    vip = await stage.segment("VIP", {"person.spent": {"op": "gte", "value": 100}, "person.city": "Delft"})
    await stage.loop.banner(stage.tenant, name="vip", targeting={"segment": str(vip)})
    await stage.say("ann", spent=150)
    await stage.say("bob", city="Delft")
    await stage.known()
    segments, people = stage.loop.segments, stage.loop.people
    assert await segments.size(stage.tenant, vip) == 0
    page = await people.merge(stage.tenant, "ann", "bob", actor="test")
    await stage.known()
    assert [member.properties for member in await segments.members(stage.tenant, vip)] == [
        {"spent": 150, "city": "Delft"}
    ]
    assert await stage.shown("ann") == await stage.shown("bob") == {"vip"}
    await people.void(stage.tenant, page.edges[0].edge_id, actor="test")
    await stage.known()
    assert await segments.size(stage.tenant, vip) == 0
    assert await stage.shown("ann") == await stage.shown("bob") == set()


async def test_a_decision_about_a_person_takes_one_round_trip(stage: Stage) -> None:
    await stage.loop.banner(stage.tenant, name="pro", targeting={"person.plan": "pro"})
    await stage.known()
    await stage.decider.plan(stage.tenant)
    heard: list[str] = []
    crashpoints.install(heard.append)
    try:
        await stage.shown("ann")
    finally:
        crashpoints.install(None)
    assert heard == ["before:redis:MGET", "after:redis:MGET"]


async def test_banners_and_segments_hold_on_to_each_other(stage: Stage) -> None:
    editor = stage.loop.banners.editor
    with pytest.raises(Invalid) as caught:
        await stage.loop.banner(stage.tenant, name="x", targeting={"any": [{"segment": str(UUID(int=3))}]})
    assert caught.value.code == "SEGMENT_UNKNOWN"
    vip = await stage.segment("VIP", {})
    banner = await stage.loop.banner(stage.tenant, name="x", targeting={"segment": str(vip), "person.plan": "pro"})
    with pytest.raises(Conflict) as refused:
        await stage.loop.segments.editor.delete(stage.tenant, vip, version=None, actor="test")
    assert "the banner x" in refused.value.detail
    await editor.archive_banner(stage.tenant, banner.banner_id, archived=True, actor="test")
    await stage.loop.segments.editor.delete(stage.tenant, vip, version=None, actor="test")
    with pytest.raises(Invalid) as caught:
        await editor.archive_banner(stage.tenant, banner.banner_id, archived=False, actor="test")
    assert caught.value.code == "SEGMENT_UNKNOWN"
    patch = BannerPatch(targeting={"person.plan": {"op": "missing"}})
    await editor.change_banner(stage.tenant, banner.banner_id, patch, version=None, actor="test")
    await editor.archive_banner(stage.tenant, banner.banner_id, archived=False, actor="test")
    await stage.loop.catalogue.refresh()
    await stage.known()
    assert await stage.shown("ann") == {"x"}
    await stage.say("ann", plan="pro")
    await stage.known()
    assert await stage.shown("ann") == set()


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ({"person": "x"}, "targeting.person"),
        ({"person.": 1}, "targeting.person."),
        ({"person.a": {"op": "regex", "value": "x"}}, "targeting.person.a"),
        ({"segment": "vip"}, "targeting.segment"),
        ({"segment": []}, "targeting.segment"),
    ],
)
async def test_a_faulty_rule_is_refused_by_its_place(stage: Stage, rule: dict[str, Any], place: str) -> None:
    with pytest.raises(Invalid) as caught:
        await stage.loop.banner(stage.tenant, name="x", targeting=rule)
    assert [fault.field for fault in caught.value.faults] == [place]
