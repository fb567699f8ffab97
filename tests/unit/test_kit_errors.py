"""The error tree and the crash points."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from handbill.api.problems import problem
from handbill.events.dialects.canon import Dialect
from handbill.events.dialects.replies import refused
from handbill.infra.clickhouse.client import ClickHouseAway, ClickHouseBusy
from handbill.infra.postgres.errors import PostgresBusy
from handbill.infra.redis import RedisBusy
from handbill.kit import crashpoints, errors
from handbill.kit.codes import CODES
from handbill.kit.errors import Broken, Busy, Fault, HandbillError, Invalid


def classes(root: type[HandbillError]) -> Iterator[type[HandbillError]]:
    yield root
    for child in root.__subclasses__():
        yield from classes(child)


def test_every_class_has_a_status_a_title_and_a_documented_code() -> None:
    for kind in classes(HandbillError):
        if kind.__module__ != errors.__name__:
            continue
        assert 400 <= kind.status < 600
        assert kind.title
        assert kind.code in CODES, kind


def test_a_place_may_name_its_own_code_without_changing_its_class() -> None:
    plain, named = Invalid("no"), Invalid("no", code="SPECIAL", faults=[Fault("name", "too long")])
    assert (plain.code, named.code, Invalid.code) == ("INVALID", "SPECIAL", "INVALID")
    assert named.faults == (Fault("name", "too long"),)
    assert str(named) == named.detail == "no"
    assert Busy("full", retry_after=2).retry_after == 2


@pytest.mark.parametrize(
    "error",
    [
        RedisBusy("50000 commands wait for Redis at 10.1.2.3:6379"),
        PostgresBusy("PostgreSQL: too slow (claim_messages)"),
        ClickHouseBusy("ClickHouse is busy (code 241); memory limit exceeded: would use 5.20 GiB", 241),
        ClickHouseAway("ClickHouse does not answer at 10.1.2.3:8123"),
        Broken("PostgreSQL refused the login of role handbill_app", code="POSTGRES_LOGIN"),
        Broken("a file of the installation is damaged: /var/lib/handbill/x"),
    ],
)
def test_a_caller_reads_only_the_code_of_the_installations_own_trouble(error: HandbillError) -> None:
    reply = problem(error, "r")
    assert (reply.code, reply.detail) == (error.code, CODES[error.code])
    hidden = ("10.1.2.3", "5.20", "50000", "claim_messages", "handbill_app", "/var/")
    for dialect in Dialect:
        body = refused(dialect, error).body.decode()
        assert not any(word in body for word in hidden)
    assert problem(Invalid("the name is too long"), "r").detail == "the name is too long"


def test_codes_are_words_with_one_line_each() -> None:
    for code, line in CODES.items():
        assert code.replace("_", "").isalnum()
        assert code.isupper()
        assert line.strip().endswith(".")


def test_a_crash_point_is_silent_until_somebody_listens() -> None:
    seen: list[str] = []
    crashpoints.reached("before:anything")
    crashpoints.install(seen.append)
    try:
        crashpoints.reached("before:pg:commit")
    finally:
        crashpoints.install(None)
    crashpoints.reached("after:pg:commit")
    assert seen == ["before:pg:commit"]


def test_busy_is_told_apart_from_broken() -> None:
    with pytest.raises(HandbillError) as raised:
        raise Busy("away")
    assert raised.value.status == 503
    assert not isinstance(raised.value, errors.Broken)
