"""Erasures and exports run to their end in the test's own process, as the worker would."""

from __future__ import annotations

import msgspec

from handbill.tenants.model import Erasure, Export
from handbill.tenants.service import TenantService


async def erase(tenants: TenantService, tenant_id: int, subject: str, *, actor: str = "test") -> Erasure:
    """Request an erasure and run it once."""
    erasure = await tenants.erasures.request(tenant_id, subject, actor=actor)
    return await tenants.erasures.run(tenant_id, erasure.erasure_id)


async def export(tenants: TenantService, tenant_id: int, subject: str, *, actor: str = "test") -> Export:
    """Request an export, run it and fetch the result."""
    made = await tenants.exports.request(tenant_id, subject, actor=actor)
    await tenants.exports.run(tenant_id, made.export_id)
    return msgspec.json.decode(await tenants.exports.result(tenant_id, made.export_id), type=Export)
