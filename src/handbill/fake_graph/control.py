"""The puppeteer's routes, which no real server has: /_control changes the world; /_log, /_state and /_audit show it."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import msgspec
from aiohttp import web

from handbill.fake_graph.audit import audit
from handbill.fake_graph.model import Control, Inbound, Preference
from handbill.fake_graph.templates import change
from handbill.fake_graph.world import World

_PAGE = 100_000


def routes(world: World) -> list[web.RouteDef]:
    pages = Pages(world)
    return [
        web.post("/_control", pages.control),
        web.get("/_log", pages.log),
        web.get("/_state", pages.state),
        web.get("/_audit", pages.audit),
    ]


class Pages:
    def __init__(self, world: World) -> None:
        self._world = world

    async def control(self, request: web.Request) -> web.Response:
        try:
            wanted = msgspec.json.decode(await request.read(), type=Control)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _json({"error": str(error)}, status=400)
        world = self._world
        if wanted.webhook is not None:
            hook = wanted.webhook
            challenge = secrets.token_hex(8)
            if hook.verify_token and not await world.courier.shake_hands(hook.url, hook.verify_token, challenge):
                return _json({"error": "the address did not repeat the challenge; it is not used"}, status=400)
            world.courier.url = hook.url
            world.courier.app_secret = world.courier.app_secret if hook.app_secret is None else hook.app_secret
        self._change(wanted)
        self._tell(wanted)
        if wanted.hurry:
            world.courier.hurry()
        return _json(self._state())

    def _change(self, wanted: Control) -> None:
        world = self._world
        world.ahead_ms += max(wanted.ahead_ms, 0)
        world.faults = wanted.faults or world.faults
        world.courier.skew_ms = world.courier.skew_ms if wanted.skew_ms is None else wanted.skew_ms
        world.all_dead = world.all_dead if wanted.dead is None else wanted.dead
        world.dead_tokens |= set(wanted.kill_tokens)
        world.dead_tokens -= set(wanted.revive_tokens)
        for number in wanted.numbers:
            world.add_number(number)
        for portfolio, tier in (wanted.tiers or {}).items():
            world.portfolio(portfolio).tier = tier
        for waba, templates in wanted.templates.items():
            for template in templates:
                world.add_template(waba, template)
        if one := wanted.template:
            for kept in world.templates.get(one.waba, {}).values():
                if kept.name == one.name and one.language in ("", kept.language):
                    change(world, one.waba, kept, one.status, one.reason)

    def _tell(self, wanted: Control) -> None:
        world, now_ms = self._world, self._world.now_ms()
        for said in wanted.inbound:
            world.written[(said.number, said.sender)] = now_ms
            world.courier.tell(*self._inbound(said, now_ms))
        for wish in wanted.preferences:
            (world.stopped.add if wish.value == "stop" else world.stopped.discard)(wish.address)
            world.courier.tell(*self._preference(wish, now_ms))
        for alert in wanted.alerts:
            world.courier.tell(alert.waba, alert.field, alert.value, now_ms)

    def _value(self, number_id: str, **parts: Any) -> tuple[str, dict[str, Any]]:
        number = self._world.number(number_id)
        metadata = {"display_phone_number": number.display, "phone_number_id": number.id}
        return number.waba, {"messaging_product": "whatsapp", "metadata": metadata, **parts}

    def _inbound(self, said: Inbound, now_ms: int) -> tuple[str, str, dict[str, Any], int]:
        message: dict[str, Any] = {"from": said.sender, "id": self._world.new_wamid()}
        message["timestamp"] = self._world.courier.stamp(now_ms)
        if said.button:
            message |= {"type": "button", "button": {"text": said.button, "payload": said.payload or said.button}}
        else:
            message |= {"type": "text", "text": {"body": said.text}}
        contacts = [{"profile": {"name": said.name}, "wa_id": said.sender}]
        waba, value = self._value(said.number, contacts=contacts, messages=[message])
        return waba, "messages", value, now_ms

    def _preference(self, wish: Preference, now_ms: int) -> tuple[str, str, dict[str, Any], int]:
        one = {"wa_id": wish.address, "category": "marketing_messages", "value": wish.value}
        one |= {"detail": f"User asked to {wish.value} marketing messages", "timestamp": now_ms // 1000}  # type: ignore[dict-item]
        waba, value = self._value(wish.number, user_preferences=[one])
        return waba, "user_preferences", value, now_ms

    async def log(self, request: web.Request) -> web.Response:
        """One JSON object per line, from the line after `after`."""
        after, limit = _int(request.query.get("after"), 0), _int(request.query.get("limit"), _PAGE)
        rows = self._world.log[after : after + min(limit, _PAGE)]
        return web.Response(body=msgspec.json.Encoder().encode_lines(rows), content_type="application/x-ndjson")

    async def audit(self, _: web.Request) -> web.Response:
        """What the log proves, counted from the log alone."""
        portfolios = {number.id: number.portfolio for number in self._world.numbers.values()}
        return _json(audit(self._world.log, portfolios, self._world.config.pair_interval_ms))

    async def state(self, _: web.Request) -> web.Response:
        return _json(self._state())

    def _state(self) -> dict[str, Any]:
        world, courier = self._world, self._world.courier
        return {
            "log": len(world.log),
            "outcomes": Counter(line.outcome for line in world.log),
            "numbers": list(world.numbers),
            "now_ms": world.now_ms(),
            "webhooks": {
                "url": courier.url,
                "pending": courier.pending,
                "told": courier.told,
                "failed": courier.failed,
                "given_up": courier.given_up,
            },
        }


def _int(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 12 else default


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
