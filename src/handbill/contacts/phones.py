"""Telephone numbers: what people and Excel make of them, back to E.164, and the forms WhatsApp knows them by.

The numbering plans are those of `phonenumbers`. The fast path below reads the same metadata and answers only where
nothing is left to interpret; whatever it does not take goes to the library. A test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import phonenumbers
from phonenumbers import re_util
from phonenumbers.phonemetadata import PhoneMetadata

from handbill.kit.bounds import PHONE_CHARS

re_util.enable_pattern_cache()

MISSING = "PHONE_MISSING"
INVALID = "PHONE_INVALID"
NO_COUNTRY = "PHONE_NO_COUNTRY"
SCIENTIFIC = "PHONE_SCIENTIFIC"
AMBIGUOUS = "PHONE_AMBIGUOUS"
SEVERAL = "PHONE_SEVERAL"
EXTENSION = "PHONE_EXTENSION"
TOO_LONG = "PHONE_TOO_LONG"

REPAIRED_PLUS = "REPAIRED_PLUS"
REPAIRED_ZERO = "REPAIRED_ZERO"
REPAIRED_EXCEL = "REPAIRED_EXCEL"
REPAIRED_VARIANT = "REPAIRED_VARIANT"

Answer = tuple[str | None, str]
"""E.164 and "" or what was repaired; else None and why not."""

_PLAIN = re.compile(r"\+?\(?\d[\d \-().]*")
_NOISE = str.maketrans("", "", " -().+")
_SCIENTIFIC = re.compile(r"(\d)(?:[.,](\d+))?[eE]\+?(\d{1,2})")
_DECIMAL = re.compile(r"(\+?\d{6,17})[.,]0+")
# The next two get texts with single spaces only. They are linear in any text: no open repeat follows another, and a run
# of digits and signs is scanned from its beginning only, not from each of its digits.
_EXTENSION = re.compile(r"(?i)(?:;ext=|\bext\.?|\bext[eé]n\w*|\bramal|\bdw|\bx|#) ?\.?:? ?\d{1,6} ?$")
_MANY = re.compile(
    r"(?<![\d \-().])[ \-().]*+\d[\d \-().]{5,}+"
    r"(?:[/;|,]|\b(?:or|oder|ou|o|and|und|e|y)\b) ?\+?\(?\d[\d \-().]{5}"
)
_SPACES = re.compile(r"[\s\u00a0\u200b-\u200f\u202a-\u202e\u2060\ufeff]+")
_LEAD = re.compile(r"(?i)^(?:tel|phone|mobile?|cell|whatsapp|wa|fone|telefone|handy)\s*[.:]\s*|^'")


def normalise(text: str, region: str | None) -> Answer:
    """The number in E.164 for numbers dialled in `region` (ISO code, or None when nothing is known).

    A text of more than PHONE_CHARS characters is refused before any pattern sees it.
    """
    if len(text) > PHONE_CHARS and len(text.strip()) > PHONE_CHARS:
        return None, TOO_LONG
    found = quick(text, region)
    if found is not None:
        return found, ""
    return _slowly(text, region)


def _slowly(text: str, region: str | None) -> Answer:
    cleaned = _LEAD.sub("", _SPACES.sub(" ", text).strip()).strip()
    excel = False
    if cleaned.startswith('="') and cleaned.endswith('"'):
        cleaned, excel = cleaned[2:-1], True
    if not any(letter.isdigit() for letter in cleaned):
        return None, MISSING if not cleaned else INVALID
    if damaged := _SCIENTIFIC.fullmatch(cleaned):
        whole = _whole(damaged)
        if whole is None:
            return None, SCIENTIFIC
        cleaned, excel = whole, True
    elif decimal := _DECIMAL.fullmatch(cleaned):
        cleaned, excel = decimal[1], True
    if _MANY.search(cleaned):
        return None, SEVERAL
    if _EXTENSION.search(cleaned):
        return None, EXTENSION
    found, note = _read(cleaned, region)
    return found, (REPAIRED_EXCEL if excel and found and not note else note)


def _whole(damaged: re.Match[str]) -> str | None:
    """4.47911123456E+11 lost nothing; 4.47911E+11 lost half of its digits, and nobody can say which."""
    mantissa, power = damaged[1] + (damaged[2] or ""), int(damaged[3])
    return mantissa if len(mantissa) == power + 1 else None


def _read(text: str, region: str | None) -> Answer:
    if text.startswith("00"):
        text = "+" + text[2:].lstrip("0") if region is None else text
    found = quick(text, region) or library(text, region)
    if found is not None:
        return found, ""
    if found := _variant(text, region):
        return found, REPAIRED_VARIANT
    if text.startswith("00") and (found := library("+" + text[2:].lstrip("0 "), None)):
        return found, ""  # some plans read 00 and the next two digits as a carrier; no number was found behind that
    digits = text.translate(_NOISE)
    if not digits.isascii() or not digits.isdigit() or text.startswith("+"):
        return None, INVALID
    plus = library("+" + digits, region) or _variant("+" + digits, region)
    zero = library("0" + digits, region) if region is not None else None
    if plus and zero and plus != zero:
        return None, AMBIGUOUS
    if plus:
        return plus, REPAIRED_PLUS
    if zero:
        return zero, REPAIRED_ZERO
    return None, INVALID if region is not None or len(digits) > 10 else NO_COUNTRY


def library(text: str, region: str | None) -> str | None:
    """What the library says: E.164 of a valid number, or None."""
    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return None
    if number.extension or not phonenumbers.is_valid_number(number):
        return None
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


# --- forms that the numbering plans have left behind and address books have not


def _variant(text: str, region: str | None) -> str | None:
    """Brazil before the ninth digit, Mexico with its old 1, 01, 044 and 045. Each has one successor and no other."""
    digits = text.translate(_NOISE)
    if not (digits.isascii() and digits.isdigit()):
        return None
    international = text.lstrip("(").startswith("+")
    if digits.startswith("52") and (international or region in ("MX", None)) and len(digits) == 13:
        return library("+52" + digits[3:], None) if digits[2] == "1" else None
    if region == "MX" and not international and (old := re.fullmatch(r"(?:044|045|01|1)(\d{10})", digits)):
        return library("+52" + old[1], None)
    if digits.startswith("55") and (international or region in ("BR", None)) and len(digits) == 12:
        return _ninth(digits[2:])
    if region == "BR" and not international and (old := re.fullmatch(r"0?(\d{10})", digits)):
        return _ninth(old[1])
    return None


def _ninth(national: str) -> str | None:
    return library(f"+55{national[:2]}9{national[2:]}", None) if national[2] in "6789" else None


def whatsapp(e164: str) -> str:
    """The one address under which WhatsApp counts this number: Argentine numbers carry the 9 of mobiles."""
    if e164.startswith("+54") and not e164.startswith("+549"):
        return "+549" + e164[3:]
    return e164


def from_whatsapp(wa_id: str) -> str:
    """The address for the id in a webhook, which may be an old form: 521..., Brazil without the ninth digit."""
    e164 = "+" + wa_id.lstrip("+")
    if e164.startswith("+521") and len(e164) == 14:
        return "+52" + e164[4:]
    if e164.startswith("+55") and len(e164) == 13:
        return _ninth(e164[3:]) or e164
    return whatsapp(e164)


def forms(e164: str) -> tuple[str, ...]:
    """Every way the same telephone may be written down as E.164: to find contacts by an address."""
    found = [e164]
    if e164.startswith("+549"):
        found.append("+54" + e164[4:])
    elif e164.startswith("+54"):
        found.append("+549" + e164[3:])
    elif e164.startswith("+52") and len(e164) == 13:
        found.append("+521" + e164[3:])
    elif e164.startswith("+55") and len(e164) == 14 and e164[5] == "9":
        found.append(e164[:5] + e164[6:])
    return tuple(found)


# --- the fast path

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


def is_region(region: str) -> bool:
    return region in phonenumbers.SUPPORTED_REGIONS
