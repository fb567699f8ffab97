"""Templates: which variables they have, where each value comes from, who lacks one, and the components of a send.

A value that is missing is never guessed: the person is skipped with a reason, and counted before the campaign starts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from handbill.messaging.model import Template, TemplateSend

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z0-9_]{1,64})\s*\}\}")
_SPACES = re.compile(r"\s+")
BODY_LIMIT = 1024
HEADER_LIMIT = 60
URL_LIMIT = 2000
MEDIA = frozenset({"IMAGE", "VIDEO", "DOCUMENT"})
_PARTS = frozenset({"HEADER", "BODY", "FOOTER", "BUTTONS"})
_BUTTONS = frozenset({"QUICK_REPLY", "URL", "PHONE_NUMBER", "COPY_CODE", "VOICE_CALL"})
COUPON = "coupon"
Place = Literal["header", "body", "button"]


class Variable(msgspec.Struct, frozen=True):
    """One hole of a template. `key` names it for bindings: `body.1`, `header.image`, `button.0.1`, `body.name`."""

    place: Place
    name: str
    index: int | None = None
    media: str | None = None

    @property
    def key(self) -> str:
        return f"{self.place}.{self.index}.{self.name}" if self.index is not None else f"{self.place}.{self.name}"


class Binding(msgspec.Struct, frozen=True):
    """Where a value comes from: a field of the contact, else `fallback`. Without a field it is a constant."""

    field: str | None = None
    fallback: str | None = None


class Missing(msgspec.Struct, frozen=True):
    """The keys for which this person has no value."""

    keys: tuple[str, ...]


class TooLong(msgspec.Struct, frozen=True):
    """With this person's values the part grows past what the provider takes."""

    place: str
    length: int
    limit: int


class Filled(msgspec.Struct, frozen=True):
    """Ready to send, and what the person will read."""

    send: TemplateSend
    text: str


Rendered = Filled | Missing | TooLong


class Preflight(msgspec.Struct, frozen=True):
    """Before the first message: how many would go, and why the others would not."""

    total: int
    ready: int
    missing: dict[str, int]
    too_long: int


def variables(template: Template) -> tuple[Variable, ...]:
    """Every hole, in the order of the components."""
    found: list[Variable] = []
    for component in template.components:
        kind = str(component.get("type", "")).upper()
        if kind == "HEADER":
            format_ = str(component.get("format", "TEXT")).upper()
            if format_ in MEDIA:
                found.append(Variable("header", format_.lower(), media=format_.lower()))
            else:
                found += [Variable("header", name) for name in _names(component.get("text"))]
        elif kind == "BODY":
            found += [Variable("body", name) for name in _names(component.get("text"))]
        elif kind == "BUTTONS":
            found += _buttons(component)
    return tuple(found)


def unsupported(template: Template) -> tuple[str, ...]:
    """Parts that want values which this release cannot give: refuse such a template before anybody is written to."""
    found: list[str] = []
    for component in template.components:
        kind = str(component.get("type", "")).upper()
        if kind not in _PARTS:
            found.append(kind)
        elif kind == "HEADER" and str(component.get("format", "TEXT")).upper() not in MEDIA | {"TEXT"}:
            found.append(f"HEADER {component['format']}")
        elif kind == "BUTTONS":
            found += [f"BUTTON {word}" for _, word, _ in _listed(component) if word not in _BUTTONS]
    return tuple(found)


def unbound(template: Template, bindings: Mapping[str, Binding]) -> tuple[str, ...]:
    """Variables that no binding speaks of: a fault of the campaign, not of a person."""
    return tuple(variable.key for variable in variables(template) if variable.key not in bindings)


def fill(template: Template, bindings: Mapping[str, Binding], contact: Mapping[str, Any]) -> Rendered:
    """The template for one person."""
    holes = variables(template)
    values: dict[str, str] = {}
    missing: list[str] = []
    for hole in holes:
        value = _value(bindings.get(hole.key), contact)
        if value:
            values[hole.key] = value
        else:
            missing.append(hole.key)
    if missing:
        return Missing(tuple(missing))
    text, too_long = _texts(template, values)
    if too_long is not None:
        return too_long
    components = tuple(_components(holes, values, named=template.named))
    return Filled(TemplateSend(template.name, template.language, components), text)


