"""The tenant's default region: used where a request gives none, for one contact and for a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from handbill.contacts.model import ContactPatch, NewContact, NewSuppression, PlanPatch
from handbill.contacts.service import ContactsService, file_chunks
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Invalid, NotFound
from tests.conftest import MakeTenant
from tests.kit.address_book import ACTOR, contacts

NEPAL = Sql("update tenants.settings set default_region = 'NP' where tenant_id = $1", "region", "tests")


@pytest.fixture
def service(database: Database, redis: Redis, tmp_path: Path) -> ContactsService:
    return contacts(database, redis, tmp_path / "uploads")


@pytest.fixture
async def nepali(database: Database, tenant: int) -> int:
    async with database.tenant(tenant) as tx:
        await tx.execute(NEPAL, tenant)
    return tenant


async def test_a_contact_without_a_region_is_of_the_tenants_own(
    service: ContactsService, nepali: int, make_tenant: MakeTenant
) -> None:
    book, other = service.book, await make_tenant()
    made = await book.create(nepali, NewContact(phone="984-1234567"), actor=ACTOR)
    assert made.phone == "+9779841234567"
    given = await book.create(nepali, NewContact(phone="98450 12345", region="IN"), actor=ACTOR)
    assert given.phone == "+919845012345"
    abroad = await book.create(nepali, NewContact(phone="+919845012346"), actor=ACTOR)
    assert abroad.phone == "+919845012346"
    changed = await book.change(nepali, made.contact_id, ContactPatch(phone="9851234567"), actor=ACTOR)
    assert changed.phone == "+9779851234567"
    renamed = await book.change(nepali, made.contact_id, ContactPatch(name="Ann"), actor=ACTOR)
    assert (renamed.name, renamed.phone) == ("Ann", "+9779851234567")
    with pytest.raises(Invalid):
        await book.create(other, NewContact(phone="984-1234567"), actor=ACTOR)


async def test_a_suppression_without_a_region_is_of_the_tenants_own(service: ContactsService, nepali: int) -> None:
    made = await service.book.suppress_sent(nepali, NewSuppression("sms", "984-1234567"), actor=ACTOR)
    assert made.address == "+9779841234567"
    await service.book.lift(nepali, "sms", "9841234567", actor=ACTOR)
    with pytest.raises(NotFound):
        await service.book.lift(nepali, "sms", "+9779841234567", actor=ACTOR)


@pytest.mark.parametrize(("given", "region", "phone"), [(None, "NP", "+9779841234567"), ("IN", "IN", "+919841234567")])
async def test_a_file_without_a_region_is_of_the_tenants_own(
    service: ContactsService, nepali: int, tmp_path: Path, given: str | None, region: str, phone: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("name,phone\nAnn,9841234567\n")
    made = await service.imports.upload(nepali, file_chunks(path), actor=ACTOR, name="x.csv", region=given)
    assert made.plan.region == region
    preview = await service.imports.preview(nepali, made.import_id)
    assert preview.rows[0].values["phone"] == phone
    none = await service.imports.change(nepali, made.import_id, PlanPatch(region=None), actor=ACTOR)
    assert none.plan.region is None
    assert (await service.imports.preview(nepali, made.import_id)).rows[0].outcome == "reject"
