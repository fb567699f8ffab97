"""Settings: where each value comes from, and what is said when one is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.infra.journal.lanes import Lanes
from handbill.kit.errors import Invalid
from handbill.settings import Settings, load, replace
from handbill.settings.aliases import ALIASES
from handbill.settings.environment import current, default_home
from handbill.settings.fields import all_fields, describe
from handbill.settings.pages import markdown, mask_url, rows
from handbill.settings.reader import read


def test_nothing_set_gives_the_defaults() -> None:
    assert load({}) == Settings()
    assert load({"PATH": "/bin", "HANDBILL_API__PORT": "  "}) == Settings()


def test_a_value_lands_in_its_section() -> None:
    settings = load(
        {
            "HANDBILL_HOME": "/srv/hb",
            "HANDBILL_API__PORT": "9000",
            "HANDBILL_API__TRUSTED_PROXIES": "10.0.0.0/8, 192.168.0.0/16",
            "HANDBILL_API__SECURE_COOKIES": "off",
            "HANDBILL_LOG__LEVEL": "DEBUG",
            "HANDBILL_TENANTS__KEY_CACHE_SECONDS": "0.5",
        }
    )
    assert settings.home == "/srv/hb"
    assert settings.api.port == 9000
    assert settings.api.trusted_proxies == ("10.0.0.0/8", "192.168.0.0/16")
    assert settings.api.secure_cookies is False
    assert settings.log.level == "debug"
    assert settings.tenants.key_cache_seconds == 0.5


def test_an_alias_works_and_our_own_name_wins() -> None:
    loaded = read({"REDIS_URL": "redis://a", "DATABASE_URL": "postgresql://a", "HANDBILL_REDIS__URL": "redis://b"})
    assert loaded.settings.redis.url == "redis://b"
    assert loaded.settings.postgres.url == "postgresql://a"
    assert loaded.sources == {"redis.url": "HANDBILL_REDIS__URL", "postgres.url": "DATABASE_URL"}


def test_the_old_service_types_choose_chores() -> None:
    assert load({"SERVICE_TYPE": "OUTBOX"}).worker.only == ("relay",)
    assert load({"SERVICE_TYPE": "OUTBOX, SCHEDULER"}).worker.only == ("relay", "cron")
    with pytest.raises(Invalid, match=r"SERVICE_TYPE must be any of relay, .*\(or OUTBOX, CONSUMER"):
        load({"SERVICE_TYPE": "WEB"})


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        load({"HANDBILL_API__PROT": "1", "HANDBILL_API__PORT": "70000", "WORKER_PORT": "x", "HANDBILL_ZZZ": "1"})
    faults = {fault.field: fault.reason for fault in caught.value.faults}
    assert faults["HANDBILL_API__PROT"] == "is no setting: did you mean HANDBILL_API__PORT?"
    assert faults["HANDBILL_API__PORT"] == "must be a whole number from 1 to 65535 (it is '70000')"
    assert faults["WORKER_PORT"] == "must be a whole number from 0 to 65535 (it is 'x')"
    assert "handbill settings" in faults["HANDBILL_ZZZ"]
    assert caught.value.code == "SETTINGS_INVALID"


def test_one_mistake_is_one_line() -> None:
    with pytest.raises(Invalid) as caught:
        load({"HANDBILL_API__PROT": "1"})
    wanted = "HANDBILL_API__PROT is no setting: did you mean HANDBILL_API__PORT? Nothing was started."
    assert caught.value.detail == wanted


def test_an_address_of_another_kind_is_refused_without_repeating_it() -> None:
    with pytest.raises(Invalid) as caught:
        load({"REDIS_URL": "hunter2.example:6379", "HANDBILL_POSTGRES__URL": "mysql://u:hunter2@h/d"})
    faults = {fault.field: fault.reason for fault in caught.value.faults}
    assert faults["REDIS_URL"] == "must be an address that begins with redis://, rediss:// or unix://"
    assert faults["HANDBILL_POSTGRES__URL"] == "must be an address that begins with postgresql://"
    with pytest.raises(Invalid, match="CLICKHOUSE_URL must be an address with a host and"):
        load({"CLICKHOUSE_URL": "http://host:hunter2/"})
    assert load({"DATABASE_URL": "postgresql://u@one:5432,two:5432/d"}).postgres.url


@pytest.mark.parametrize("name", ["HANDBILL_EVENTS__LANES", "HANDBILL_EVENTS__OVERFLOW_LANES"])
def test_every_number_of_lanes_that_the_settings_allow_is_one_that_the_journal_takes(name: str) -> None:
    events = load({name: "100"}).events
    assert len(Lanes(events.lanes, events.overflow_lanes).all()) >= 100
    with pytest.raises(Invalid):
        load({name: "101"})


def test_names_of_the_build_are_not_ours() -> None:
    assert load({"HANDBILL_CI_HAS": "cc"}) == Settings()


@given(st.sampled_from(all_fields()), st.data())
def test_one_letter_missing_is_always_noticed_and_put_right(field: object, data: st.DataObject) -> None:
    name = field.variable  # type: ignore[attr-defined]
    at = data.draw(st.integers(len("HANDBILL_"), len(name) - 1))
    wrong = name[:at] + name[at + 1 :]
    if wrong in {other.variable for other in all_fields()} or wrong.startswith(("HANDBILL_CI_", "HANDBILL_TEST_")):
        return
    with pytest.raises(Invalid) as caught:
        load({wrong: "1"})
    assert "did you mean HANDBILL_" in caught.value.faults[0].reason


def test_every_setting_is_documented_and_every_alias_has_a_target() -> None:
    fields = {field.path: field for field in all_fields()}
    page = markdown()
    for field in fields.values():
        assert field.doc.endswith("."), field.path
        assert "\n" not in field.doc
        assert f"`{field.variable}`" in page
        assert describe(field.type)
    assert {alias.path for alias in ALIASES} <= set(fields)
    sections = {name for name in Settings.__struct_fields__ if isinstance(getattr(Settings(), name), msgspec.Struct)}
    assert {path.split(".")[0] for path in fields if "." in path} == sections


def test_a_default_is_a_valid_value_of_its_own_field() -> None:
    for field in all_fields():
        assert msgspec.convert(msgspec.to_builtins(field.default), field.type) == field.default


def test_secrets_are_masked() -> None:
    loaded = read(
        {
            "DATABASE_URL": "postgresql://me:hunter2@db:5432/x?password=hunter2",
            "HANDBILL_REDIS__URL": "redis://:hunter2@cache/0",
            "HANDBILL_TENANTS__SEAL_KEY": "hunter2",
        }
    )
    shown = {row.variable: row for row in rows(loaded)}
    assert "hunter2" not in str(shown)
    assert shown["HANDBILL_POSTGRES__URL"].value == "postgresql://me:***@db:5432/x?***"
    assert shown["HANDBILL_POSTGRES__URL"].source == "DATABASE_URL"
    assert shown["HANDBILL_REDIS__URL"].value == "redis://:***@cache/0"
    assert shown["HANDBILL_TENANTS__SEAL_KEY"].value == "***"
    assert mask_url("http://u:hunter2@[::1]:80/") == "http://u:***@[::1]:80/"
    assert mask_url("hunter2") == "***"


def test_a_wrong_secret_is_not_repeated() -> None:
    field = next(field for field in all_fields() if field.mask)
    assert field.mask is not None
    assert mask_url("http://u:hunter2@host:notaport/") == "***"


def test_root_in_a_private_place_gets_a_home_that_postgresql_can_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed" / "clone"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    assert default_home(0, closed) == "/var/lib/handbill"
    assert default_home(1000, closed) == str(closed / ".handbill")
    assert default_home(0, Path("/")) == "/.handbill"
    assert read({}, home="/somewhere").settings.home == "/somewhere"
    assert read({"HANDBILL_HOME": "/mine"}, home="/somewhere").settings.home == "/mine"


def test_the_home_is_found_from_every_directory_below_it(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert default_home(os.geteuid(), below) == str(below / ".handbill") or os.geteuid() == 0
    home = tmp_path / ".handbill"
    home.mkdir()
    assert default_home(os.geteuid(), below) == default_home(os.geteuid(), tmp_path) == str(home)
    assert default_home(os.geteuid() + 1, below) == str(below / ".handbill"), "another user's is not taken"
    nearer = tmp_path / "a" / ".handbill"
    nearer.mkdir()
    assert default_home(os.geteuid(), below) == str(nearer)


def test_a_relative_home_is_refused_with_the_path_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANDBILL_HOME", "data/handbill")
    with pytest.raises(Invalid) as refused:
        current()
    assert refused.value.faults[0].field == "HANDBILL_HOME"
    assert str(tmp_path / "data" / "handbill") in refused.value.detail


def test_replace_changes_only_what_is_named() -> None:
    changed = replace(Settings(), {"api.port": 1, "api.host": "::", "home": "x"})
    assert (changed.api.port, changed.api.host, changed.home) == (1, "::", "x")
    assert changed.redis == Settings().redis
