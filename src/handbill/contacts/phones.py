"""Telephone numbers: what people and Excel make of them, back to E.164, and the forms WhatsApp knows them by.

A repair never leads to a number of another country when a region is given: a digit too many makes a stranger's number
of one typo in five. Only what is written as international (`+`, `00`, the region's own exit code) is read as such.
"""

from __future__ import annotations

import re

import phonenumbers

from handbill.contacts import phone_plans
from handbill.contacts.phone_plans import library, quick
from handbill.kit.bounds import PHONE_CHARS

MISSING = "PHONE_MISSING"
INVALID = "PHONE_INVALID"
DIGITS_MISSING = "PHONE_DIGITS_MISSING"
DIGITS_EXTRA = "PHONE_DIGITS_EXTRA"
OTHER_COUNTRY = "PHONE_OTHER_COUNTRY"
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
REPAIRED_EXTENSION = "REPAIRED_EXTENSION"

Answer = tuple[str | None, str]
"""E.164 and "" or what was repaired; else None and why not."""

_SIGNS = str.maketrans("", "", " -().+/\u2010\u2011\u2012\u2013\u2014\u2212\u00b7")
_SCIENTIFIC = re.compile(r"(\d)(?:[.,](\d+))?[eE]\+?(\d{1,2})")
_DECIMAL = re.compile(r"(\+?\d{6,17})[.,]0+")
_DATE = re.compile(r"\d{1,4}/\d{1,2}/\d{2,4}")
_EXTENSION = re.compile(
    r"(?i)(?:;ext=|#|(?<![^\W\d_])(?:extension|extensi[oó]n|extens[aã]o|extn|ext|ramal|anexo|poste|x|(durchwahl|dw)))"
    r" ?\.? ?:? ?\d{1,6} ?$"
)
_BREAK = re.compile(r"[/;|,]|(?<!\S)(?:or|oder|ou|o|and|und|e|y|et|atau|dan|hoặc|và|या|और|वा)(?!\S)", re.IGNORECASE)
_SPACES = re.compile(r"[\s\u00a0\u200b-\u200f\u202a-\u202e\u2060\ufeff]+")
_LEAD = re.compile(r"(?i)^(?:tel|phone|mobile?|cell|whatsapp|wa|fone|telefone|handy)\s*[.:]\s*|^'")
_LENGTH_REASONS = {-1: DIGITS_MISSING, 0: INVALID, 1: DIGITS_EXTRA}
_PARTS_MAX = 6
"""Pieces between slashes that one number has; five in France."""
_WHOLE_NUMBER = 6
"""Digits from which on a part of a cell may be a number of its own."""


def normalise(text: str, region: str | None) -> Answer:
    """The number in E.164 for numbers dialled in `region` (ISO code, or None when nothing is known).

    A text of more than PHONE_CHARS characters is refused before any pattern sees it.
    """
    if len(text) > PHONE_CHARS and len(text.strip()) > PHONE_CHARS:
        return None, TOO_LONG
    found = quick(text, region)
    if found is not None:
        return found, ""
    return _normalise_messy(text, region)


def suggest(text: str, region: str | None) -> str | None:
    """For a cell that is refused with OTHER_COUNTRY, the number that it would be with a plus."""
    if region is None or normalise(text, region)[1] != OTHER_COUNTRY:
        return None
    return normalise(text, None)[0]


