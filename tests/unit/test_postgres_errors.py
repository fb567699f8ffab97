"""How PostgreSQL's refusals are told apart."""

from __future__ import annotations

import asyncpg
import pytest

from handbill.infra.postgres import errors


def test_every_state_of_the_tables_is_an_sqlstate() -> None:
    states = {*errors._BUSY_STATES, *errors._STOPPED_STATES, *errors._AWAY_STATES, *errors._LOGIN_STATES}
    for state in states | errors._BY_STATE.keys():
        assert len(state) == 5
        assert state.isalnum()


@pytest.mark.parametrize("state", errors._BUSY_STATES)
def test_every_busy_state_has_words_for_the_caller(state: str) -> None:
    refusal = asyncpg.PostgresError.new({"C": state, "M": "no"})
    error = errors.translated(refusal, "read_rows")
    assert isinstance(error, errors.PostgresBusy | errors.PostgresStopped)
    assert "read_rows" in str(error)
