"""A typo in a national number never makes a number of another country, and no repair leaves the region."""

from __future__ import annotations

import random
import re

import phonenumbers
import pytest
from phonenumbers.phonemetadata import PhoneMetadata

from handbill.contacts import phone_plans, phones
from handbill.contacts.reasons import REASONS

TRUNK = {"IN": "0", "NP": "0", "DE": "0", "US": "1", "BR": "0", "FR": "0", "VN": "0", "ID": "0", "MX": "", "GB": "0"}
"""The regions, and what is dialled there before a national number."""
TYPOS_PER_REGION = 1_500


def random_mobile(source: random.Random, region: str) -> str:
    """A valid mobile number of the region, without its trunk prefix."""
    data = PhoneMetadata.metadata_for_region(region, None)
    assert data is not None
    assert data.country_code is not None
    assert data.mobile is not None
    pattern = re.compile(data.mobile.national_number_pattern or "")
    while True:
        digits = "".join(source.choices("0123456789", k=source.choice(data.mobile.possible_length)))
        if pattern.fullmatch(digits) and phonenumbers.is_valid_number_for_region(
            phonenumbers.PhoneNumber(country_code=data.country_code, national_number=int(digits)), region
        ):
            return digits


def misspell(source: random.Random, text: str) -> str:
    """One digit dropped, doubled, swapped with its neighbour, or added."""
    at = source.randrange(len(text) - 1)
    return source.choice(
        (
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
            text[:at] + source.choice("0123456789") + text[at:],
        )
    )


def is_international(text: str, region: str) -> bool:
    """What begins with 00, or with what the region dials before a country code, means what it says."""
    return text.startswith(("00", "011") if region == "US" else "00")


@pytest.mark.parametrize("region", TRUNK)
def test_a_typo_never_becomes_a_number_of_another_country(region: str) -> None:
    source = random.Random(f"typos of {region}")
    code = phonenumbers.country_code_for_region(region)
    tried = 0
    for _ in range(TYPOS_PER_REGION):
        number = random_mobile(source, region)
        text = misspell(source, source.choice((number, TRUNK[region] + number, f"{code}{number}")))
        if is_international(text, region):
            continue
        tried += 1
        result, note = phones.normalise(text, region)
        assert result is None or phonenumbers.parse(result).country_code == code, (text, result)
        if result is not None and note:
            assert phonenumbers.is_valid_number_for_region(phonenumbers.parse(result), region), (text, result, note)
    assert tried > 0.8 * TYPOS_PER_REGION


@pytest.mark.parametrize("region", TRUNK)
def test_a_right_number_is_read_in_every_spelling(region: str) -> None:
    source = random.Random(f"spellings of {region}")
    code = phonenumbers.country_code_for_region(region)
    for _ in range(300):
        number = random_mobile(source, region)
        half = len(number) // 2
        international = (f"+{code}{number}", f"00{code} {number}", f"+{code} {number[:half]}-{number[half:]}")
        national = (number, TRUNK[region] + number, f"{number[:half]} {number[half:]}")
        for text, known_region in [(one, None) for one in international] + [(one, region) for one in national]:
            assert phones.normalise(text, known_region) == (f"+{code}{number}", ""), text
        assert phones.normalise(f"+{code} {number} ext. 12", region)[0] == f"+{code}{number}"


@pytest.mark.parametrize(("region", "other"), [("IN", "GB"), ("NP", "DE"), ("US", "VN"), ("BR", "FR"), ("GB", "NP")])
def test_a_lost_plus_of_another_country_is_refused_and_suggested(region: str, other: str) -> None:
    source = random.Random(f"{other} in {region}")
    code = phonenumbers.country_code_for_region(other)
    suggested = 0
    for _ in range(200):
        text = f"{code}{random_mobile(source, other)}"
        result, reason = phones.normalise(text, region)
        if reason == phones.OTHER_COUNTRY:
            assert result is None
            assert phones.suggest(text, region) == f"+{text}"
            assert phones.normalise(text, None) == (f"+{text}", phones.REPAIRED_PLUS)
            suggested += 1
    assert suggested > 100


@pytest.mark.parametrize(("text", "region"), [("98450 12345", "IN"), ("98450", "IN"), ("+98450", "IN"), ("x", None)])
def test_nothing_is_suggested_for_other_reasons(text: str, region: str | None) -> None:
    assert phones.suggest(text, region) is None


def test_no_text_without_an_exit_code_is_read_as_a_number_of_another_country() -> None:
    """Digits, signs and letters in every region of the world: a result is of the region, else there is a reason."""
    source = random.Random("texts")
    regions = sorted(phonenumbers.SUPPORTED_REGIONS)
    letters = "0123456789" * 4 + " -/().,;x#'\"=eE٣९abDw\u00a0&|extor"
    read = 0
    for number in range(30_000):
        region = source.choice(regions)
        text = "".join(source.choices(letters if number % 2 else "0123456789", k=source.randrange(1, 18)))
        result, note = phones.normalise(text, region)
        if result is None or note:
            assert note in REASONS, (text, region, note)
        digits = phonenumbers.normalize_digits_only(text)
        exit_code = phone_plans.exit_code(region)
        if result is not None and not digits.startswith(("00", exit_code) if exit_code else "00"):
            read += 1
            code = phonenumbers.country_code_for_region(region)
            assert phonenumbers.parse(result).country_code == code, (text, region, result)
    assert read > 500  # or the comparison says nothing
