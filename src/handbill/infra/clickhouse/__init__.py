"""ClickHouse through its HTTP protocol: the embedded engine and a server of your own look the same from here."""

from __future__ import annotations

from handbill.infra.clickhouse.client import ClickHouse, ClickHouseAway, ClickHouseBusy, ClickHouseError

__all__ = ["ClickHouse", "ClickHouseAway", "ClickHouseBusy", "ClickHouseError"]
