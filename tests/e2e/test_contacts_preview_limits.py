"""A small workbook that takes many seconds to read: the API refuses it, keeps nothing, and answers others meanwhile."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path
from typing import Any

import aiohttp

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.conftest import MakeTenant
from tests.kit.processes import process

GOOD = b"name,phone\nAna,+5511987654321\n"
CELLS = b'<row r="1">' + b'<c r="A1"><v>1</v></c>' * 40_000 + b"</row>"


def write_heavy_workbook(path: Path) -> bytes:
    """About 120 MB of cells in the same place, in a file of some hundred kilobytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("xl/sheet1.xml", "w") as part:
        for _ in range(140):
            part.write(CELLS)
    return path.read_bytes()


async def test_a_heavy_file_is_refused_while_others_are_answered(
    handbill_env: dict[str, str], database: Database, redis: Redis, make_tenant: MakeTenant, tmp_path: Path
) -> None:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    new = NewKey(kind="secret", name="all", scopes=["*"])
    attacker, neighbour = [(await tenants.create_key(await make_tenant(), new, actor="test")).key for _ in range(2)]
    await tenants.stop()
    uploads = tmp_path / "uploads"
    env = {
        **handbill_env,
        "HANDBILL_CONTACTS__UPLOAD_DIR": str(uploads),
        "HANDBILL_CONTACTS__PREVIEW_SECONDS": "1",
    }
    heavy = write_heavy_workbook(tmp_path / "heavy.xlsx")
    base = f"http://127.0.0.1:{env['HANDBILL_API__PORT']}"
    async with process("api", env=env) as api, aiohttp.ClientSession(base) as client:
        await api.log(event="api-ready")

        async def upload(key: str, body: bytes, name: str) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {key}"}
            async with client.post(f"/admin/imports?name={name}", data=body, headers=headers) as reply:
                return reply.status, await reply.json()

        attacks = [asyncio.create_task(upload(attacker, heavy, "heavy.xlsx")) for _ in range(3)]
        await api.log(event="import.inspection_limit_exceeded")
        assert (await upload(neighbour, GOOD, "good.csv"))[0] == 201
        for attack in attacks:
            status, problem = await attack
            assert (status, problem["code"]) == (400, "IMPORT_LIMIT"), problem
        status, made = await upload(attacker, GOOD, "good.csv")
        assert status == 201, made
    assert len(list(uploads.iterdir())) == 2, "refused files are removed"
