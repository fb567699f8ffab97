"""Events about nobody: their senders want no person for them, as posthog-js does until somebody is identified."""

from __future__ import annotations

from handbill.events.dialects.canon import Edge
from handbill.events.dialects.collect import Warned
from handbill.events.dialects.ids import EDGES
from handbill.events.reasons import Reason

Changes = tuple[bytes | None, bytes | None, bytes | None]
"""What an event sets, sets once and unsets on its person."""
_NO_CHANGES: Changes = (None, None, None)


def without_profile(name: str, changes: Changes, edge: Edge | None, warned: Warned) -> Changes:
    """No changes; and a warning where the event would change a person all the same."""
    if edge is not None or name in EDGES or changes != _NO_CHANGES:
        warned.append(Reason.PERSON_PROFILE_OFF)
    return _NO_CHANGES
