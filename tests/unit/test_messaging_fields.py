"""The documented fields of a contact are those that a binding takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from handbill.messaging.fields import CONTACT_FIELDS, contact_fields, find_fault

PAGE = Path(__file__).parents[2] / "docs" / "messaging.md"


def test_the_page_lists_the_fields() -> None:
    rows = [line.strip() for line in PAGE.read_text().splitlines()]
    for name, meaning in CONTACT_FIELDS.items():
        assert f"| `{name}` | {meaning} |" in rows


@pytest.mark.parametrize("name", [*CONTACT_FIELDS, "attributes.city", "attributes.a.b"])
def test_documented_fields_are_taken(name: str) -> None:
    assert find_fault(name) is None


@pytest.mark.parametrize("name", ["", "city", "attributes", "attributes.", "Name", "contact_id", "attributes.NAME"])
def test_others_are_refused(name: str) -> None:
    assert (find_fault(name) is None) == (name == "attributes.NAME")


def test_parts_of_a_name() -> None:
    own = {"name": "Ana  Maria", "email": None}
    fields = contact_fields(own, {"email": "a@x.org", "last_name": "Souza"})
    assert (fields["first_name"], fields["last_name"], fields["email"]) == ("Ana", "Souza", "a@x.org")
    assert fields["attributes.email"] == "a@x.org"
    alone = contact_fields({"name": "Ana"}, {})
    assert (alone["first_name"], alone["last_name"]) == ("Ana", None)
