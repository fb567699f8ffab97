"""docs/queues.md says what the code says: every queue, every job, every field that another program may send."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from handbill.adstats.model import Level, SyncJob
from handbill.banners.tasks import RecordPayload, RollupPayload, SyncPayload
from handbill.jobs.defaults import TABLE
from handbill.messaging.singles.model import NewMessage
from handbill.wiring.queues import CATALOGUE

PAGE = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([a-z_-]+)`$\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
JOB = re.compile(r"^\| `([a-z_.-]+)` \| (yes|no) \| (.*?) ?\| (.*?) \|$", re.MULTILINE)
FIELDS: dict[str, type[msgspec.Struct]] = {
    "send": NewMessage, "banner.record_*": RecordPayload, "stats-sync": SyncJob,
}  # fmt: skip


def _jobs() -> dict[str, dict[str, tuple[str, str, str]]]:
    return {
        queue: {name: (yours, payload, text) for name, yours, payload, text in JOB.findall(section)}
        for queue, section in SECTIONS.items()
    }


def test_the_page_has_every_queue_and_every_job_with_its_meaning() -> None:
    found = {queue: {name: text for name, (_, _, text) in jobs.items()} for queue, jobs in _jobs().items()}
    assert found == CATALOGUE
    assert set(found) == set(TABLE)


def test_the_page_says_which_jobs_other_programs_may_add() -> None:
    yours = {name for jobs in _jobs().values() for name, (may, _, _) in jobs.items() if may == "yes"}
    banners = set(CATALOGUE["banners"])
    assert yours == {"send", "stats-sync"} | banners


@pytest.mark.parametrize("job", FIELDS)
def test_the_page_has_every_field_that_another_program_may_send(job: str) -> None:
    (table,) = re.findall(
        rf"^\| field of `{re.escape(job)}` \| meaning \|\n(.*?)(?=\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    named = [name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(FIELDS[job].__struct_fields__)


def test_the_small_payloads_are_whole() -> None:
    jobs = _jobs()["banners"]
    for name, payload in (("banner.sync_schedule_status", SyncPayload), ("banner.rollup_stats", RollupPayload)):
        assert sorted(re.findall(r"`(\w+)`", jobs[name][1])) == sorted(payload.__struct_fields__)
    assert all(f"`{level}`" in PAGE for level in get_args(Level))
