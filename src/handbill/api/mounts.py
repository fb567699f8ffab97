"""The slices whose routes are mounted, by the name of their service in the house. One line per slice."""

from __future__ import annotations

from types import ModuleType

from handbill.jobs import routes as jobs
from handbill.tenants import routes as tenants

MOUNTS: dict[str, ModuleType] = {
    "tenants": tenants,
    "jobs": jobs,
}

FASTLANES: tuple[str, ...] = ()
"""Services of the house with hot routes: each has `fast_routes() -> list[FastRoute]`."""
