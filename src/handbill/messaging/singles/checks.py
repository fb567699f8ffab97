"""What is refused of a single message, and how it is said. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from handbill.kit.errors import Conflict, Fault, Invalid, Unprocessable
from handbill.messaging import checks
from handbill.messaging.model import Template
from handbill.messaging.render import Binding, TooLong, fill, unsupported, variables
from handbill.messaging.singles.model import NewMessage, TemplateMessage

SENDABLE = "APPROVED"
_REFUSALS = {
    "consent_missing": ("CONSENT_MISSING", "Marketing needs the person's consent on this channel and there is none"),
    "consent_denied": ("CONSENT_DENIED", "The person does not want messages on this channel"),
    "window_closed": (
        "WINDOW_CLOSED",
        "Text is allowed only within 24 hours of the person's own message to the number; use a template",
    ),
}


def key_of(header: str | None, body: str | None) -> str:
    """The key of a request, from its header or its body. Raises Invalid without one, or with two that differ."""
    if header is not None and body is not None and header != body:
        raise Invalid(
            "The header and the body name different idempotency keys; nothing was sent.", code="BAD_IDEMPOTENCY_KEY",
            faults=[Fault("idempotency_key", "differs from the header Idempotency-Key")],
        )  # fmt: skip
    key = header if header is not None else body
    if key is None:
        raise Invalid(
            "A message needs an idempotency key; nothing was sent.", code="BAD_IDEMPOTENCY_KEY",
            faults=[Fault("idempotency_key", "is needed, here or as the header Idempotency-Key")],
        )  # fmt: skip
    if not 1 <= len(key) <= 200 or not key.isascii() or not key.isprintable():
        raise Invalid(
            "The idempotency key must be 1 to 200 printable ASCII characters; nothing was sent.",
            code="BAD_IDEMPOTENCY_KEY",
            faults=[Fault("idempotency_key", "must be 1 to 200 printable ASCII characters")],
        )  # fmt: skip
    return key


def check_request(new: NewMessage) -> None:
    """What the request alone shows."""
    faults: list[Fault] = []
    if (new.to is None) == (new.contact_id is None):
        faults.append(Fault("to", "exactly one of to and contact_id is needed"))
    if (new.template is None) == (new.text is None):
        faults.append(Fault("template", "exactly one of template and text is needed"))
    faults += checks.plain("to", new.to) + checks.plain("text", new.text) + checks.plain("reply_to", new.reply_to)
    if new.template is not None:
        faults += checks.plain("template.name", new.template.name)
        faults += checks.plain("template.language", new.template.language)
        for name, value in new.template.variables.items():
            if found := checks.plain(name, name) + checks.plain(name, value):
                faults.append(Fault("template.variables", found[0].reason))
    checks.refuse(faults, "nothing was sent")


def check_template(template: Template, used: TemplateMessage) -> None:
    if template.state != SENDABLE:
        raise Conflict(
            f"The template {used.name} is {template.state}; nothing was sent.", code="TEMPLATE_NOT_SENDABLE",
            faults=[Fault("template.name", f"is {template.state}")],
        )  # fmt: skip
    if parts := unsupported(template):
        raise Conflict(
            f"The template {used.name} has a part that cannot be filled ({', '.join(parts)}); nothing was sent.",
            code="TEMPLATE_NOT_SENDABLE",
            faults=[Fault("template.name", f"cannot be filled: {part}") for part in parts],
        )  # fmt: skip
    wanted = [variable.key for variable in variables(template)]
    faults = [
        Fault(f"template.variables.{key}", "is missing") for key in wanted if not used.variables.get(key, "").strip()
    ]
    faults += [
        Fault(f"template.variables.{key}", "is no variable of the template")
        for key in used.variables
        if key not in wanted
    ]
    if not faults:
        filled = fill(template, {key: Binding(None, value) for key, value in used.variables.items()}, {})
        if isinstance(filled, TooLong):
            faults = [
                Fault(
                    "template.variables", f"the {filled.place} would have {filled.length} characters of {filled.limit}"
                )
            ]
    if faults:
        raise Unprocessable(
            "The template's variables and the given values differ; nothing was sent.", code="TEMPLATE_VARIABLES",
            faults=faults,
        )  # fmt: skip


def digest_of(new: NewMessage) -> bytes:
    """What makes two requests under one key the same."""
    body = msgspec.structs.replace(new, idempotency_key=None)
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).digest()


def refused(reason: str) -> Conflict | Unprocessable:
    if reason.startswith("suppressed_"):
        code, text = "SUPPRESSED", f"The address is suppressed ({reason.removeprefix('suppressed_')})"
    else:
        code, text = _REFUSALS.get(reason, ("CONFLICT", f"It must not be sent ({reason})"))
    return Conflict(f"{text}; nothing was sent.", code=code)


def no_sender(field: str, reason: str) -> Unprocessable:
    return Unprocessable(
        "The message has no number to be sent from; nothing was sent.", code="SENDER_UNKNOWN",
        faults=[Fault(field, reason)],
    )  # fmt: skip
