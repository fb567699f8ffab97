"""The one key builder. Keys that must live together on a cluster carry the same hash tag: `hb:caps:{7:42}:x`."""

from __future__ import annotations


class Keys:
    """Builds every key and channel of ours. BullMQ's layout has its own, in the jobs room."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str = "hb") -> None:
        if not prefix or any(sign in prefix for sign in "{}: "):
            raise ValueError(f"not a key prefix: {prefix!r}")
        self._prefix = prefix

    def tagged(self, room: str, tag: str | int, *rest: str | int) -> str:
        """A key whose place on a cluster is decided by `tag` alone."""
        text = str(tag)
        if not text or "{" in text or "}" in text:
            raise ValueError(f"not a hash tag: {text!r}")
        return ":".join([self._prefix, room, f"{{{text}}}", *map(str, rest)])

    def plain(self, room: str, *rest: str | int) -> str:
        """A key that stands alone: it is never used in one command or script with another."""
        return ":".join([self._prefix, room, *map(str, rest)])

    def channel(self, room: str, *rest: str | int) -> str:
        return ":".join(["handbill", room, *map(str, rest)])
