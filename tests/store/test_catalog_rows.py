"""Loading the catalogs of many tenants: one row that cannot be read, and the work for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from handbill.banners import decide, store
from handbill.banners.catalogue import Catalogue, Snapshot
from handbill.banners.decide import Decider
from handbill.banners.model import BannerPatch, NewBanner
from handbill.banners.plan import Plan
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.kit.telemetry.metrics import REGISTRY
from tests.conftest import MakeTenant
from tests.kit.loop import loop
from tests.kit.waiting import eventually

MAKE_ENDLESS = Sql(
    "update banners.banners set expires_at = 'infinity' where tenant_id = $1 and public_id = $2", "make_endless"
)
"""The driver reads an infinite time as one without a zone."""


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_row_that_cannot_be_read_leaves_all_others_loaded_and_stays_as_it_was(
    database: Database, redis: Redis, make_tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned, tenant = sorted([await make_tenant(), await make_tenant()])
    async with loop(database, redis) as house:
        editor = house.banners.editor
        new = NewBanner(x_times=2, y_hours=24, z_duration_sec=3)
        bad = (await editor.create_banner(poisoned, new, actor="t")).banner_id
        good = (await editor.create_banner(poisoned, new, actor="t")).banner_id
        other = (await editor.create_banner(tenant, new, actor="t")).banner_id
        read = store._as

        def as_stored(kind: type[Any], row: Mapping[str, Any]) -> Any:
            unfit = {**row, "x_times": "many"} if row.get("public_id") == bad else row
            return read(kind, unfit)

        copy = Catalogue(database, redis, SystemClock())
        await copy.refresh()
        for tenant_id, banner_id in ((poisoned, bad), (poisoned, good), (tenant, other)):
            await editor.change_banner(tenant_id, banner_id, BannerPatch(x_times=7), version=None, actor="t")
        before = sample("handbill_catalog_unreadable_rows_total", kind="banner")
        monkeypatch.setattr(store, "_as", as_stored)
        await copy.refresh()
        times = {banner.public_id: banner.x_times for banner in copy.tenant(poisoned).banners}
        assert times == {bad: 2, good: 7}, "the last good form of one row, the others as they are now"
        assert [banner.x_times for banner in copy.tenant(tenant).banners] == [7]
        assert sample("handbill_catalog_unreadable_rows_total", kind="banner") > before
        fresh = Catalogue(database, redis, SystemClock())
        await fresh.refresh()
        assert [banner.public_id for banner in fresh.tenant(poisoned).banners] == [good]
        monkeypatch.undo()


class Rows:
    """A transaction that answers with `tenants` x `banners` rows and counts how often the tenant of a row is read."""

    def __init__(self, tenants: int, banners: int) -> None:
        self.looks = 0
        counter = self

        class Row(dict[str, Any]):
            def __getitem__(self, key: str) -> Any:
                counter.looks += key == "tenant_id"
                return super().__getitem__(key)

        self._rows = [Row(tenant_id=tenant, id=each) for tenant in range(tenants) for each in range(banners)]

    async def fetch(self, sql: Any, *args: Any) -> list[Any]:
        return self._rows if sql is store.S.load_banners else []


async def test_the_work_of_a_load_grows_with_the_rows_and_not_with_rows_times_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_as", lambda kind, row: row)
    for tenants in (10, 100, 1_000):
        rows = Rows(tenants, 5)
        loaded = await store.load(cast(Any, rows), range(tenants))
        assert all(len(each.banners) == 5 for each in loaded.values())
        assert rows.looks <= 2 * tenants * 5


async def test_each_tenants_rows_are_looked_at_by_its_own_snapshot_only(
    database: Database, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    class Counted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    async def load(tx: object, tenants: Sequence[int]) -> dict[int, store.TenantRows]:
        return {each: store.TenantRows(Counted(), Counted(), Counted(), []) for each in tenants}

    monkeypatch.setattr(store, "load", load)
    catalog, tenants = Catalogue(database, redis, SystemClock()), range(1, 501)
    await catalog._load(tenants, dict.fromkeys(tenants, 1))
    assert len(catalog.tenants()) == 500
    assert looks <= 500 * 5


@pytest.mark.parametrize("quick", [decide._QUICK, -1])
async def test_a_plan_that_cannot_be_compiled_is_counted_and_the_one_before_it_stays(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch, quick: int
) -> None:
    async with loop(database, redis) as house:
        new = NewBanner(x_times=2, y_hours=24, z_duration_sec=3)
        made = await house.banners.editor.create_banner(tenant, new, actor="t")
        await house.catalogue.refresh()
        decider = Decider(house.catalogue, house.caps, None)
        plan = await decider.plan(tenant)
        patch = BannerPatch(x_times=7)
        await house.banners.editor.change_banner(tenant, made.banner_id, patch, version=None, actor="t")
        await house.catalogue.refresh()
        before = sample("handbill_banner_plans_failed_total")

        tries = 0

        def fail(snapshot: Snapshot, *pieces: Any) -> Plan:
            nonlocal tries
            if not snapshot.banners:
                return Plan(snapshot, *pieces)
            tries += 1
            raise RecursionError("too deep")

        monkeypatch.setattr(decide, "_QUICK", quick)
        monkeypatch.setattr(decide, "Plan", fail)
        assert await decider.plan(tenant) is plan
        await eventually(lambda: sample("handbill_banner_plans_failed_total") == before + 1)
        for _ in range(3):
            assert await decider.plan(tenant) is plan
        assert tries == 1  # it would fail the same way for every decision until the catalog changes
        unseen = Decider(house.catalogue, house.caps, None)
        for _ in range(3):
            assert (await unseen.plan(tenant)).entries == []
        assert tries == 2
        monkeypatch.undo()
        await house.banners.editor.change_banner(
            tenant, made.banner_id, BannerPatch(x_times=8), version=None, actor="t"
        )
        await house.catalogue.refresh()
        assert (await decider.plan(tenant)).snapshot is house.catalogue.tenant(tenant)
        await unseen.stop()
        await decider.stop()


async def test_a_banner_that_cannot_be_compiled_is_left_out_and_its_neighbours_are_shown(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        new = NewBanner(x_times=2, y_hours=24, z_duration_sec=3)
        odd, good = [await house.banners.editor.create_banner(tenant, new, actor="t") for _ in range(2)]
        async with database.tenant(tenant) as tx:
            await tx.execute(MAKE_ENDLESS, tenant, odd.banner_id)
        await house.catalogue.refresh()
        before = sample("handbill_banners_left_out_total")
        plan = await Decider(house.catalogue, house.caps, None).plan(tenant)
        assert [entry.banner.public_id for entry in plan.entries] == [good.banner_id]
        assert plan.open(SystemClock().now_ms()) == 1
        assert sample("handbill_banners_left_out_total") == before + 1
