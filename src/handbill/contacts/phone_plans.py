"""Numbering plans: what the library says of a number, and a fast way to the same answer.

The fast path reads the same metadata as `phonenumbers` and answers only where nothing is left to interpret; whatever it
does not take goes to the library. A test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import phonenumbers
from phonenumbers import re_util
from phonenumbers.phonemetadata import PhoneMetadata

re_util.enable_pattern_cache()

_PLAIN = re.compile(r"\+?\(?\d[\d \-().]*")
_NOISE = str.maketrans("", "", " -().+")

Valid = Callable[[str], bool]


class _Plan:
    """One region's rules for reading a number, and who decides whether it is one."""

    __slots__ = ("cc", "general", "idd", "lengths", "prefix", "rule", "valid")

    def __init__(self, data: Any, valid: Valid) -> None:
        self.cc = str(data.country_code)
        self.prefix = re.compile(data.national_prefix_for_parsing) if data.national_prefix_for_parsing else None
        self.rule = bool(data.national_prefix_transform_rule)
        self.idd = re.compile(data.international_prefix) if data.international_prefix else None
        self.general = re.compile(data.general_desc.national_number_pattern or "")
        self.lengths = frozenset(data.general_desc.possible_length)
        self.valid = valid

    def without_code(self, digits: str) -> str:
        """A number too long for the plan that begins with its country code has lost its plus; "" when in doubt."""
        rest = digits[len(self.cc) :]
        if len(digits) <= max(self.lengths) or (self.prefix and (found := self.prefix.match(rest)) and found.end()):
            return ""
        return rest

    def national(self, digits: str) -> str | None:
        """The number without its trunk prefix; None where that takes more than cutting it off."""
        if self.prefix is not None and (prefix := self.prefix.match(digits)) and prefix.end():
            if self.rule or prefix.re.groups:
                return None
            rest = digits[prefix.end() :]
            if self.general.fullmatch(digits) and not self.general.fullmatch(rest):
                rest = digits
            digits = rest
        return digits if len(digits) in self.lengths and digits[0] != "0" else None  # no plan has the length 0


def quick(text: str, region: str | None) -> str | None:
    """E.164 where it is plain what is meant, else None: ask the library."""
    if not text.isascii():
        return None
    digits = text[1:] if text.startswith("+") else text
    if not digits.isdigit():
        if not _PLAIN.fullmatch(text):
            return None
        digits = text.translate(_NOISE)
    if text[0] == "+":
        if not 8 <= len(digits) <= 15:
            return None
        plan = _by_code(digits[:1]) or _by_code(digits[:2]) or _by_code(digits[:3])
        digits = digits[len(plan.cc) :] if plan is not None else ""
    else:
        if region is None or not 6 <= len(digits) <= 15:
            return None
        plan = _by_region(region)
        if plan is None or (plan.idd is not None and plan.idd.match(digits)):
            return None
        if digits.startswith(plan.cc):
            digits = plan.without_code(digits)
    if plan is None or (number := plan.national(digits)) is None or not plan.valid(number):
        return None
    return f"+{plan.cc}{number}"


@cache
def _by_code(code: str) -> _Plan | None:
    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code))
    return _by_region(regions[0]) if regions and regions[0] != "001" else None


@cache
def _by_region(region: str) -> _Plan | None:
    data = PhoneMetadata.metadata_for_region(region.upper(), None)
    return None if data is None or data.country_code is None else _Plan(data, _validity(data.country_code))


@cache
def _validity(code: int) -> Valid:
    """Whether a national number is one of this code's, decided in the library's order of regions."""
    rules = []
    for region in phonenumbers.COUNTRY_CODE_TO_REGION_CODE[code]:
        if (data := PhoneMetadata.metadata_for_region(region, None)) is not None:
            leading = re.compile(data.leading_digits) if data.leading_digits is not None else None
            rules.append((leading, _known(data)))

    def valid(number: str) -> bool:
        for leading, known in rules:
            if leading is not None:
                if leading.match(number):
                    return known(number)
            elif known(number):
                return True
        return False

    return valid


def _known(data: Any) -> Valid:
    kinds = [data.mobile, data.fixed_line, data.premium_rate, data.toll_free, data.shared_cost, data.voip]
    kinds += [data.personal_number, data.pager, data.uan, data.voicemail]
    if data.same_mobile_and_fixed_line_pattern:
        kinds.remove(data.mobile)
    matches = [_matcher(kind) for kind in kinds if kind is not None]
    general = _matcher(data.general_desc)
    return lambda number: general(number) and any(match(number) for match in matches)


def _matcher(kind: Any) -> Valid:
    pattern, lengths = kind.national_number_pattern, frozenset(kind.possible_length)
    if not pattern:
        return lambda number: False
    fits = re.compile(pattern).fullmatch
    return lambda number: (not lengths or len(number) in lengths) and fits(number) is not None


@cache
def exit_code(region: str) -> str:
    """What is dialled in the region before a country code, if it is always the same digits: 00, 011, 010; else ""."""
    data = PhoneMetadata.metadata_for_region(region, None)
    prefix = (data.international_prefix or "") if data is not None else ""
    return prefix if prefix.isdigit() else ""


def library(text: str, region: str | None) -> str | None:
    """What the library says: E.164 of a valid number, or None."""
    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return None
    if number.extension or not phonenumbers.is_valid_number(number):
        return None
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def is_of_region(e164: str, region: str) -> bool:
    """Whether the number is one of exactly this region: a number of Jersey is none of GB's."""
    return phonenumbers.is_valid_number_for_region(phonenumbers.parse(e164), region)


def is_mobile(e164: str) -> bool:
    """Whether the number is surely a mobile one; in North America no number is."""
    return phonenumbers.number_type(phonenumbers.parse(e164)) == phonenumbers.PhoneNumberType.MOBILE


def has_code_of(e164: str, region: str) -> bool:
    """Whether the number has the region's country code."""
    return phonenumbers.parse(e164).country_code == phonenumbers.country_code_for_region(region)


def length_fault(digits: str, region: str) -> int:
    """-1 for digits dialled in the region that are too few for a mobile number there, 1 for too many, else 0."""
    data = PhoneMetadata.metadata_for_region(region, None)
    if data is None or data.mobile is None:
        return 0
    code, lengths = str(data.country_code), data.mobile.possible_length
    national = digits.lstrip("0")
    if national.startswith(code) and len(national) > max(lengths):
        national = national.removeprefix(code)
    return (len(national) > max(lengths)) - (len(national) < min(lengths))


def international_length_fault(text: str) -> int:
    """The same for a text that begins with a plus and a country code."""
    try:
        number = phonenumbers.parse(text)
    except phonenumbers.NumberParseException as error:
        return _PARSE_FAULTS.get(error.error_type, 0)
    region = phonenumbers.region_code_for_country_code(number.country_code or 0)
    return length_fault(phonenumbers.national_significant_number(number), region)


_PARSE_FAULTS = {
    phonenumbers.NumberParseException.TOO_SHORT_AFTER_IDD: -1,
    phonenumbers.NumberParseException.TOO_SHORT_NSN: -1,
    phonenumbers.NumberParseException.TOO_LONG: 1,
}


def country_of(e164: str) -> str | None:
    """The ISO code of the number's country."""
    return phonenumbers.region_code_for_number(phonenumbers.parse(e164))


def is_region(region: str) -> bool:
    return region in phonenumbers.SUPPORTED_REGIONS
