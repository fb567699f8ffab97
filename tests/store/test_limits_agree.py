"""What a request may say and what its table takes are written twice: here they are compared, column by column."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from handbill.adstats import model as adstats
from handbill.banners import model as banners
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.messaging import drafts, hooks, links, opt_out_words, plan
from handbill.messaging.singles import model as singles
from handbill.segments import model as segments
from handbill.tenants import model as tenants

_CHECKS = Sql(
    """
select c.conrelid::regclass::text as name, pg_get_constraintdef(c.oid) as text, a.attname::text as column
from pg_constraint c join pg_attribute a on a.attrelid = c.conrelid and a.attnum = c.conkey[1]
where c.contype = 'c' and c.conparentid = 0 and cardinality(c.conkey) = 1 and c.conrelid <> 0
  and not exists (select 1 from pg_inherits i where i.inhrelid = c.conrelid)
""",
    "test_checks",
)
_BOUND = re.compile(r"(length|cardinality)?\(?(\w+)\)? (>=|<=|>) \(?'?(-?[0-9]+)")
_PATTERN = re.compile(r"\w+ ~ '([^']+)'")

BANNER = (banners.NewBanner, banners.BannerPatch)
CAMPAIGN = (banners.NewCampaign, banners.CampaignPatch)
PLACEMENT = (banners.NewPlacement, banners.PlacementPatch)
WRITERS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    **{
        f"banners.banners.{column}": BANNER
        for column in (
            "holdout_percent", "name", "priority", "revenue", "weight", "x_times", "y_hours", "z_duration_sec",
            "asset_url", "cta_link", "description", "image_url", "title",
        )
    },
    "banners.campaigns.name": CAMPAIGN,
    "banners.placements.name": PLACEMENT,
    "banners.placements.description": PLACEMENT,
    "banners.placements.slug": PLACEMENT,
    "adstats.fb_connections.look_back_days": (adstats.NewConnection, adstats.ConnectionPatch),
    "messaging.campaigns.name": (plan.NewCampaign, drafts.CampaignPatch),
    "messaging.campaigns.numbers": (plan.NewCampaign, drafts.CampaignPatch),
    "messaging.opt_out_words.start": (opt_out_words.NewOptOutWords,),
    "messaging.opt_out_words.stop": (opt_out_words.NewOptOutWords,),
    "messaging.opt_out_words.without": (opt_out_words.NewOptOutWords,),
    "messaging.connections.name": (links.NewConnection, links.ConnectionPatch),
    "messaging.hooks.url": (hooks.NewHook, hooks.HookPatch),
    "messaging.single_messages.idempotency_key": (singles.NewMessage, singles.NewReply),
    "segments.segments.name": (segments.NewSegment, segments.SegmentPatch),
    "tenants.api_keys.name": (tenants.NewKey,),
    "tenants.settings.default_region": (tenants.SettingsPatch,),
    "tenants.tenants.name": (tenants.NewTenant, tenants.TenantPatch),
    "tenants.tenants.slug": (tenants.NewTenant,),
}  # fmt: skip
"""What callers send for a column, under the column's own name."""

CHECKED_ELSEWHERE = {
    "adstats.entities.budget": "a Decimal, for which msgspec has no limits: adstats.editor",
    "messaging.campaigns.cap_count": "PersonCap.count",
    "messaging.campaigns.cap_hours": "PersonCap.hours",
    "messaging.campaigns.price": "a Decimal: messaging.checks",
    "messaging.campaigns.spend_cap": "a Decimal: messaging.checks",
    "messaging.numbers.per_second": "one of the few figures of the provider's own table",
    "messaging.numbers.tier": "one of the few figures of the provider's own table",
    "messaging.switches.per_second": "messaging.connections.set_pace",
    "jobs.outbox_events.job_id": "of our own jobs",
    "jobs.outbox_events.name": "of our own jobs",
    "jobs.outbox_events.queue": "of our own jobs",
    "people.persons.ids": "counted here",
    "people.property_backfill.is_only": "the table has one row, which the migration writes",
    "people.event_definitions.event_name": "longer names are not defined: people.definitions",
    "people.property_definitions.property_name": "longer names are not defined: people.definitions",
    "tenants.idempotency_keys.key": "a header, checked in api.idempotency",
    "tenants.users.email": "written in lower case by tenants.store",
}
"""Columns whose values no model limits by the same name, and who sees to it."""


async def checks(database: Database) -> dict[str, str]:
    """The checks of one column each that hold a length, a number or a pattern; not those that list words."""
    async with database.worker() as tx:
        rows = await tx.fetch(_CHECKS)
    return {f"{row['name']}.{row['column']}": row["text"] for row in rows if "ANY" not in row["text"]}


def table_limits(text: str) -> dict[str, Any]:
    """The check in the words of msgspec.Meta."""
    found: dict[str, Any] = {}
    for length, _, operator, number in _BOUND.findall(text):
        least, most = ("min_length", "max_length") if length else ("ge", "le")
        found[most if operator == "<=" else least] = int(number) + (operator == ">")
    if pattern := _PATTERN.search(text):
        found["pattern"] = pattern[1]
    return found


def model_limits(struct: type[msgspec.Struct], name: str) -> dict[str, Any]:
    kind = msgspec.inspect.type_info(struct)
    assert isinstance(kind, msgspec.inspect.StructType)
    field = next(field for field in kind.fields if field.name == name)
    parts = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
    found: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, msgspec.inspect.Metadata):  # with a description
            part = part.type
        for limit in ("min_length", "max_length", "ge", "le", "pattern"):
            if (value := getattr(part, limit, None)) is not None:
                found[limit] = value
    return found


async def test_every_limit_of_a_table_has_a_model_or_a_reason(database: Database) -> None:
    assert set(await checks(database)) == WRITERS.keys() | CHECKED_ELSEWHERE.keys()


@pytest.mark.parametrize("column", sorted(WRITERS))
async def test_a_model_takes_nothing_that_its_table_refuses(database: Database, column: str) -> None:
    table = table_limits((await checks(database))[column])
    assert table, "the check was understood"
    for struct in WRITERS[column]:
        model = model_limits(struct, column.rpartition(".")[2])
        for limit, value in table.items():
            assert limit in model, f"{struct.__name__} has no {limit}"
            if limit == "pattern":
                assert model[limit].removesuffix(r"(?!\n)") == value, struct.__name__
                assert not re.search(model[limit], "a\n"), f"{struct.__name__}: PostgreSQL's $ is the very end"
            elif limit in ("min_length", "ge"):
                assert model[limit] >= value, struct.__name__
            else:
                assert model[limit] <= value, struct.__name__


def test_limits_are_read_as_they_are_written() -> None:
    assert table_limits("CHECK (((length(name) >= 1) AND (length(name) <= 200)))") == {
        "min_length": 1,
        "max_length": 200,
    }
    assert table_limits("CHECK (((priority >= '-1000'::integer) AND (priority <= 1000)))") == {"ge": -1000, "le": 1000}
    assert table_limits("CHECK ((cap_count > 0))") == {"ge": 1}
    assert table_limits("CHECK ((cardinality(numbers) <= 100))") == {"max_length": 100}
    assert table_limits("CHECK ((slug ~ '^[a-z]$'::text))") == {"pattern": "^[a-z]$"}
