"""Every regular expression that sees outside input takes linear time, and a test feeds it its worst case.

A new pattern belongs into TABLE below: with the limit of what it is matched against, and with families of texts that
are bad for it where those that `worst_cases` derives from the pattern itself are not bad enough.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from handbill.kit.bounds import ADDRESS_CHARS, EMAIL_CHARS, HEADER_CHARS, PATTERN_CHARS, ZONE_NAME_MAX
from tests.kit.growth import growth
from tests.kit.patterns_found import ANCHORED, Found, Unread, constraints, imported_names, inline, modules, named
from tests.kit.worst_cases import Family, families

BODY = 20 << 20  # a request's body
CELL = 1 << 20  # csv.field_size_limit
BLOCK = 5 << 20  # what a workbook's part is read by
HEADER = 64 << 10  # a header of a request
OWN = 256 << 10  # texts of our own: statements, migrations, answers of our engines
SHORT = 100  # refused beforehand if longer
TEMPLATE = 1 << 20  # a template's text, as a provider gives it

TABLE: dict[str, tuple[int, tuple[Family, ...]]] = {
    "api.clients._SANE_ID": (HEADER, ()),
    "api.served_files._COMMENTS": (OWN, (Family("*", "/**"), Family("/**"), Family(" "), Family(" //", "\n"))),
    "api.served_files._INDENTATION": (OWN, ()),
    "banners.targeting.patterns._REPEAT_AS_TEXT": (PATTERN_CHARS, ()),
    "client.rules '[0-9]{1,9}'": (HEADER, ()),
    "contacts.dialects._RUN": (8_000, ()),
    "contacts.emails '[\\\\s,;/|]'": (EMAIL_CHARS, ()),
    "contacts.emails._INVISIBLE": (CELL, ()),
    "contacts.emails._PLAIN": (CELL, (Family("a.", "a@"), Family("a-", "a@"), Family("a" * 63 + ".", "a@", "1"))),
    "contacts.emails._WRAPPED": (CELL, (Family("a", "mailto:", "<"), Family("<>"), Family("a", "<mailto:", "<"))),
    "contacts.mapping '[\\\\d\\\\s.,+/()-]+'": (CELL, ()),
    "contacts.mapping '[\\\\x00-\\\\x1f]'": (HEADER_CHARS, ()),
    "contacts.parse._SPECIAL": (CELL, ()),
    "contacts.phone_plans._PLAIN": (CELL, ()),
    "contacts.phones '(?:044|045|01|1)(\\\\d{10})'": (CELL, ()),
    "contacts.phones '0?(\\\\d{10})'": (CELL, ()),
    "contacts.phones '0?(1\\\\d{9})'": (CELL, ()),
    "contacts.phones._BREAK": (CELL, (Family("or "), Family(" or"), Family("/"))),
    "contacts.phones._DATE": (CELL, ()),
    "contacts.phones._DECIMAL": (CELL, ()),
    "contacts.phones._EXTENSION": (
        CELL,
        (Family("# "), Family("ext ", after="z"), Family("en", "ext", "z"), Family(" ", "ext", "z"), Family("x1")),
    ),
    "contacts.phones._LEAD": (CELL, (Family(" ", "tel"), Family(" ", "tel:"), Family("tel "))),
    "contacts.phones._SCIENTIFIC": (CELL, (Family("1", "1."), Family("1", "1.", "e1234"))),
    "contacts.phones._SPACES": (CELL, ()),
    "contacts.uploads._OURS": (255, ()),
    "contacts.uploads '[\\\\x00-\\\\x1f\\\\x7f\\\\ud800-\\\\udfff]'": (HEADER, ()),
    'contacts.values "[\\\\s\\\\u00a0\\\\u202f\'_]|[€$£¥]|R\\\\$"': (CELL, ()),
    "contacts.values._COMPACT": (CELL, ()),
    "contacts.values._HALF_DAY": (SHORT, ()),
    "contacts.values._ISO": (CELL, (Family("x", "2026-01-01 ", "\n"),)),
    "contacts.values._NUMBER": (CELL, (Family("1", "1."),)),
    "contacts.values._ODD": (CELL, ()),
    "contacts.values._PARTS": (CELL, (Family("x", "1/1/26 ", "\n"), Family("x", "1/1/2026 ", "\n"))),
    "contacts.values._SERIAL": (CELL, (Family("1", "45000."),)),
    "contacts.workbooks._CELL": (BLOCK, (Family("a:", "<"), Family("<a:"), Family("a.", "<"))),
    "contacts.workbooks._ODD_POINTERS[0]": (BLOCK, (Family("v "), Family("v ", "<"), Family("v ", "<", "<a"))),
    "contacts.workbooks._ODD_POINTERS[1]": (BLOCK, (Family("0", "&#"), Family("&#x0"))),
    "contacts.workbooks._PLACE": (BLOCK, (Family("r ", after="="), Family(" ", "r="), Family('r = "'))),
    "contacts.workbooks._PLACED": (
        BLOCK,
        (Family("r ", "<c "), Family("<c "), Family(" ", "<c r"), Family("a:", "<"), Family("r ", "<row ", "<")),
    ),
    "contacts.workbooks._POINTER": (BLOCK, (Family(" ", ">1"), Family("> "), Family(">1 "), Family(">123456789"))),
    "contacts.workbooks._TAG": (BLOCK, (Family("<c "), Family("a:", "<"), Family("a", "<c "))),
    "contacts.workbooks._TEXT": (BLOCK, (Family("<t "), Family("a:", "<"), Family("<si>"))),
    "events.dialects.posthog_config._EXTENSION": (HEADER, (Family("1", "/"), Family("a", "/1/"))),
    "events.dialects.posthog_config._TOKEN": (HEADER, ()),
    "events.dialects.reading._NO_NUMBER": (
        BODY,
        (
            Family('\\"', 'NaN"', ""),
            Family('\\"', '{"a":NaN,"x":"', ""),
            Family('\\"', '"', "\\"),
            Family('"\\"'),
            Family("NaN"),
            Family("-Infinity "),
            Family("-"),
            Family("aNaN "),
        ),
    ),
    "events.dialects.reading._REST_OF_TEXT": (
        BODY,
        (Family('\\"', "", ""), Family('\\"', "", "\\"), Family("x", "", "")),
    ),
    "events.dialects.senders._WORD": (200, ()),
    "events.dialects.times._UUID7": (BODY, ()),
    "events.enrich._ESCAPES": (BODY, (Family("\\ud83d"), Family("\\u"))),
    "events.history._PARTITION": (OWN, (Family("1", "("),)),
    "fake_graph.messages._HOLE": (TEMPLATE, (Family("{{ "), Family(" ", "{{"), Family("a", "{{"), Family("{{a "))),
    "fake_graph.templates._NAME": (TEMPLATE, ()),
    "infra.embedded.face.faults._CODE": (OWN, (Family("Code: 1"), Family("1", "Code: "))),
    "infra.embedded.face.statements._LAST_FORMAT": (
        4_096,  # the end of a statement
        (Family("FORMAT a SETTINGS "), Family(" ", "FORMAT a", "x"), Family(" ", "FORMAT"), Family("a", "FORMAT ")),
    ),
    "infra.embedded.face.statements._NAME": (OWN, ()),
    "infra.embedded.face.statements._TOKEN": (
        OWN,
        (Family("/*"), Family("\\'", "'", ""), Family("\\'", "'", "\\"), Family("''", "'"), Family("--"), Family("# ")),
    ),
    "infra.embedded.redis 'v=(\\\\d+)\\\\.(\\\\d+)'": (OWN, (Family("v=1"), Family("1", "v="))),
    "infra.migration_files ';[ \\\\t]*(?:\\\\n|$)'": (OWN, (Family("; "), Family(" ", ";"))),
    "infra.migration_files._NAME": (OWN, ()),
    "infra.postgres.prepare._TEMPORARY": (OWN, (Family(" "), Family(" ", "create"))),
    "infra.redis.errors._IN_SCRIPT": (300, (Family("@user_script: 1: -"), Family("A", "@user_script:1: -"))),
    "infra.sqlfiles._COMMENT": (OWN, (Family(" "),)),
    "infra.sqlfiles._HEAD": (OWN, (Family(" ", "--"), Family(" ", "-- name:"), Family(" ", "-- name: a", "b"))),
    "infra.sqlfiles._NO_TENANT": (OWN, (Family(" ", "-- no-tenant:"), Family(" ", "--"))),
    "insights.statements._SLOT": (OWN, (Family("<<a"), Family("a", "<<"), Family("<"))),
    "jobs.wire._AMBIGUOUS": (BODY, (Family("%2"),)),
    "jobs.wire._ESCAPE": (BODY, (Family("%2"),)),
    "kit.etags._TAG": (HEADER, (Family("1", '"v'),)),
    "kit.forms._BAD_ESCAPE": (BODY, (Family("%"), Family("%2"))),
    "kit.untrusted_json._ESCAPE": (BODY, (Family("\\ud83d"), Family("\\ud83d\\u"), Family("\\u0000"))),
    "kit.untrusted_json._HUGE": (BODY, (Family("0", "e"), Family("e0"), Family("e+0"))),
    "kit.untrusted_json._SUSPECT": (BODY, (Family("\\u"), Family("\\ud7"))),
    "kit.untrusted_json._TEXT": (BODY, (Family('\\"', '"', ""), Family('\\"', '"', "\\"), Family('"\\"'))),
    "kit.zones._NAME": (ZONE_NAME_MAX, (Family("a/"),)),
    "messaging.providers.whatsapp._ID": (BODY, ()),
    "messaging.render._SPACES": (TEMPLATE, ()),
    "messaging.render._VARIABLE": (TEMPLATE, (Family("{{ "), Family(" ", "{{"), Family("{{a "), Family(" ", "{{a"))),
    "kit.report_ids._ID": (200, ()),
    "ops.packages '[-_.]+'": (OWN, (Family("-"),)),
    "ops.packages._NAME": (OWN, ()),
    "people.raw._ESCAPE": (BODY, (Family("\\ud83d"), Family("\\ud83d\\u"))),
    "people.types._DATE": (SHORT, ()),
    "people.types._NUMBER": (SHORT, (Family("1", after="x"), Family("1", "1."))),
    "tenants.keys._IN_TEXT": (BODY, (Family("hbw_"), Family("a" * 33, "hbw_"), Family("hbs_" + "a" * 32 + "-"))),
    "tenants.keys._SHAPE": (HEADER, ()),
}
METADATA = "phonenumbers' own metadata, matched against at most 17 digits"
COMPILED = {
    Unread("handbill.contacts.phone_plans", "__init__"): METADATA,
    Unread("handbill.contacts.phone_plans", "_matcher"): METADATA,
    Unread("handbill.contacts.phone_plans", "_validity"): METADATA,
}
"""Where a pattern may be compiled that is not written there, and whose it is."""
RE2 = {"handbill.banners.targeting.patterns"}
"""Where patterns of tenants are compiled."""
HINT = (
    "add it to TABLE in tests/unit/test_patterns_linear.py: the limit of the texts it is matched against (refuse or cut"
    " longer ones before), and the families of texts that are worst for it. A pattern that a tenant writes is compiled"
    " with re2 instead."
)


def _short(key: str) -> str:
    return key.removeprefix("handbill.")


MODULES = modules()
FOUND = {_short(each.key): each for module in MODULES for each in named(module)}
INLINE = [each for module in MODULES for each in inline(module)]
FOUND |= {_short(each.key): each for each in INLINE if isinstance(each, Found)}
CONSTRAINTS = {f"{_short(each.key)} {each.limit}": each for module in MODULES for each in constraints(module)}


def _worst(found: Found, limit: int, extra: tuple[Family, ...] = ()) -> list[str]:
    """Every family of texts that takes too long, with its measurements."""
    return [
        f"{found.key} .{method} of {family!r}: {wrong}"
        for method in _methods(found)
        for family in (*extra, *families(found.pattern))
        if (wrong := _growth(found.pattern, method, family, limit)) is not None
    ]


def _methods(found: Found) -> set[str]:
    """`sub` goes through a whole text like `findall`, `finditer` and `split`; a pattern nobody calls is searched."""
    return {each if each in ANCHORED | {"search"} else "sub" for each in found.methods or {"search"}}


def _growth(pattern: re.Pattern[Any], method: str, family: Family, limit: int) -> str | None:
    is_bytes = isinstance(pattern.pattern, bytes)

    def make(size: int) -> Any:
        text = family.text(size)
        return text.encode("latin-1", "replace") if is_bytes else text

    if method == "sub":
        return growth(make, lambda text: pattern.sub(b"" if is_bytes else "", text), limit)
    return growth(make, getattr(pattern, method), limit)


def test_every_pattern_is_in_the_table() -> None:
    assert not FOUND.keys() - TABLE.keys(), HINT
    assert not TABLE.keys() - FOUND.keys(), "remove what is not in the product any more"


@pytest.mark.parametrize("key", sorted(TABLE))
def test_a_pattern_takes_linear_time(key: str) -> None:
    limit, extra = TABLE[key]
    assert _worst(FOUND[key], limit, extra) == []


@pytest.mark.parametrize("key", sorted(CONSTRAINTS))
def test_a_constraint_of_a_field_takes_linear_time(key: str) -> None:
    found = CONSTRAINTS[key]
    assert _worst(found, found.limit or BODY) == []


def test_patterns_that_are_not_written_in_the_source_are_compiled_in_listed_places() -> None:
    unread = {each for each in INLINE if isinstance(each, Unread)}
    assert unread == set(COMPILED), HINT


def test_every_way_to_the_engines_is_seen() -> None:
    imports = {module.__name__: found for module in MODULES if (found := imported_names(module))}
    assert imports == {name: {"re2"} for name in RE2}, (
        "write `re.compile(...)`, or `re2` where a tenant wrote the pattern"
    )


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (re.compile(rb'("(?:[^"\\]|\\.)*")|-?\b(?:Infinity|NaN)\b', re.DOTALL), "sub"),
        (re.compile(r"\d[\d \-().]{5,}\s*(?:[/;|,]|\bor\b)\s*\+?\(?\d[\d \-().]{5,}"), "search"),
        (re.compile(r"(?i)(?:\bext\.?|\bx|#)\s*\.?:?\s*\d{1,6}\s*$"), "search"),
        (re.compile(rb"v\b[^<]*<!"), "search"),
        (re.compile(r"(a|aa)+$"), "search"),
    ],
)
def test_the_families_find_what_is_not_linear(pattern: re.Pattern[Any], method: str) -> None:
    """Patterns that the product had, and one that is exponential: found by what is derived from them alone."""
    assert any(_growth(pattern, method, family, CELL) for family in families(pattern))


def test_addresses_are_short() -> None:
    assert ADDRESS_CHARS <= 1_000, "the cost of a targeting rule was measured with this length"