def _normalise_messy(text: str, region: str | None) -> Answer:
    cleaned = _LEAD.sub("", _SPACES.sub(" ", text).strip()).strip()
    repair = ""
    if cleaned.startswith('="') and cleaned.endswith('"'):
        cleaned, repair = cleaned[2:-1], REPAIRED_EXCEL
    if not any(letter.isdigit() for letter in cleaned):
        return None, MISSING if not cleaned else INVALID
    if _DATE.fullmatch(cleaned):
        return None, INVALID
    if damaged := _SCIENTIFIC.fullmatch(cleaned):
        whole = _expand_scientific(damaged)
        if whole is None:
            return None, SCIENTIFIC
        cleaned, repair = whole, REPAIRED_EXCEL
    elif decimal := _DECIMAL.fullmatch(cleaned):
        cleaned, repair = decimal[1], REPAIRED_EXCEL
    if extension := _EXTENSION.search(cleaned):
        if extension[1]:  # in German it replaces the last digits of the number as often as it follows them
            return None, EXTENSION
        cleaned, repair = cleaned[: extension.start()], REPAIRED_EXTENSION
    single = _single_number(cleaned, region)
    if single is None:
        return None, SEVERAL
    found, note = _read(_begin_at_number(single), region)
    return found, (note or repair) if found else note


def _expand_scientific(damaged: re.Match[str]) -> str | None:
    """4.47911123456E+11 lost nothing; 4.47911E+11 lost half of its digits, and nobody can say which."""
    mantissa, power = damaged[1] + (damaged[2] or ""), int(damaged[3])
    return mantissa if len(mantissa) == power + 1 else None


def _single_number(text: str, region: str | None) -> str | None:
    """The text, or with slashes inside one number (`0170/1234567`) without them; None for several numbers."""
    parts = [part for part in _BREAK.split(text) if any(letter.isdigit() for letter in part)]
    if len(parts) == 1:
        return parts[0]
    if len(parts) == text.count("/") + 1:
        return text.replace("/", " ") if _is_split_by_slashes(parts, region) else None
    whole = sum(sum(letter.isdigit() for letter in part) >= _WHOLE_NUMBER for part in parts)
    return text if whole < 2 else None


def _is_split_by_slashes(parts: list[str], region: str | None) -> bool:
    """All parts together are a number, and no beginning of them is one: `030 1234567/68` are two."""
    if len(parts) > _PARTS_MAX or _read(_begin_at_number(" ".join(parts)), region)[0] is None:
        return False
    beginnings = (_begin_at_number(" ".join(parts[:count])) for count in range(1, len(parts)))
    return not any(_read(beginning, region)[0] for beginning in beginnings)


def _begin_at_number(text: str) -> str:
    """From the first digit on, with a plus if one stands before it; digits of all scripts become ASCII.

    Words behind a whole number (`(WhatsApp)`, `Ann`) go; behind a few digits they may be its letters: 1-800-FLOWERS.
    """
    if not text.isascii():
        text = phonenumbers.normalize_digits_only(text, keep_non_digits=True).replace("\uff0b", "+")
    places = [index for index, letter in enumerate(text) if letter.isdigit()]
    if not places:
        return ""
    end = places[-1] + 1 if len(places) > _WHOLE_NUMBER else len(text)
    return ("+" if "+" in text[: places[0]] else "") + text[places[0] : end]


def _read(text: str, region: str | None) -> Answer:
    """A text that begins with its number: as it is written, else repaired."""
    digits = text.translate(_SIGNS)
    if not (digits.isascii() and digits.isdigit()):
        digits = ""
    if text.startswith(("+", "00")):
        return _international(text, digits, region)
    if region is None:
        if plus := digits and (library("+" + digits, None) or _modernise("+" + digits, None)):
            return plus, REPAIRED_PLUS
        return None, NO_COUNTRY if 0 < len(digits) <= 10 else INVALID
    found = quick(text, region) or library(text, region)
    if found is not None and (phone_plans.has_code_of(found, region) or _dials_abroad(digits, region)):
        mobile = _mobile_without_plus(found, digits, region)
        return (mobile, REPAIRED_PLUS) if mobile else (found, "")
    if not digits:
        return None, INVALID
    if found := _modernise(digits, region):
        return found, REPAIRED_VARIANT
    return _repair(digits, region)


