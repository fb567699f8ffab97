"""A file over HTTP to a real API and a real worker: proposed, planned, run, reported, fixed, undone."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.processes import handbill, process
from tests.kit.waiting import eventually

Call = Callable[..., Awaitable[Any]]
FILE = (
    "Nome;Celular;E-mail;Cidade\n"
    'Ana "a" Souza;(11) 98765-4321;ANA@example.com;São Paulo\n'
    "Bob;5511987650000;bob@example.com;Rio\n"
    "Eve;5.51E+12;eve@example.com;Rio\n"
    "Zoë;+55 21 98765-1111;not an address;\n"
)


async def test_from_the_file_to_the_table_and_back(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    key = await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")
    await tenants.stop()
    base = f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}"
    env = {**handbill_env, "HANDBILL_CONTACTS__UPLOAD_LIMIT": "2000000", "HANDBILL_CONTACTS__PARSERS": "1"}
    headers = {"Authorization": f"Bearer {key.key}"}
    async with (
        process("api", env=env) as api,
        process("worker", "--only", "jobs,relay", env=env) as worker,
        aiohttp.ClientSession(base, headers=headers) as client,
    ):
        await api.log(event="api-ready")
        await worker.log(event="worker-ready")

        async def call(method: str, path: str, expected: int = 200, **how: Any) -> Any:
            async with client.request(method, path, **how) as reply:
                body = await (reply.json() if "json" in reply.content_type else reply.text())
                assert reply.status == expected, (reply.status, body)
                return body

        form = aiohttp.FormData()
        form.add_field("file", gzip.compress(FILE.encode("cp1252")), filename="clientes.csv.gz")
        made = await call("POST", "/admin/imports?region=BR", 201, data=form)
        path = f"/admin/imports/{made['import_id']}"
        targets = [column["target"] for column in made["plan"]["columns"]]
        assert targets == ["name", "phone", "email", "attribute:Cidade"]
        assert made["plan"]["reading"]["delimiter"] == ";"
        consent = {"channels": ["whatsapp"], "source": "loyalty form"}
        await call("PATCH", path, json={"tags": ["spring"], "consent": consent})
        seen = await call("GET", f"{path}/preview")
        assert [row["outcome"] for row in seen["rows"]] == ["create", "create", "reject", "create"]

        async def reaches(where: str, status: str) -> Any:
            async def there() -> Any:
                view = await call("GET", where)
                return view if view["info"]["status"] == status else None

            return await eventually(there, what=f"{where} is {status}")

        await call("POST", f"{path}/start", 202)
        done = await reaches(path, "done")
        assert (done["info"]["counts"]["created"], done["info"]["counts"]["rejected"]) == (3, 1)
        listed = await call("GET", "/admin/contacts?tag=spring&search=ana")
        assert [(one["phone"], one["name"], one["granted"]) for one in listed["items"]] == [
            ("+5511987654321", 'Ana "a" Souza', ["whatsapp"])
        ]
        causes = (await call("GET", f"{path}/report"))["causes"]
        assert [(one["severity"], one["code"]) for one in causes] == [
            ("reject", "PHONE_SCIENTIFIC"),
            ("note", "EMAIL_INVALID"),
        ]

        rejected = await call("GET", f"{path}/rejected")
        assert "Eve,5.51E+12,eve@example.com,Rio,4,PHONE_SCIENTIFIC,phone," in rejected
        mended = rejected.replace("5.51E+12", "'+5511987652222").encode()
        fixed = await call("POST", f"/admin/imports?name=fixes.csv&fixes={made['import_id']}", 201, data=mended)
        await call("POST", f"/admin/imports/{fixed['import_id']}/start", 202)
        assert (await reaches(f"/admin/imports/{fixed['import_id']}", "done"))["info"]["counts"]["created"] == 1

        await call("POST", f"{path}/undo", 202)
        await reaches(path, "undone")
        left = await call("GET", "/admin/contacts")
        assert [one["name"] for one in left["items"]] == ["Eve"]

        await by_hand(env, tenant, tmp_path)

        assert (await call("POST", "/admin/imports?name=x.csv", 413, data=io.BytesIO(b"a,b\n" * 600_000)))[
            "code"
        ] == "IMPORT_TOO_LARGE"
        await archive_and_region(call)
        bomb = gzip.compress(b"name,phone\n" + b"a,b\n" * 5_000_000)
        told = await call("POST", "/admin/imports?name=x.csv.gz", 201, data=io.BytesIO(bomb))
        await call("PATCH", f"/admin/imports/{told['import_id']}", 200, json={"key": "phone"})
        await call("POST", f"/admin/imports/{told['import_id']}/start", 202)
        failed = await reaches(f"/admin/imports/{told['import_id']}", "failed")
        assert failed["info"]["error"].startswith("IMPORT_TOO_LARGE")
        assert (await call("POST", "/admin/imports", 400, data=b"\x00\x01\x02" * 500))["code"] == "IMPORT_NOT_A_TABLE"


async def archive_and_region(call: Call) -> None:
    """One of two tables in a .zip: its numbers are of the default region of the tenant, its title is skipped."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("a.csv", "sep=;\nCustomers\nname;phone\nAnn;984-1234567\n")
        archive.writestr("b.csv", "phone\n1\n")
    await call("PATCH", "/admin/tenant", 200, json={"settings": {"default_region": "NP"}})
    refused = await call("POST", "/admin/imports?name=x.zip", 400, data=body.getvalue())
    assert (refused["code"], refused["faults"][0]["reason"]) == ("IMPORT_MEMBER", "one of: a.csv, b.csv")
    made = await call("POST", "/admin/imports?name=x.zip&member=a.csv", 201, data=body.getvalue())
    assert (made["plan"]["region"], made["plan"]["reading"]["member"]) == ("NP", "a.csv")
    assert made["plan"]["reading"]["skip_rows"] == 2
    rows = (await call("GET", f"/admin/imports/{made['import_id']}/preview"))["rows"]
    assert [(row["row"], row["values"]) for row in rows] == [(4, {"name": "Ann", "phone": "+9779841234567"})]
    plan = (await call("PATCH", f"/admin/imports/{made['import_id']}", json={"skip_rows": 3, "header": False}))["plan"]
    assert [column["target"] for column in plan["columns"]] == ["attribute:column 1", "phone"]
    await call("POST", f"/admin/imports/{made['import_id']}/cancel", 200)
    made = await call("POST", "/admin/contacts", 201, json={"phone": "984-1234567"})
    assert made["phone"] == "+9779841234567"


