"""Numbers and addresses: what is read, repaired and refused; and the short ways equal the libraries."""

from __future__ import annotations

import random

import phonenumbers
import pytest

from handbill.contacts import emails, phone_plans, phones

NUMBERS = [
    # as written, region, E.164 or None, what is said about it
    ("+55 11 98765-4321", None, "+5511987654321", ""),
    ("(11) 98765-4321", "BR", "+5511987654321", ""),
    ("5511987654321", "BR", "+5511987654321", ""),
    ("5511987654321", None, "+5511987654321", phones.REPAIRED_PLUS),
    ("+55 11 8765-4321", None, "+5511987654321", phones.REPAIRED_VARIANT),
    ("(11) 8765-4321", "BR", "+5511987654321", phones.REPAIRED_VARIANT),
    ("+55 11 3765-4321", None, "+551137654321", ""),  # a landline has no ninth digit
    ("+52 1 55 1234 5678", None, "+525512345678", phones.REPAIRED_VARIANT),
    ("044 55 1234 5678", "MX", "+525512345678", phones.REPAIRED_VARIANT),
    ("011 15-2345-6789", "AR", "+5491123456789", ""),
    ("+54 9 11 2345-6789", None, "+5491123456789", ""),
    ("4.41E+11", "GB", None, phones.SCIENTIFIC),
    ("4,47911E+11", "GB", None, phones.SCIENTIFIC),
    ("4.47911123456E+11", "GB", "+447911123456", phones.REPAIRED_EXCEL),
    ("447911123456.0", "GB", "+447911123456", phones.REPAIRED_EXCEL),
    ("7911123456", "GB", "+447911123456", ""),
    ("612345678", "IT", "+390612345678", phones.REPAIRED_ZERO),
    ("'+447911123456", None, "+447911123456", ""),
    ('="07911123456"', "GB", "+447911123456", phones.REPAIRED_EXCEL),
    ("00447911123456", None, "+447911123456", ""),
    ("005511987654321", "BR", "+5511987654321", ""),
    ("０７９１１１２３４５６", "GB", "+447911123456", ""),
    ("whatsapp: 07911123456", "GB", "+447911123456", ""),
    ("+44 7911 123456 ext 5", None, "+447911123456", phones.REPAIRED_EXTENSION),
    ("07911 123456 / 07911 123457", "GB", None, phones.SEVERAL),
    ("2079460958", None, None, phones.NO_COUNTRY),
    ("07911 123456 (WhatsApp)", "GB", "+447911123456", ""),
    ("07911 123456 Ann", "GB", "+447911123456", ""),
    ("+44 (0)7911 123456 - mobile", None, "+447911123456", ""),
    ("1-800-FLOWERS", "US", "+18003569377", ""),
    ("07911 123456 room 5", "GB", None, phones.INVALID),
    ("12345", "GB", None, phones.DIGITS_MISSING),
    ("+999 12345678", None, None, phones.INVALID),
    ("call me", "GB", None, phones.INVALID),
    ("  ", "GB", None, phones.MISSING),
]


@pytest.mark.parametrize(("text", "region", "expected", "note"), NUMBERS)
def test_what_people_and_spreadsheets_write(text: str, region: str | None, expected: str | None, note: str) -> None:
    assert phones.normalise(text, region) == (expected, note)


def test_the_short_way_is_the_librarys_way() -> None:
    """Numbers of every plan, right ones and near misses, in several spellings and from several places."""
    assert mismatches(random.Random(11), 40_000) == []


def mismatches(dice: random.Random, count: int) -> list[tuple[str, str | None]]:
    wrong, taken = [], 0
    regions = sorted(phonenumbers.SUPPORTED_REGIONS)
    for _ in range(count):
        region = dice.choice(regions)
        text = spelled(dice, region)
        home = dice.choice((region, region, region, None, dice.choice(regions)))
        found = phone_plans.quick(text, home)
        if found is not None:
            taken += 1
            if found != phone_plans.library(text, home):
                wrong.append((text, home))
    assert taken > count / 4  # or the comparison says nothing
    return wrong


def spelled(dice: random.Random, region: str) -> str:
    kind = dice.choice((phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE))
    number = phonenumbers.example_number_for_type(region, kind) or phonenumbers.example_number("US")
    assert number is not None
    digits = list(phonenumbers.national_significant_number(number))
    for _ in range(dice.randrange(4)):
        digits[dice.randrange(len(digits))] = str(dice.randrange(10))
    if dice.random() < 0.1:
        digits.append("1")
    if dice.random() < 0.1:
        digits.pop()
    code = str(number.country_code)
    plain = "".join(digits)
    shape = dice.choice(("+{c}{n}", "+{c} {n}", "+{c} ({a}) {b}", "{n}", "0{n}", "{c}{n}", "({a}) {b}", "00{c}{n}"))
    return shape.format(c=code, n=plain, a=plain[:2], b=f"{plain[2:5]}-{plain[5:]}")


def test_whatsapps_forms_lead_to_one_address() -> None:
    assert phones.whatsapp("+541123456789") == phones.whatsapp("+5491123456789") == "+5491123456789"
    assert phones.from_whatsapp("5215512345678") == phones.from_whatsapp("525512345678") == "+525512345678"
    assert phones.from_whatsapp("551187654321") == phones.from_whatsapp("5511987654321") == "+5511987654321"
    for number in ("+5511987654321", "+525512345678", "+5491123456789", "+541123456789", "+447911123456"):
        assert {phones.from_whatsapp(form[1:]) for form in phones.forms(number)} == {phones.whatsapp(number)}


ADDRESSES = [
    ("Ann@Example.COM", "ann@example.com", ""),
    (" Ann <ann@x.org>; ", "ann@x.org", ""),
    ("mailto:ann@x.org", "ann@x.org", ""),
    ("ann\u200b@x.org", "ann@x.org", ""),
    ("ü@bücher.example.de", "ü@bücher.example.de", ""),
    ("a@x.org, b@x.org", None, emails.SEVERAL),
    ("ann at x.org", None, emails.INVALID),
    ("ann@localhost", None, emails.INVALID),
    ("a..b@x.org", None, emails.INVALID),
    ("''", None, emails.MISSING),
]


@pytest.mark.parametrize(("text", "expected", "note"), ADDRESSES)
def test_addresses(text: str, expected: str | None, note: str) -> None:
    assert emails.normalise(text) == (expected, note)


def test_the_short_way_for_addresses_is_the_librarys_way() -> None:
    dice = random.Random(3)
    taken = 0
    for _ in range(12_000):
        text = address(dice)
        if emails.quick(text):
            taken += 1
            assert emails.library(text) == text
    assert taken > 1_000  # or the comparison says nothing


def address(dice: random.Random) -> str:
    letters = "abcxyz019" + "._-+" * 2
    local = "".join(dice.choice(letters) for _ in range(dice.randrange(1, 12))) * dice.choice((1, 1, 1, 8))
    labels = ["".join(dice.choice("abc09-") for _ in range(dice.randrange(1, 7))) for _ in range(dice.randrange(1, 4))]
    return f"{local}@{'.'.join(labels)}.{dice.choice(('com', 'org', 'test', 'local', 'c', 'museum', 'arpa', 'onion'))}"
