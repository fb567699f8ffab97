"""Moments of a caller: every one that is accepted is stored and read as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.moments import EARLIEST, LATEST, moment_faults

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES))
def test_an_accepted_moment_is_the_same_in_utc(moment: datetime) -> None:
    if not moment_faults("at", moment):
        assert EARLIEST <= moment.astimezone(UTC) <= LATEST


@pytest.mark.parametrize(
    "text",
    ["9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+00:00",
     "0001-01-01T00:00:00+05:00", "1969-12-31T23:59:59+00:00", "2026-04-01T00:00:00"],
)  # fmt: skip
def test_a_moment_that_cannot_be_kept_is_a_fault_of_its_field(text: str) -> None:
    assert [fault.field for fault in moment_faults("at", datetime.fromisoformat(text))] == ["at"]


@pytest.mark.parametrize(
    "text", ["1970-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00", "2026-04-01T00:00:00+02:00"]
)
def test_ordinary_moments_and_the_usual_last_one_are_accepted(text: str) -> None:
    assert moment_faults("at", datetime.fromisoformat(text)) == []