async def by_hand(env: dict[str, str], tenant: int, folder: Path) -> None:
    """The same by the command line: the worker is the one that runs already."""
    file, report = folder / "more.csv", folder / "rejected.csv"
    file.write_text("phone,name\n+5511987653333,Gus\nnone,Hal\n")
    consent = ("--consent", "whatsapp", "--consent", "sms", "--proof", "form 17")
    code, said = await handbill("contacts", "import", str(file), "--tenant", str(tenant), *consent, "--json", env=env)
    assert code == 0, said
    made = json.loads(said.splitlines()[0])
    assert made["plan"]["consent"] == {
        "channels": ["whatsapp", "sms"], "source": "file more.csv", "proof": "form 17",
    }  # fmt: skip
    assert (made["status"], made["counts"]["created"], made["counts"]["rejected"]) == ("done", 1, 1)
    owner = ("--tenant", str(tenant))
    code, said = await handbill("contacts", "report", made["import_id"], *owner, "--csv", str(report), env=env)
    assert (code, "PHONE_MISSING" in said) == (0, True), said
    assert "none,Hal,3,PHONE_MISSING" in report.read_text(encoding="utf-8-sig")
    code, said = await handbill("contacts", "undo", made["import_id"], *owner, env=env)
    assert (code, "is undone" in said) == (0, True), said
