"""What the command line makes of its options for an import."""

from __future__ import annotations

from pathlib import Path

import pytest

from handbill.cli.contacts import _consent
from handbill.cli.frame import valid
from handbill.contacts.model import PlanPatch
from handbill.kit.errors import Invalid

FILE = Path("folder/clients.csv")


def test_consent_of_a_file_names_its_source() -> None:
    assert _consent(FILE, [], "", "") is None
    for source, expected in (("", "file clients.csv"), ("web form", "web form")):
        patch = valid(PlanPatch, consent=_consent(FILE, ["whatsapp", "email"], source, "form 17"))
        assert patch.consent
        assert (patch.consent.channels, patch.consent.source, patch.consent.proof) == (
            ["whatsapp", "email"], expected, "form 17",
        )  # fmt: skip
    assert len((_consent(Path("x" * 250), ["sms"], "", "") or {})["source"]) == 200


@pytest.mark.parametrize(("channels", "source", "proof"), [([], "web", ""), ([], "", "form"), (["post"], "", "")])
def test_consent_that_cannot_be_recorded_is_refused(channels: list[str], source: str, proof: str) -> None:
    with pytest.raises(Invalid):
        valid(PlanPatch, consent=_consent(FILE, channels, source, proof))