def _international(text: str, digits: str, region: str | None) -> Answer:
    if text.startswith("00"):  # some plans read 00 and the next two digits as a carrier
        if region is not None and (found := library(text, region)):
            return found, ""
        text = "+" + text[2:].lstrip("0 )(")
    elif digits.startswith("00"):  # +0049
        text = "+" + digits[2:]
    if found := quick(text, None) or library(text, None):
        return found, ""
    if digits and (found := _modernise("+" + text.translate(_SIGNS), region)):
        return found, REPAIRED_VARIANT
    return None, _LENGTH_REASONS[phone_plans.international_length_fault(text)]


def _mobile_without_plus(found: str, digits: str, region: str) -> str | None:
    """4915123456789 is a German mobile with its country code, though the plan has landlines that begin with 04915."""
    if not digits or phone_plans.is_mobile(found) or found == "+" + digits:
        return None
    plus = _of_region(library("+" + digits, None), region)
    return plus if plus is not None and plus != found and phone_plans.is_mobile(plus) else None


def _dials_abroad(digits: str, region: str) -> bool:
    code = phone_plans.exit_code(region)
    return bool(code) and digits.startswith(code)


def _repair(digits: str, region: str) -> Answer:
    """A lost plus or zero, if that gives a number of the region and no second one."""
    plus = _of_region(library("+" + digits.removeprefix("0"), None), region)
    zero = _of_region(library("0" + digits, region), region) if not digits.startswith("0") else None
    if plus and zero and plus != zero:
        return None, AMBIGUOUS
    if plus:
        return plus, REPAIRED_PLUS
    if zero:
        return zero, REPAIRED_ZERO
    if library("+" + digits, None) or _modernise("+" + digits, None):
        return None, OTHER_COUNTRY
    return None, _LENGTH_REASONS[phone_plans.length_fault(digits, region)]


def _of_region(number: str | None, region: str) -> str | None:
    return number if number is not None and phone_plans.is_of_region(number, region) else None


# --- forms that the numbering plans have left behind and address books have not

_VIETNAM = {
    "120": "70", "121": "79", "122": "77", "126": "76", "128": "78", "123": "83", "124": "84", "125": "85", "127": "81",
    "129": "82", "162": "32", "163": "33", "164": "34", "165": "35", "166": "36", "167": "37", "168": "38", "169": "39",
    "186": "56", "188": "58", "199": "59",
}  # fmt: skip
"""Vietnam's mobiles had eleven digits until 2018; each beginning has one successor."""


def _modernise(text: str, region: str | None) -> str | None:
    """The number's successor: Brazil before the ninth digit, Mexico with its old 1, 01, 044 and 045, Vietnam's 012."""
    digits = text.removeprefix("+")
    international = text.startswith("+")
    if digits.startswith("52") and (international or region in ("MX", None)) and len(digits) == 13:
        return library("+52" + digits[3:], None) if digits[2] == "1" else None
    if region == "MX" and not international and (old := re.fullmatch(r"(?:044|045|01|1)(\d{10})", digits)):
        return library("+52" + old[1], None)
    if digits.startswith("55") and (international or region in ("BR", None)) and len(digits) == 12:
        return _add_ninth_digit(digits[2:])
    if region == "BR" and not international and (old := re.fullmatch(r"0?(\d{10})", digits)):
        return _add_ninth_digit(old[1])
    if digits.startswith("841") and (international or region in ("VN", None)) and len(digits) == 12:
        return _shorten_vietnamese(digits[2:])
    if region == "VN" and not international and (old := re.fullmatch(r"0?(1\d{9})", digits)):
        return _shorten_vietnamese(old[1])
    return None


def _add_ninth_digit(national: str) -> str | None:
    return library(f"+55{national[:2]}9{national[2:]}", None) if national[2] in "6789" else None


def _shorten_vietnamese(national: str) -> str | None:
    new = _VIETNAM.get(national[:3])
    return library(f"+84{new}{national[3:]}", None) if new else None


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
        return _add_ninth_digit(e164[3:]) or e164
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
