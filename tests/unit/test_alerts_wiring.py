"""Who is watched and who is sent messages, from the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from handbill.kit.errors import Invalid
from handbill.settings import load
from handbill.wiring.alerts import build_senders, build_watcher, local_targets, scrape_targets

HOOK = {"HANDBILL_ALERTS__WEBHOOK_URL": "https://hooks.example.com/x"}


def test_the_processes_of_up_are_watched() -> None:
    settings = load({"HANDBILL_API__PROCESSES": "3", "HANDBILL_API__METRICS_HOST": "0.0.0.0"})
    assert [(one.job, one.url) for one in local_targets(settings)] == [
        ("handbill-api", "http://127.0.0.1:9101/metrics"),
        ("handbill-api", "http://127.0.0.1:9121/metrics"),
        ("handbill-api", "http://127.0.0.1:9131/metrics"),
        ("handbill-worker", "http://127.0.0.1:9102/metrics"),
    ]


def test_pages_of_other_machines_are_named() -> None:
    settings = load({"HANDBILL_ALERTS__SCRAPE": "handbill-api=http://10.0.0.5:9101/metrics"})
    (target,) = scrape_targets(settings)
    assert (target.job, target.instance) == ("handbill-api", "10.0.0.5:9101")
    assert scrape_targets(load({})) == local_targets(load({}))
    for wrong in ("api=http://x/metrics", "handbill-api", "handbill-api=ftp://x", "handbill-api=http://u:p@h/metrics"):
        with pytest.raises(Invalid, match="HANDBILL_ALERTS__SCRAPE"):
            scrape_targets(load({"HANDBILL_ALERTS__SCRAPE": wrong}))


def test_without_a_sender_nothing_is_watched(tmp_path: Path) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path)})
    assert build_watcher(settings, local_targets(settings), "alerts.json") is None


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"HANDBILL_API__METRICS_PORT": "0", "HANDBILL_WORKER__METRICS_PORT": "0"}, "HANDBILL_ALERTS__SCRAPE"),
        ({"HANDBILL_ALERTS__PUBLIC_URL": "https://shop:x/"}, "HANDBILL_ALERTS__PUBLIC_URL"),
        ({"HANDBILL_ALERTS__WEBHOOK_URL": "http://hooks.example.com/"}, "HANDBILL_ALERTS__WEBHOOK_INSECURE"),
        ({"HANDBILL_ALERTS__EMAIL_TO": "a@b.c", "HANDBILL_ALERTS__SMTP_HOST": "h"}, "HANDBILL_ALERTS__EMAIL_FROM"),
    ],
)
def test_what_cannot_work_names_its_setting(extra: dict[str, str], named: str, tmp_path: Path) -> None:
    settings = load({"HANDBILL_HOME": str(tmp_path), **HOOK, **extra})
    with pytest.raises(Invalid, match=named):
        build_watcher(settings, local_targets(settings), "alerts.json")


def test_both_senders() -> None:
    email = {
        "HANDBILL_ALERTS__EMAIL_TO": "a@example.com, b@example.com",
        "HANDBILL_ALERTS__EMAIL_FROM": "c@example.com",
        "HANDBILL_ALERTS__SMTP_HOST": "mail.example.com",
    }
    assert [one.name for one in build_senders(load({**HOOK, **email}))] == ["webhook", "email"]
