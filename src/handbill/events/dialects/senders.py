"""Who sent an event: a person's own browser or app, or a server that speaks of the person.

The address and the user agent of a request are the person's only in the first case. Of a server, they would place all
its users in its data centre, with a browser named after its HTTP library.
"""

from __future__ import annotations

import re
from enum import Enum
from sys import getsizeof
from typing import Any

from handbill.kit.bounds import LIBRARY_NAMES
from handbill.kit.caches import GenerationCache

_APPS = frozenset({"android", "flutter", "ios", "kotlin", "swift", "unity"})
_SERVERS = frozenset({
    "csharp", "dotnet", "elixir", "go", "java", "net", "node", "php", "python", "rs", "ruby", "rust", "server",
})  # fmt: skip
"""Words in the names of libraries, as in `posthog-python`, `analytics-node`, `com.rudderstack.android.sdk.core`."""
_WORD = re.compile(r"[a-z0-9]+")
_AGENTS = ("Mozilla/", "Opera/", "Dalvik/")
_APPLE = "CFNetwork/"


class Sender(Enum):
    PERSON = "person"
    """A browser or an app: what the request shows is the person's."""
    SERVER = "server"
    """A library for servers: what it attaches of its own system is the server's, too."""
    OTHER = "other"
    """Any other program: only what its message says of the person is the person's."""


def is_persons_agent(user_agent: str | None) -> bool:
    """Whether a user agent is that of a browser, or of an app by its system's own HTTP library."""
    return user_agent is not None and (user_agent.startswith(_AGENTS) or _APPLE in user_agent)


def sender_of(is_server: Any, library: str | None, *, is_persons: bool) -> Sender:
    """By what the message says (`$is_server`), else by the name of its library, else by the request's user agent."""
    if is_server is True:
        return Sender.SERVER
    if is_server is False:
        return Sender.PERSON
    named = _sender_of_library(library) if library else Sender.OTHER
    if named is Sender.OTHER and is_persons:
        return Sender.PERSON
    return named


def _sender_of_library(name: str) -> Sender:
    """OTHER: it runs in a browser, or its name does not say where."""
    found = _by_library.get(name)
    if found is None:
        found = _by_library[name] = _read_name(name)
    return found


def _read_name(name: str) -> Sender:
    words = set(_WORD.findall(name.lower()))
    if words & _APPS or words >= {"react", "native"}:
        return Sender.PERSON
    return Sender.SERVER if words & _SERVERS else Sender.OTHER


_by_library: GenerationCache[str, Sender] = GenerationCache(LIBRARY_NAMES, lambda name, _: getsizeof(name))
