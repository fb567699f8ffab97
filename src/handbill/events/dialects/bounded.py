"""Lists of strangers, cut off before they fill the memory.

Twenty megabytes of `1,1,1,...` are ten million elements, and a list of them takes forty times the room. A struct that
is written as an array has a fixed number of places; what comes after them is passed over and never made.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import Raw

from handbill.kit.errors import Fault, Invalid

_NOTHING = Raw(b"")
_SMALL_BYTES = 256 * 1024
"""A list in so small a body is harmless whatever it holds."""
_list = msgspec.json.Decoder(list[Raw])


def elements(array: bytes | Raw, most: int, name: str) -> list[Raw]:
    """The elements of a JSON array, each in its bytes. Raises Invalid if they are none, or more than `most`."""
    if len(memoryview(array)) <= _SMALL_BYTES:
        found = _list.decode(array)
    else:
        places = msgspec.structs.astuple(_places(most + 1).decode(array))
        found = [raw for raw in places if raw]
    check_count(len(found), most, name)
    return found


def check_count(count: int, most: int, name: str) -> None:
    if not 1 <= count <= most:
        said = f"more than {most}" if count > most else "no"
        why = f"holds {said} events, must hold 1 to {most}"
        raise Invalid("Nothing was kept.", code="BATCH_SIZE", faults=[Fault(name, why)])


@functools.cache
def _places(count: int) -> msgspec.json.Decoder[Any]:
    fields = [(f"p{place}", Raw, _NOTHING) for place in range(count)]
    return msgspec.json.Decoder(msgspec.defstruct("Places", fields, array_like=True, gc=False))
