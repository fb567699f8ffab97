"""Ids of one person share their caps: each id's value holds the views of all, whatever is joined and parted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from handbill.caps.model import By, Limits, State, Window
from handbill.caps.packed import Shelf
from handbill.events.model import CapturedEvent, Edge, EdgeKind, View
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.loop import loop
from tests.kit.show_caps import HOUR, CapsHouse, FakeBook

Unique = Callable[[str], str]
IDS = ("ann", "bob", "cid")
X, Y = 3, 24 * HOUR


class Groups:
    """Who is one with whom, as a test says."""

    def __init__(self) -> None:
        self.sets: list[set[str]] = [{each} for each in IDS]

    async def __call__(self, tenant_id: int, ids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return {each: sorted(self.of(each)) for each in ids if len(self.of(each)) > 1}

    def of(self, each: str) -> set[str]:
        return next((group for group in self.sets if each in group), {each})

    def join(self, one: str, other: str) -> list[str]:
        joined = self.of(one) | self.of(other)
        self.sets = [group for group in self.sets if not group & joined] + [joined]
        return sorted(joined)

    def part(self, one: str) -> list[str]:
        whole = self.of(one)
        self.sets = [group for group in self.sets if group is not whole] + [whole - {one}, {one}]
        return sorted(whole)


@pytest.mark.parametrize("seed", range(4))
async def test_the_caps_of_every_id_are_the_union_of_its_persons_views(
    redis: Redis, database: Database, tenant: int, unique: Unique, seed: int
) -> None:
    dice, groups = random.Random(seed), Groups()
    house = CapsHouse(redis, database, tenant, unique("caps"), FakeBook(b7=Limits((Window(X, Y),))))
    house.caps.follow(groups)
    await house.caps.ensure("t")
    views: list[tuple[str, int]] = []
    for step in range(40):
        house.clock.advance(minutes=dice.randrange(1, 240))
        what = dice.choices(("view", "join", "part", "wipe", "open"), (10, 4, 3, 1, 3))[0]
        who = dice.choice(IDS)
        if what == "view":
            row = house.view(f"{seed}-{step}", user=who, device=None)
            await house.accept(row)
            await house.commit(row)
            views.append((who, row.event.at))
        elif what == "open":  # accepted, and refused in the end: it never was anybody else's
            row = house.view(f"{seed}-{step}", user=who, device=None)
            await house.accept(row)
            await house.caps.regrouped(tenant, [who])
            assert sum(s.state is State.MOVED for s in Shelf(await house.raw(who)).seen(7)) == 1
            await house.sink.project([], [row])
        elif what == "join":
            await house.caps.regrouped(tenant, groups.join(who, dice.choice(IDS)))
        elif what == "part":
            await house.caps.regrouped(tenant, groups.part(who))
        else:
            await house.wipe()
            await house.caps.rebuild(f"{step}")
        now = house.clock.now_ms()
        for each in IDS:
            mine = sorted((at for user, at in views if user in groups.of(each) and now - at < Y), reverse=True)
            kept = [seen.at_ms for seen in Shelf(await house.raw(each)).seen(7) if now - seen.at_ms < Y]
            assert kept == mine[:X], (step, what, each)
            assert await house.shown(user=each) == (len(mine) < X)


async def test_a_lifetime_counts_the_views_of_all_ids_after_their_rows_are_gone(
    redis: Redis, database: Database, tenant: int, unique: Unique
) -> None:
    groups = Groups()
    house = CapsHouse(redis, database, tenant, unique("caps"), FakeBook(b7=Limits((Window(3),))))
    house.caps.follow(groups)
    await house.caps.ensure("t")
    for name, user in (("a", "ann"), ("b", "bob"), ("c", "ann")):
        house.clock.advance(hours=1)
        await house.commit(house.view(name, user=user))
    assert await house.shown(user="ann")
    await house.caps.regrouped(tenant, groups.join("ann", "bob"))
    assert not await house.shown(user="ann")
    assert not await house.shown(user="bob")
    await house.wipe()
    assert not await house.shown(user="bob"), "PostgreSQL is asked about the whole person"
    await house.caps.rebuild("anew")
    assert not await house.shown(user="bob")
    await house.caps.regrouped(tenant, groups.part("bob"))
    assert await house.shown(user="bob")
    assert (await house.look(house.viewer("bob"), house.rules())).seen(By.USER, 7) == 1


async def test_a_login_joins_the_caps_and_its_undoing_parts_them(database: Database, redis: Redis, tenant: int) -> None:
    """End to end: a phone saw it twice, its owner logs in, and the owner's other device must not show it again."""
    async with loop(database, redis) as house:
        made = await house.banner(tenant, x_times=2)
        banner = house.catalogue.tenant(tenant).banners[0]
        assert made.x_times == 2
        now = house.clock.now_ms()
        await house.consumer()

        async def seen(number: int, user: str) -> None:
            await house.events.accept([View(tenant, f"v{number}", now, now, banner.id, user=user)])
            await house.drained()

        async def shown(user: str) -> bool:
            return await house.allowed(tenant, user, banner, house.clock.now_ms())

        await seen(1, "phone")
        await seen(2, "phone")
        login = CapturedEvent(tenant, "e1", now, now, "$identify", "zoe", "own", edge=Edge(EdgeKind.IDENTIFY, "phone"))
        assert await shown("zoe")
        await house.events.accept([login])
        await house.drained()
        assert not await shown("zoe")
        page = await house.people.find(tenant, "zoe")
        assert [each.distinct_id for each in page.distinct_ids] == ["phone", "zoe"]
        await house.people.void(tenant, page.edges[0].edge_id, actor="an operator")
        assert await shown("zoe")
        assert not await shown("phone")
        await seen(3, "zoe")
        await house.people.restore(tenant, page.edges[0].edge_id, actor="an operator")
        assert not await shown("zoe")
