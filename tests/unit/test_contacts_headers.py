"""Columns are known by their names in nine languages, whatever their case, accents and signs."""

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.contacts import mapping
from handbill.contacts.header_words import TARGETS, WORDS, fold

FILES: dict[str, list[str]] = {
    "en": ["First Name", "Last Name", "Phone No.", "E-mail", "Language"],
    "de": ["Vorname", "Name", "Handynummer", "E-Mail-Adresse", "Sprache", "Einwilligung"],
    "es": ["Nombre", "Apellidos", "Teléfono móvil", "Correo electrónico", "Idioma", "Consentimiento"],
    "fr": ["Prénom", "Nom", "Téléphone portable", "Adresse e-mail", "Langue", "Consentement"],
    "pt": ["Nome", "Sobrenome", "Telemóvel", "E-mail", "Idioma", "Consentimento"],
    "vi": ["Tên", "Họ", "Số điện thoại", "Địa chỉ email", "Ngôn ngữ", "Đồng ý"],
    "ne": ["नाम", "थर", "मोबाइल नम्बर", "इमेल", "भाषा", "सहमति"],
    "hi": ["पहला नाम", "उपनाम", "मोबाइल नंबर", "ईमेल", "भाषा", "सहमति"],
    "id": ["Nama Depan", "Nama Belakang", "No. HP", "Alamat Email", "Bahasa", "Persetujuan"],
}
ORDER = ["first_name", "last_name", "phone", "email", "locale", "consent"]


def targets(names: list[str]) -> list[str | None]:
    return [column.target for column in mapping.propose(names, [["x"] * len(names)], None)]


@pytest.mark.parametrize("language", FILES)
@pytest.mark.parametrize("shape", [str, str.upper, str.lower, lambda name: f"  {name}: "])
def test_a_header_is_recognised(language: str, shape: type[str]) -> None:
    names = [shape(name) for name in FILES[language]]
    assert targets(names) == ORDER[: len(names)]
    assert mapping.is_header(names, [["x"] * len(names)])
    assert targets([unicodedata.normalize("NFD", name) for name in names]) == ORDER[: len(names)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Name", "Telefon"], ["name", "phone"]),
        (["Nombre", "Celular"], ["name", "phone"]),
        (["Full name", "First name"], ["name", "first_name"]),
        (["Full name", "Surname"], ["name", "last_name"]),
        (["Name", "First name", "Last name"], ["name", "first_name", "last_name"]),
        (["Họ và tên", "SĐT"], ["name", "phone"]),
        (["पूरा नाम", "फ़ोन नंबर"], ["name", "phone"]),
        (["Phone", "Mobile"], ["phone", "attribute:Mobile"]),
        (["Kunden-Nr.", "Rufnummer"], ["external_id", "phone"]),
        (["Mã khách hàng", "Di động"], ["external_id", "phone"]),
    ],
)
def test_a_name_alone_and_its_parts(names: list[str], expected: list[str]) -> None:
    assert targets(names) == expected


def test_no_word_means_two_things() -> None:
    words = Counter((target, fold(word)) for target, each in WORDS.items() for word in each)
    assert [word for word, count in Counter(word for _, word in words).items() if count > 1] == []
    assert all(TARGETS)


@given(st.text(max_size=600))
def test_folding_twice_changes_nothing(name: str) -> None:
    assert fold(fold(name)) == fold(name)


@pytest.mark.parametrize("region", ["DE", "NP", "NO", None])
def test_a_column_of_dates_is_none_of_telephones(region: str | None) -> None:
    rows = [["Ann", f"{day:02}.04.1990"] for day in range(1, 20)]
    columns = mapping.propose(["Name", "Seit"], rows, region)
    assert (columns[1].target, columns[1].kind) == ("attribute:Seit", "date")
