"""What the ClickHouse face makes of a request's words and body."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.infra.embedded.face import statements
from handbill.infra.embedded.face.faults import Fault, from_engine, midstream


@given(st.binary(max_size=200), st.sampled_from(["Native", "RowBinary", "JSONEachRow"]))
def test_rows_after_the_format_clause_stay_exactly_as_they_were_sent(data: bytes, name: str) -> None:
    found = statements.split(b"INSERT INTO `a`.`b` (`x`, `y`) FORMAT %s\n%s" % (name.encode(), data), "TabSeparated")
    assert (found.data, found.format) == (data, name)
    assert found.sql.rstrip() == b"INSERT INTO `a`.`b` (`x`, `y`)"
    assert found.writes
    assert not found.streams


@pytest.mark.parametrize(
    "text",
    [
        b"insert into t select 'x format Native y'",
        b"INSERT INTO t VALUES ('format Native', 1)",
        b"/* format CSV */ insert into t with 1 as format select format x from u",
        b"insert into t (format) values (1)",
    ],
)
def test_an_insert_that_brings_no_rows_is_left_alone(text: bytes) -> None:
    found = statements.split(text, "TabSeparated")
    assert found.data is None
    assert found.sql == text
    assert found.writes


def test_settings_and_comments_may_stand_before_the_format() -> None:
    text = b"-- a comment\ninsert into t (`format`, a) settings async_insert = 1 Format CSV  \r\n1,2\n"
    found = statements.split(text, "Native")
    assert found.data == b"1,2\n"
    assert found.sql.endswith(b"async_insert = 1 ")
    assert b" ".join(found.insert_from("/f'").split()) == (
        b"-- a comment insert into t (`format`, a) FROM INFILE '/f\\'' settings async_insert = 1 FORMAT CSV"
    )


def test_a_column_called_settings_is_no_clause() -> None:
    found = statements.split(b"insert into t (settings, a) format CSV\n1,2\n", "Native")
    assert found.insert_from("/f") == b"insert into t (settings, a)  FROM INFILE '/f'  FORMAT CSV"


@pytest.mark.parametrize(
    ("text", "name", "streams"),
    [
        (b"select 1\n FORMAT Native", "Native", True),
        (b"select 1 format JSON;", "JSON", False),
        (b"with 1 as x select x format csv settings max_threads = 1", "csv", True),
        (b"select 'FORMAT CSV'", "TabSeparated", True),
        (b"(select 1) union all (select 2)", "TabSeparated", True),
        (b"show tables", "TabSeparated", False),
        (b"create table t (a Int8) engine = Memory", "TabSeparated", False),
    ],
)
def test_the_last_format_clause_names_the_result(text: bytes, name: str, streams: bool) -> None:
    found = statements.split(text, "TabSeparated")
    assert (found.format, found.streams, found.data, found.writes) == (name, streams, None, False)


def test_words_of_the_url_are_sorted() -> None:
    pairs = [
        ("query", "select {x:UInt8}"),
        ("param_x", "5"),
        ("max_threads", "2"),
        ("database", "d"),
        ("session_id", "s"),
        ("enable_http_compression", "1"),
    ]
    ask = statements.read(pairs, b"+ 1", headers_format="JSON", read_only=True)
    assert ask.statement.sql == b"select {x:UInt8}\n+ 1"
    assert (ask.params, ask.settings, ask.database) == ({"x": "5"}, {"max_threads": "2"}, "d")
    assert (ask.compressed, ask.read_only, ask.statement.format) == (True, True, "JSON")


@pytest.mark.parametrize("pairs", [[("a b", "1")], [("param_x;drop", "1")], [("default_format", "DataFrame")]])
def test_what_could_slip_into_a_statement_is_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(Fault):
        statements.read(pairs, b"select 1", headers_format="", read_only=False)


@given(st.text(max_size=30))
def test_quoted_values_cannot_end_early(value: str) -> None:
    inside = statements.quote(value)[1:-1]
    assert "'" not in inside.replace("\\\\", "").replace("\\'", "")
    assert "`" not in statements.identifier(value)[1:-1].replace("\\\\", "").replace("\\`", "")


def test_the_code_is_found_behind_the_wrappers_of_the_driver() -> None:
    fault = from_engine(RuntimeError("Streaming query failed: Code: 60. DB::Exception: no table. (UNKNOWN_TABLE)"))
    assert (fault.code, fault.status) == (60, 404)
    assert fault.text.startswith("Code: 60.")
    assert from_engine(RuntimeError("what?")).status == 500
    assert b"Code: 60." in midstream(fault, "tag")
