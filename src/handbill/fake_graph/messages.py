"""POST /{version}/{number}/messages: the one route that must be fast. Every request ends as one line of the log."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from aiohttp import web

from handbill.fake_graph.dice import ANSWER, CODE, LATE, LATENCY, MISSING, UNREAD, answer_fault, picked_code
from handbill.fake_graph.errors import GraphError, in_webhook
from handbill.fake_graph.model import Number, Outcome, Template
from handbill.fake_graph.world import World

_HOLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_MEDIA = frozenset({"image", "video", "document", "audio", "sticker"})
_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"


class Language(msgspec.Struct):
    code: str


class TemplateBody(msgspec.Struct):
    name: str
    language: Language
    components: list[dict[str, Any]] = []


class SendBody(msgspec.Struct):
    messaging_product: str
    to: str
    type: str = "text"
    text: dict[str, Any] | None = None
    template: TemplateBody | None = None
    image: dict[str, Any] | None = None
    video: dict[str, Any] | None = None
    document: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    sticker: dict[str, Any] | None = None
    interactive: dict[str, Any] | None = None
    biz_opaque_callback_data: str = ""


_decode = msgspec.json.Decoder(SendBody).decode


def routes(world: World) -> list[web.RouteDef]:
    async def send(request: web.Request) -> web.StreamResponse:
        return await _send(world, request)

    return [web.post("/{version}/{number}/messages", send)]


async def _send(world: World, request: web.Request) -> web.StreamResponse:
    number_id = request.match_info["number"]
    raw = await request.read()
    now_ms = world.now_ms()
    to = opaque = ""
    try:
        world.check_token(request.headers, request.query)
        number = world.number(number_id)
        sent = _read(raw)
        to, opaque = sent.to.lstrip("+"), sent.biz_opaque_callback_data
    except GraphError as error:
        world.write(now_ms, number_id, to, opaque, "refused", error.code, "", "")
        return error.response()
    rolls = world.dice.for_message(to, opaque)
    fault = answer_fault(world.faults, rolls[ANSWER])
    try:
        _may_go(world, number, sent, to, now_ms, fault, picked_code(world.faults.codes, rolls[CODE]))
    except GraphError as error:
        world.write(now_ms, number_id, to, opaque, "refused", error.code, "", sent.type)
        await _latency(world, rolls[LATENCY])
        return error.response()
    taken = fault not in ("dropped", "bare_5xx")
    outcome: Outcome = "accepted" if fault is None else "lost" if taken else "dropped"
    wamid = world.new_wamid() if taken else ""
    world.write(now_ms, number_id, to, opaque, outcome, 0, wamid, sent.type)
    if taken:
        _count(world, number, sent, to, now_ms)
        _report(world, number, sent, to, wamid, now_ms, rolls)
    await _latency(world, rolls[LATENCY])
    return _answer(request, sent, fault, wamid)


def _answer(request: web.Request, sent: SendBody, fault: str | None, wamid: str) -> web.Response:
    """The good answer, or whatever the fault makes of it."""
    if fault in ("lost_answer", "dropped"):
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)
    if fault in ("bare_5xx", "bare_5xx_taken"):
        return web.Response(body=_PAGE, status=502, content_type="text/html")
    answer = {
        "messaging_product": "whatsapp",
        "contacts": [{"input": sent.to, "wa_id": sent.to.lstrip("+")}],
        "messages": [{"id": wamid, "message_status": "accepted"}],
    }
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _read(raw: bytes) -> SendBody:
    try:
        sent = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GraphError(100, f"The body cannot be read: {error}") from None
    address = sent.to.removeprefix("+")
    if sent.messaging_product != "whatsapp":
        raise GraphError(100, "messaging_product must be whatsapp")
    if not (address.isascii() and address.isdecimal() and 5 <= len(address) <= 20):
        raise GraphError(100, "Parameter 'to' is not a valid phone number")
    if len(sent.biz_opaque_callback_data) > 512:
        raise GraphError(100, "biz_opaque_callback_data must have at most 512 characters")
    if sent.type not in _MEDIA | {"text", "template", "interactive"} or getattr(sent, sent.type) is None:
        raise GraphError(100, f"Parameter '{sent.type[:40]}' is missing or not supported")
    if sent.type == "text" and not 1 <= len(str((sent.text or {}).get("body") or "")) <= 4096:
        raise GraphError(100, "text.body must have 1 to 4096 characters")
    if sent.type in _MEDIA and not any(getattr(sent, sent.type).get(key) for key in ("id", "link")):
        raise GraphError(131008, f"{sent.type} needs an id or a link")
    return sent


def _may_go(
    world: World, number: Number, sent: SendBody, to: str, now_ms: int, fault: str | None, code: int | None
) -> None:
    """Everything that makes the real server say no, in a fixed order."""
    if fault == "graph_5xx":
        raise GraphError(131000, "Message failed to send due to an unknown error.")
    if fault == "throttled":
        raise GraphError(130429, "Cloud API message throughput has been reached.")
    if code is not None:
        raise GraphError(code)
    if to == number.display:
        raise GraphError(131021)
    template = _template(world, number, sent) if sent.template is not None else None
    open_window = world.window_open(number.id, to, now_ms)
    if template is None and world.config.service_window and not open_window:
        raise GraphError(131047, "More than 24 hours have passed since the recipient last replied.")
    if template is not None and template.category == "MARKETING" and to in world.stopped:
        raise GraphError(131050)
    if world.throughput[number.id].full(now_ms):
        raise GraphError(130429, "Cloud API message throughput has been reached.")
    if world.pairs.full((number.id, to), now_ms):
        raise GraphError(131056, "Too many messages from this phone number to the same phone number.")
    if not open_window and world.portfolio(number.portfolio).full(to, now_ms):
        raise GraphError(world.config.tier_code, "The portfolio's limit of people in 24 hours is reached.")


def _template(world: World, number: Number, sent: SendBody) -> Template:
    wanted = sent.template
    assert wanted is not None
    found = world.templates.get(number.waba, {}).get((wanted.name, wanted.language.code))
    if found is None or found.status not in ("APPROVED", "PAUSED", "DISABLED"):
        raise GraphError(132001, f"template name ({wanted.name[:100]}) does not exist in {wanted.language.code[:20]}")
    if found.status == "PAUSED":
        raise GraphError(132015, "Template is paused due to low quality.")
    if found.status == "DISABLED":
        raise GraphError(132016, "Template has been paused too often and is disabled.")
    for kind in ("HEADER", "BODY"):
        needed = _holes(found, kind)
        given = _given(wanted.components, kind)
        if needed != given:
            raise GraphError(132000, f"{kind.lower()}: number of parameters ({given}) is not the expected ({needed})")
    return found


def _holes(template: Template, kind: str) -> int:
    for component in template.components:
        if str(component.get("type", "")).upper() == kind:
            if kind == "HEADER" and component.get("format", "TEXT") != "TEXT":
                return 1
            return len(set(_HOLE.findall(str(component.get("text", "")))))
    return 0


def _given(components: list[dict[str, Any]], kind: str) -> int:
    for component in components:
        if str(component.get("type", "")).upper() == kind:
            parameters = component.get("parameters")
            return len(parameters) if isinstance(parameters, list) else 0
    return 0


def _count(world: World, number: Number, sent: SendBody, to: str, now_ms: int) -> None:
    world.throughput[number.id].count(now_ms)
    world.pairs.count((number.id, to), now_ms)
    if not world.window_open(number.id, to, now_ms):
        world.portfolio(number.portfolio).count(to, now_ms)


def _report(
    world: World, number: Number, sent: SendBody, to: str, wamid: str, now_ms: int, rolls: tuple[float, ...]
) -> None:
    """Plans the message's webhooks: sent, delivered, read, or a failure; each with a lateness of its own."""
    courier, faults = world.courier, world.faults
    if not courier.url:
        return
    late = picked_code(faults.late_codes, rolls[LATE])
    words = ["failed"] if late is not None else ["sent", "delivered", "read"]
    if rolls[UNREAD] < faults.unread:
        words = [word for word in words if word != "read"]
    elif rolls[MISSING] < faults.delivered_missing:
        words = [word for word in words if word != "delivered"]
    metadata = {"display_phone_number": number.display, "phone_number_id": number.id}
    lateness = world.dice.throw("webhook", wamid)
    for place, word in enumerate(words, 1):
        status: dict[str, Any] = {
            "id": wamid,
            "status": word,
            "timestamp": courier.stamp(now_ms + place * 1000),
            "recipient_id": to,
            "biz_opaque_callback_data": sent.biz_opaque_callback_data,
        }
        if late is not None:
            status["errors"] = [in_webhook(late)]
        value = {"messaging_product": "whatsapp", "metadata": metadata, "statuses": [status]}
        due = now_ms + place * faults.webhook_delay_ms + lateness[place] * faults.webhook_jitter_ms
        courier.tell(number.waba, "messages", value, int(due))
        if lateness[place + 3] < faults.repeated:
            courier.tell(number.waba, "messages", value, int(due + lateness[0] * faults.webhook_jitter_ms))


async def _latency(world: World, roll: float) -> None:
    faults = world.faults
    if faults.latency_ms or faults.jitter_ms:
        await asyncio.sleep((faults.latency_ms + roll * faults.jitter_ms) / 1000)
