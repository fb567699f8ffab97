"""Inputs that once stopped a process for seconds, through the functions that the product calls on them."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from handbill.contacts import emails, header_words, phones, reasons, sources, understand, values, workbooks
from handbill.contacts.dialects import Dialect, sniff
from handbill.events.dialects.reading import decoded
from handbill.kit.bounds import EMAIL_CHARS, PHONE_CHARS
from handbill.kit.errors import Invalid, TooLarge
from handbill.people import raw
from tests.kit.growth import growth

MIB = 1 << 20
ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


# --- bodies of events


def refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(ANY, body)


@pytest.mark.parametrize("head", [b'NaN"', b'{"batch":NaN,"x":"', b'{"a":Infinity,"x":"'])
@pytest.mark.parametrize("tail", [b"", b"\\", b'"'])
def test_a_text_without_an_end_in_a_body_is_refused_in_linear_time(head: bytes, tail: bytes) -> None:
    assert growth(lambda size: head + b'\\"' * (size // 2) + tail, refused, 20 * MIB) is None


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":NaN,"b":"NaN","c":"\\"NaN\\\\"}', {"a": None, "b": "NaN", "c": '"NaN\\'}),
        (b"[-Infinity,Infinity,-1]", [None, None, -1]),
        (b'["\\\\",NaN,"a\nb"]'.replace(b"\n", b"\\n"), ["\\", None, "a\nb"]),
    ],
)
def test_numbers_that_json_lacks_are_still_null(body: bytes, value: Any) -> None:
    assert decoded(ANY, body) == value


def test_properties_with_a_text_without_an_end_have_no_members() -> None:
    assert raw.members(b"{" * 70 + b'"' + b'\\"' * 50) == {}
    assert growth(lambda size: b"{" * 70 + b'"' + b'\\"' * (size // 2), raw.members, 20 * MIB) is None


# --- cells of contact files


@pytest.mark.parametrize("unit", ["1", "1 ", "1-(", "# ", "ext 1", "a.", "\u0301\u0316"])
def test_a_long_cell_is_refused_as_a_phone_and_as_an_address(unit: str) -> None:
    cell = unit * (20_000 // len(unit))
    assert phones.normalise(cell, "BR") == (None, phones.TOO_LONG)
    assert emails.normalise(cell) == (None, emails.TOO_LONG)
    assert {phones.TOO_LONG, emails.TOO_LONG} <= reasons.REASONS.keys()


def test_the_limits_of_cells_count_what_is_left_after_trimming() -> None:
    assert phones.normalise(" " * 500 + "+5511987654321" + " " * 500, None) == ("+5511987654321", "")
    assert phones.normalise("1" * PHONE_CHARS, None) == (None, phones.INVALID)
    assert phones.normalise("1" * (PHONE_CHARS + 1), None) == (None, phones.TOO_LONG)
    assert emails.normalise(" " * 500 + "ann@x.org") == ("ann@x.org", "")
    assert emails.normalise("a" * EMAIL_CHARS) == (None, emails.INVALID)
    assert emails.normalise("a" * (EMAIL_CHARS + 1)) == (None, emails.TOO_LONG)


@pytest.mark.parametrize(
    "text", ["1" * 20_000, "1 " * 6_000, "1-(" * 900, "1-(" * 5_000, "a." * 8_000, "e\u0301\u0316" * 5_000]
)
@pytest.mark.parametrize("head", ["Nome,Obs\nAda,", "Nome\n", ""])
def test_the_proposal_for_a_file_with_a_long_cell_takes_linear_time(tmp_path: Path, head: str, text: str) -> None:
    path = tmp_path / "a.csv"

    def propose(size: int) -> None:
        path.write_text(head + text[:size] + "\n", encoding="utf-8")
        with contextlib.suppress(Invalid):  # a long line may be read as more columns than a table may have
            understand.proposal(str(path), "a.csv", sources.Bounds(), "BR")

    assert growth(lambda size: size, propose, len(text)) is None


def test_a_head_with_a_long_cell_has_the_usual_delimiter() -> None:
    assert sniff("a." * 4_000) == Dialect()
    assert sniff("name~phone\n" + "".join(f"ada~{number}\n" for number in range(50))).delimiter == "~"
    assert growth(lambda size: "a." * (size // 2), sniff, 8_000) is None


def test_accents_without_a_letter_are_refused_before_they_are_composed() -> None:
    assert values.text("a" + "\u0301\u0316" * 100_000) == (None, values.TEXT_TOO_LONG)
    assert values.text("e\u0301" * 2_000) == ("é" * 2_000, "")
    assert values.text("e\u0301" * 2_001) == (None, values.TEXT_TOO_LONG)
    assert header_words.fold("Te\u0301le\u0301phone" + "\u0301\u0316" * 100_000) == "telephone"


# --- parts of workbooks


def test_a_workbook_is_measured_in_linear_time() -> None:
    def archive(text: bytes) -> zipfile.ZipFile:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as written:
            written.writestr("xl/sharedStrings.xml", text)
        return zipfile.ZipFile(file)

    for unit in (b"v ", b"r ", b"<c r", b"&#0"):
        made = {size: archive(b"<t>" + unit * (size // len(unit))) for size in (1 << shift for shift in range(7, 17))}
        assert growth(made.__getitem__, workbooks.check, 1 << 16) is None
    with pytest.raises(TooLarge):
        workbooks.check(archive(b"<v>1<!-- 2 --></v>"))
    workbooks.check(archive(b"<a>v</a><b><!-- v --></b>"))
