"""Job ids on the wire. BullMQ's Node library refuses ':' in ids, so there it becomes '.', and comes back as ':'.

`to_wire` never maps two ids to one: a '.' of our own is written '%2E', and a '%' that could be mistaken for such an
escape is written '%25'. Ids of schedulers ("repeat:NAME:SLOT") are BullMQ's own form and pass unchanged.
"""

from __future__ import annotations

import re

_AMBIGUOUS = re.compile("%(?=2[5E])")
_ESCAPE = re.compile("%25|%2E|[.]")
_BACK = {"%25": "%", "%2E": ".", ".": ":"}
_SCHEDULED = "repeat:"


def to_wire(job_id: str) -> str:
    """The id as Redis, Node producers and Bull Board see it."""
    if job_id.startswith(_SCHEDULED):
        return job_id
    return _AMBIGUOUS.sub("%25", job_id).replace(".", "%2E").replace(":", ".")


def from_wire(wire_id: str) -> str:
    """The id as our API and logs show it."""
    if wire_id.startswith(_SCHEDULED):
        return wire_id
    return _ESCAPE.sub(lambda found: _BACK[found.group()], wire_id)