def preflight(template: Template, bindings: Mapping[str, Binding], people: Iterable[Mapping[str, Any]]) -> Preflight:
    """Counts by variable; somebody who lacks two is counted under both. People are read one by one, never kept."""
    missing: Counter[str] = Counter()
    total = ready = too_long = 0
    for person in people:
        total += 1
        rendered = fill(template, bindings, person)
        if isinstance(rendered, Missing):
            missing.update(rendered.keys)
        elif isinstance(rendered, TooLong):
            too_long += 1
        else:
            ready += 1
    return Preflight(total, ready, dict(sorted(missing.items())), too_long)


def _names(text: Any) -> list[str]:
    """Each variable once, in order of appearance; numbered ones by number, as the provider fills them by place."""
    names = list(dict.fromkeys(_VARIABLE.findall(text))) if isinstance(text, str) else []
    return sorted(names, key=int) if names and all(name.isdecimal() for name in names) else names


def _buttons(component: Mapping[str, Any]) -> list[Variable]:
    found: list[Variable] = []
    for index, word, button in _listed(component):
        if word == "URL":
            found += [Variable("button", name, index=index) for name in _names(button.get("url"))]
        elif word == "COPY_CODE":
            found.append(Variable("button", COUPON, index=index))
    return found


def _listed(component: Mapping[str, Any]) -> Iterable[tuple[int, str, Mapping[str, Any]]]:
    """The buttons with their places and kinds; what is no button is passed over and keeps its place."""
    buttons = component.get("buttons")
    for index, button in enumerate(buttons if isinstance(buttons, list) else ()):
        if isinstance(button, Mapping):
            yield index, str(button.get("type", "")).upper(), button


def _value(binding: Binding | None, contact: Mapping[str, Any]) -> str:
    """One line of text: the provider refuses line breaks, tabs and runs of spaces inside a value."""
    if binding is None:
        return ""
    value = contact.get(binding.field) if binding.field is not None else binding.fallback
    text = _plain(value)
    return text or _plain(binding.fallback)


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool | dict | list):
        return ""
    return _SPACES.sub(" ", str(value).replace("\0", "")).strip()


def _components(holes: Iterable[Variable], values: Mapping[str, str], *, named: bool) -> Iterable[dict[str, Any]]:
    """What the Cloud API wants: one entry for the header, one for the body, one for each button with a hole."""
    parts: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for hole in holes:
        value = values[hole.key]
        if hole.media is not None:
            source = "link" if "://" in value else "id"
            parameter: dict[str, Any] = {"type": hole.media, hole.media: {source: value}}
        elif hole.name == COUPON and hole.place == "button":
            parameter = {"type": "coupon_code", "coupon_code": value}
        else:
            parameter = {"type": "text", "text": value}
            if named and hole.place != "button":
                parameter["parameter_name"] = hole.name
        parts.setdefault((hole.place, hole.index), []).append(parameter)
    for (place, index), parameters in parts.items():
        if index is None:
            yield {"type": place, "parameters": parameters}
        else:
            kind = "copy_code" if parameters[0]["type"] == "coupon_code" else "url"
            yield {"type": place, "sub_type": kind, "index": str(index), "parameters": parameters}


def _texts(template: Template, values: Mapping[str, str]) -> tuple[str, TooLong | None]:
    """What the person will read, and the first part that outgrew its limit."""
    lines: list[str] = []
    for component in template.components:
        kind = str(component.get("type", "")).upper()
        text = component.get("text")
        if kind in ("HEADER", "BODY", "FOOTER") and isinstance(text, str):
            place = kind.lower()
            whole = _VARIABLE.sub(lambda found, at=place: values.get(f"{at}.{found[1]}", found[0]), text)  # type: ignore[misc]
            limit = BODY_LIMIT if kind == "BODY" else HEADER_LIMIT
            if kind != "FOOTER" and len(whole) > limit:
                return "", TooLong(place, len(whole), limit)
            lines.append(whole)
        elif kind == "BUTTONS":
            longest = max((len(value) for key, value in values.items() if key.startswith("button.")), default=0)
            if longest > URL_LIMIT:
                return "", TooLong("button", longest, URL_LIMIT)
    return "\n".join(lines), None
