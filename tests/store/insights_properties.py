"""Values of generated properties: nested ones, names that have dots; and the rule by which they are read."""

from __future__ import annotations

from random import Random
from typing import Any

NESTED = ("a.b", "$context.campaign.source", "$groups.company", "o.o.it's", "o..x", ".o", "o.1", "l.0", "l.x", "plan.x")
"""Names with dots: as a whole, as paths, both, and neither."""

TEXTS = (
    "",
    "x",
    "X y",
    "true",
    "12",
    "-1.5",
    "a'b",
    "') or 1=1 --",
    "{tenant:UInt32}",
    "ünï",
    "日本",
    "\\N",
    "nan",
    "1e999",
    "z" * 250,
)


def nested(rng: Random) -> dict[str, Any]:
    """Some of them, for one event."""
    made: dict[str, Any] = {}
    if rng.random() < 0.5:
        made["a"] = rng.choice((_made(rng, "b"), {"b": {"c": 1}}, "b", [{"b": "x"}], None))
    if rng.random() < 0.5:
        made["$context"] = {"campaign": _made(rng, "source"), "page": {"url": "x"}}
        made["$groups"] = _made(rng, "company")
    if rng.random() < 0.3:
        made["$context.campaign.source"] = rng.choice(("X y", None, {"k": 1}))
    if rng.random() < 0.5:
        made["o"] = {"o": _made(rng, "it's"), "": {"x": "x"}, "1": "one", "x": 12}
        made |= {".o": rng.choice(("", 12)), "l": [{"x": "x"}, "X y"]}
    return made


def value_of(rng: Random) -> Any:
    number = rng.choice((rng.randrange(-5, 20), rng.randrange(40) + 0.25))
    return rng.choice((rng.choice(TEXTS), rng.choice(TEXTS), number, number, True, False, None, [1, "a"]))


def _made(rng: Random, name: str) -> dict[str, Any]:
    """An object that has `name`, null in it, or something else."""
    return rng.choice(({name: "x"}, {name: "X y"}, {name: 12}, {name: None}, {name: [1, "a"]}, {"other": "x"}, {}))


def property_of(properties: dict[str, Any], name: str) -> Any:
    """By its own name if the event has it, null or not; else through objects, at most ten, each with a name."""
    if name in properties or not 1 < len(name.split(".")) <= 10 or "" in name.split("."):
        return properties.get(name)
    value: Any = properties
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
