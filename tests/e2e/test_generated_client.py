"""A client that somebody generates from the API's document has every operation, and works."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.optional import need
from tests.kit.processes import ROOT, process

NODE_GENERATORS = ROOT / ".node-generators" / "node_modules"
GENERATORS = ROOT / ".venv-generators" / "bin"
NOT_GENERATED = {
    "Unsupported content type text/csv",  # a second way to send what JSON can send, too
    "Unsupported content_type image/svg+xml",  # a picture of the demo shop
}
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from made import AuthenticatedClient
from made.api.banners import create_banner, list_banners
from made.api.placements import create_placement, list_placements
from made.models import NewBanner, NewPlacement, Problem

with AuthenticatedClient(base_url=sys.argv[2], token=sys.argv[3]) as client:
    place = create_placement.sync(client=client, body=NewPlacement(name="Home", slug="home"))
    banner = create_banner.sync(client=client, body=NewBanner(
        x_times=2, y_hours=24, z_duration_sec=3, title="Tea", placement_ids=[place.placement_id]))
    places = list_placements.sync(client=client)
    banners = list_banners.sync(client=client, limit=10)
    refused = list_banners.sync(client=AuthenticatedClient(base_url=sys.argv[2], token="hbs_none"))
    print(json.dumps({
        "placement": str(place.placement_id), "placements": [str(each.placement_id) for each in places.items],
        "banner": str(banner.banner_id), "banners": [[str(each.banner_id), each.title] for each in banners.items],
        "refused": refused.code if isinstance(refused, Problem) else None,
    }))
"""


async def made_key(database: Database, redis: Redis, tenant: int, new: NewKey) -> str:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    key = await tenants.create_key(tenant, new, actor="test")
    await tenants.stop()
    return key.key


@pytest.fixture
async def write_key(database: Database, redis: Redis, tenant: int) -> str:
    return await made_key(database, redis, tenant, NewKey(kind="write", name="site"))


@pytest.fixture
async def api(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> AsyncIterator[tuple[Api, str]]:
    key = await made_key(database, redis, tenant, NewKey(kind="secret", name="all", scopes=["*"]))
    async with process("api", env=handbill_env) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}", client), key


async def run(*command: str, cwd: Path | None = None) -> str:
    assert GENERATORS.is_dir(), "make .venv-generators/.synced installs the generator"
    env = {**os.environ, "PATH": f"{GENERATORS}{os.pathsep}{os.environ['PATH']}"}
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=env, cwd=cwd
    )
    output = (await child.communicate())[0].decode()
    assert child.returncode == 0, output
    return output


async def test_a_generated_python_client_has_every_operation_and_works(api: tuple[Api, str], tmp_path: Path) -> None:
    served, key = api
    document = (await served("GET", "/schema/openapi.json")).json()
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    output = await run(
        str(GENERATORS / "openapi-python-client"), "generate", "--path", str(file), "--output-path",
        str(tmp_path / "made"), "--meta", "none",
    )  # fmt: skip
    warnings = [line for line in output.splitlines() if "nsupported" in line or "Unable" in line or "Skipping" in line]
    assert not [line for line in warnings if not any(known in line for known in NOT_GENERATED)], output
    operations = [each for item in document["paths"].values() for each in item.values()]
    made = {file.stem.replace("_", "") for file in (tmp_path / "made" / "api").glob("*/*.py")}
    missing = {each["operationId"] for each in operations if each["operationId"].lower().replace("_", "") not in made}
    assert missing == set()
    result = json.loads(await run(str(GENERATORS / "python"), "-c", PROGRAM, str(tmp_path), served.base, key))
    assert result["placements"] == [result["placement"]]
    assert result["banners"] == [[result["banner"], "Tea"]]
    assert result["refused"] == "UNAUTHORIZED"


async def test_a_generated_typescript_client_compiles_strictly_and_works(
    api: tuple[Api, str], write_key: str, tmp_path: Path
) -> None:
    need("npm")
    assert NODE_GENERATORS.is_dir(), "make .node-generators/.synced installs the generator"
    served, key = api
    (tmp_path / "node_modules").symlink_to(NODE_GENERATORS)
    (tmp_path / "openapi.json").write_bytes((await served("GET", "/schema/openapi.json")).body)
    for name in ("package.json", "tsconfig.json", "client.ts"):
        shutil.copy(ROOT / "tests" / "typescript_client" / name, tmp_path)
    tools = tmp_path / "node_modules" / ".bin"
    options = ("--default-non-nullable=false", "-o", "schema.ts")
    await run(str(tools / "openapi-typescript"), "openapi.json", *options, cwd=tmp_path)
    await run(str(tools / "tsc"), cwd=tmp_path)
    result = json.loads(await run("node", "built/client.js", served.base, key, write_key, cwd=tmp_path))
    assert result == {
        "made": result["made"], "banners": [[result["made"], "Tea"]], "accepted": 1, "refused": "UNAUTHORIZED"
    }  # fmt: skip
