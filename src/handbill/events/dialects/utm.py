"""Where a visit came from: what Segment's clients send in `context.campaign`, by the names of PostHog's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handbill.events.dialects.reading import encode, number_or_text

UTM_NAMES = {
    "source": "utm_source", "medium": "utm_medium", "name": "utm_campaign", "term": "utm_term",
    "content": "utm_content",
}  # fmt: skip


def utm_properties(campaign: Mapping[str, Any]) -> dict[str, bytes]:
    """The properties as JSON; what holds no text is left out."""
    values = ((name, number_or_text(campaign.get(key))) for key, name in UTM_NAMES.items() if key in campaign)
    return {name: encode(value) for name, value in values if value}
