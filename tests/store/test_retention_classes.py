"""How long the events of a tenant are kept in ClickHouse: its own setting, or else the installation's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import Privacy, SettingsPatch, TenantPatch
from handbill.wiring.shipping import Retentions
from tests.kit.clocks import FakeClock
from tests.store.tenants_room import service


async def test_events_of_a_tenant_that_is_gone_are_exported_under_the_installations_setting(
    database: Database, redis: Redis, tenant: int
) -> None:
    tenants = service(database, redis, FakeClock())
    await tenants.change_tenant(
        tenant, TenantPatch(settings=SettingsPatch(privacy=Privacy(retention_days=30))), actor="test"
    )
    house: Any = SimpleNamespace(tenants=tenants, settings=SimpleNamespace(events=SimpleNamespace(history_days=90)))
    gone = 2**31 - 7
    assert await Retentions(house)([tenant, gone]) == {tenant: 30, gone: 90}
    await tenants.stop()
