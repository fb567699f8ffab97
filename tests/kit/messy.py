"""Messy rows on a seed: a clean contact and a named corruption. What must become of a row is written in the table of
corruptions, beside what is done to it; nothing here asks our own parser.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

COLUMNS = ("Customer ID", "Full Name", "Mobile", "E-Mail", "City", "Birthday")
REGION = "BR"
Cells = list[str]


class Clean(msgspec.Struct, frozen=True):
    external_id: str
    name: str
    phone: str
    email: str
    city: str
    birthday: str

    def cells(self) -> Cells:
        return [self.external_id, self.name, self.phone, self.email, self.city, self.birthday]


class Row(msgspec.Struct, frozen=True):
    """What stands in the file, and what must become of it: `expected` fields, or the code of the rejection."""

    corruption: str
    text: str
    expected: dict[str, Any] | None
    code: str | None = None
    noted: str | None = None


_FIRST = ("Ann", "João", "Zoë", "Müller", "Łukasz", "José", "Chloé", "Bob", "Iñaki", "李", "Дарья", "Ana Maria")
_LAST = ("Silva", "O'Neil", "Núñez", "van der Berg", "Souza", "Kowalski", "García", "Smith", "Öztürk", "王")
_CITIES = ("São Paulo", "Köln", "México", "Córdoba", "Rio", "Leeds", "Łódź", "New York")


def clean(dice: random.Random, number: int) -> Clean:
    """A contact as it should be. The numbers are of ranges that are in use, written by hand."""
    kind = dice.randrange(10)
    tail = number % 1_000_000
    if kind < 6:
        phone = f"+55{dice.choice(('11', '21', '31', '47', '85'))}9{dice.choice('678')}1{tail:06d}"
    elif kind == 6:
        phone = f"+4915{dice.choice('1257')}00{tail:06d}"
    elif kind == 7:
        phone = f"+447400{tail:06d}"
    elif kind == 8:
        phone = f"+52552{dice.choice('2345')}{tail:06d}"
    else:
        phone = f"+549112{dice.choice('2345')}{tail:06d}"
    name = f"{dice.choice(_FIRST)} {dice.choice(_LAST)} {number}"
    email = f"person.{number}@{dice.choice(('example.com', 'mail.example.org', 'shop-7.example.net'))}"
    day = f"{dice.randrange(1950, 2006)}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}"
    return Clean(f"C{number}", name, phone, email, dice.choice(_CITIES), day)


def fields(one: Clean, **changed: Any) -> dict[str, Any]:
    found = {
        "external_id": one.external_id,
        "name": one.name,
        "phone": one.phone,
        "email": one.email,
        "City": one.city,
        "Birthday": one.birthday,
    }
    return {**found, **changed}


# --- what is done to a row


def _line(cells: Cells) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _with(one: Clean, column: int, value: str) -> str:
    cells = one.cells()
    cells[column] = value
    return _line(cells)


Made = tuple[str, dict[str, Any] | None, str | None, str | None]
"""The text, the expected fields, the code of a rejection, the code of a note."""


def _ok(text: str, one: Clean, **changed: Any) -> Made:
    return text, fields(one, **changed), None, None


def _no(text: str, code: str) -> Made:
    return text, None, code, None


def _without_plus(one: Clean, phone: str) -> Made:
    """Without a plus a number is one of REGION, or it is none."""
    text = _with(one, 2, phone)
    return _ok(text, one) if one.phone.startswith("+55") else _no(text, "PHONE_OTHER_COUNTRY")


def _spaced(one: Clean) -> str:
    return f"{one.phone[:3]} ({one.phone[3:5]}) {one.phone[5:9]}-{one.phone[9:]}"


def _wide(text: str) -> str:
    return "".join(chr(ord(letter) + 0xFEE0) if letter.isdigit() else letter for letter in text)


def _brazil(one: Clean, number: str) -> Clean:
    return msgspec.structs.replace(one, phone=f"+55119{number}")


def _national(dice: random.Random, one: Clean, number: int) -> Made:
    home = _brazil(one, f"71{number % 1_000_000:06d}")
    return _ok(_with(home, 2, f"(11) 9{home.phone[6:10]}-{home.phone[10:]}"), home)


def _old_brazil(dice: random.Random, one: Clean, number: int) -> Made:
    home = _brazil(one, f"81{number % 1_000_000:06d}")
    return _ok(_with(home, 2, f"+55 11 81{number % 1_000_000:06d}"), home)


def _old_mexico(dice: random.Random, one: Clean, number: int) -> Made:
    there = msgspec.structs.replace(one, phone=f"+52556{number % 10_000_000:07d}")
    return _ok(_with(there, 2, f"+521{there.phone[3:]}"), there)


def _fifteen(dice: random.Random, one: Clean, number: int) -> Made:
    there = msgspec.structs.replace(one, phone=f"+549116{number % 10_000_000:07d}")
    return _ok(_with(there, 2, f"+54 11 15 6{number % 10_000_000:07d}"), there)


def _exact(dice: random.Random, one: Clean, number: int) -> Made:
    digits = one.phone[1:]
    return _without_plus(one, f"{digits[0]}.{digits[1:]}E+{len(digits) - 1}")


Corruption = Callable[[random.Random, Clean, int], Made]

TABLE: dict[str, tuple[int, Corruption]] = {
    # weight, and what is done
    "none": (300, lambda d, c, n: _ok(_line(c.cells()), c)),
    "phone spaced": (40, lambda d, c, n: _ok(_with(c, 2, _spaced(c)), c)),
    "phone dotted": (20, lambda d, c, n: _ok(_with(c, 2, f"{c.phone[:3]}.{c.phone[3:7]}.{c.phone[7:]}"), c)),
    "phone national": (40, _national),
    "phone lost plus": (30, lambda d, c, n: _without_plus(c, c.phone[1:])),
    "phone 00": (15, lambda d, c, n: _ok(_with(c, 2, f"00{c.phone[1:]}"), c)),
    "phone old Brazil": (15, _old_brazil),
    "phone old Mexico": (8, _old_mexico),
    "phone Argentine 15": (8, _fifteen),
    "phone Excel decimal": (15, lambda d, c, n: _without_plus(c, f"{c.phone[1:]}.0")),
    "phone Excel exact": (10, _exact),
    "phone apostrophe": (10, lambda d, c, n: _ok(_with(c, 2, f"'{c.phone}"), c)),
    "phone formula text": (8, lambda d, c, n: _ok(_with(c, 2, f'="{c.phone}"'), c)),
    "phone hard spaces": (10, lambda d, c, n: _ok(_with(c, 2, f"\u00a0{c.phone[:5]}\u00a0{c.phone[5:]}\u200b"), c)),
    "phone wide digits": (5, lambda d, c, n: _ok(_with(c, 2, _wide(c.phone)), c)),
    "phone tel:": (5, lambda d, c, n: _ok(_with(c, 2, f"Tel: {c.phone}"), c)),
    "name with line break": (15, lambda d, c, n: _ok(_with(c, 1, f"{c.name}\n2nd"), c, name=f"{c.name}\n2nd")),
    "name with comma": (20, lambda d, c, n: _ok(_with(c, 1, f"{c.name}, Dr."), c, name=f"{c.name}, Dr.")),
    "name with quotes": (15, lambda d, c, n: _ok(_with(c, 1, f'"{c.name}" Inc'), c, name=f'"{c.name}" Inc')),
    "name with stray quote": (
        10,
        lambda d, c, n: _ok(_line(c.cells()).replace(c.name, f'{c.name} 5" x'), c, name=f'{c.name} 5" x'),
    ),
    "name decomposed": (10, lambda d, c, n: _ok(_with(c, 1, f"Jose\u0301 {n}"), c, name=f"José {n}")),
    "name padded": (15, lambda d, c, n: _ok(_with(c, 1, f"  {c.name}\t"), c)),
    "name like a formula": (8, lambda d, c, n: _ok(_with(c, 1, f"=SUM({n})"), c, name=f"=SUM({n})")),
    "name with backslash": (8, lambda d, c, n: _ok(_with(c, 1, f"a\\b\\N {n}"), c, name=f"a\\b\\N {n}")),
    "email upper case": (20, lambda d, c, n: _ok(_with(c, 3, c.email.upper()), c)),
    "email in brackets": (10, lambda d, c, n: _ok(_with(c, 3, f"{c.name.split()[0]} <{c.email}>"), c)),
    "email mailto": (8, lambda d, c, n: _ok(_with(c, 3, f"mailto:{c.email}"), c)),
    "email padded": (10, lambda d, c, n: _ok(_with(c, 3, f" {c.email} "), c)),
    "email empty": (30, lambda d, c, n: _ok(_with(c, 3, ""), c, email=None)),
    "email N/A": (10, lambda d, c, n: _ok(_with(c, 3, "N/A"), c, email=None)),
    "city empty": (20, lambda d, c, n: _ok(_with(c, 4, " "), c, City=None)),
    "name empty": (20, lambda d, c, n: _ok(_with(c, 1, ""), c, name=None)),
    "birthday slashes": (15, lambda d, c, n: _ok(_with(c, 5, "/".join(reversed(c.birthday.split("-")))), c)),
    "cells missing": (10, lambda d, c, n: _ok(_line(c.cells()[:4]), c, City=None, Birthday=None)),
    "cells empty at the end": (10, lambda d, c, n: _ok(_line([*c.cells(), "", ""]), c)),
    "email broken": (20, lambda d, c, n: (_with(c, 3, "nobody at home"), fields(c, email=None), None, "EMAIL_INVALID")),
    "birthday broken": (
        10, lambda d, c, n: (_with(c, 5, "31.02.1999"), fields(c, Birthday=None), None, "DATE_INVALID")
    ),
    "phone Excel rounded": (
        20, lambda d, c, n: _no(_with(c, 2, f"{c.phone[1]}.{c.phone[2:4]}E+12"), "PHONE_SCIENTIFIC")
    ),
    "phone letters": (15, lambda d, c, n: _no(_with(c, 2, "call me"), "PHONE_INVALID")),
    "phone short": (15, lambda d, c, n: _no(_with(c, 2, c.phone[:7]), "PHONE_DIGITS_MISSING")),
    "phone empty": (15, lambda d, c, n: _no(_with(c, 2, ""), "PHONE_MISSING")),
    "phone two": (10, lambda d, c, n: _no(_with(c, 2, f"{c.phone} / {c.phone[:-1]}1"), "PHONE_SEVERAL")),
    "phone extension": (8, lambda d, c, n: _ok(_with(c, 2, f"{c.phone} ext. 12"), c)),
    "cells too many": (10, lambda d, c, n: _no(_line([*c.cells(), "what?"]), "COLUMNS_TOO_MANY")),
}  # fmt: skip
_NAMES = tuple(TABLE)
_WEIGHTS = tuple(weight for weight, _ in TABLE.values())
COPIES = 0.06
BLANKS = 0.01


def rows(seed: int, count: int, first: int = 1) -> Iterator[Row]:
    """`count` rows; some are blank, and some are about a person who stood in the file before, under another name."""
    dice = random.Random(seed)
    before: list[Clean] = []
    for number in range(first, first + count):
        if dice.random() < BLANKS:
            yield Row("blank", dice.choice(("\n", ",,,,,\n", " , ,,,,\n")), None)
            continue
        one = clean(dice, number)
        if before and dice.random() < COPIES:
            seen = dice.choice(before)
            one = msgspec.structs.replace(one, phone=seen.phone)
            name = dice.choice(("none", "name empty", "city empty", "email empty", "email upper case"))
        else:
            name = dice.choices(_NAMES, _WEIGHTS)[0]
        text, expected, code, noted = TABLE[name][1](dice, one, number)
        if expected is not None and expected["phone"] == one.phone:
            before.append(one)
            del before[:-2_000]
        yield Row(name, text, expected, code, noted)


def write(path: Path, made: Iterator[Row], keep: Callable[[Row], object] = lambda row: None) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(_line(list(COLUMNS)))
        for row in made:
            file.write(row.text)
            keep(row)
            count += 1
    return count


# --- what the table must be afterwards: the rows applied one after the other

Person = dict[str, Any]
NAMES = ("external_id", "name", "phone", "email", "City", "Birthday")


def apply(people: dict[str, Person], row: Row, policy: str, tags: set[str]) -> str:
    """One row, by its policy, to a plain dictionary by phone. What happened, in the words of the counts."""
    if row.expected is None:
        return "rejected" if row.code else "blank"
    new = row.expected
    key = str(new["phone"])
    if key not in people:
        people[key] = {**new, "tags": set(tags)}
        return "created"
    old = people[key]
    if policy == "skip":
        return "skipped"
    for name in NAMES:
        if (
            policy == "replace"
            or (policy == "update" and new[name] is not None)
            or (policy == "update_blanks" and old[name] is None)
        ):
            old[name] = new[name]
    old["tags"] |= tags
    return "matched"
