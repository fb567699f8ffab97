"""ClickHouse through its HTTP protocol: the embedded engine and a server of your own look the same from here."""

from __future__ import annotations

from handbill.infra.clickhouse.client import ClickHouse, ClickHouseAway, ClickHouseBusy, ClickHouseError
from handbill.infra.clickhouse.names import name_lists

__all__ = ["ClickHouse", "ClickHouseAway", "ClickHouseBusy", "ClickHouseError", "name_lists"]
