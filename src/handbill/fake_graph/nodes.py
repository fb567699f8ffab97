"""Smaller objects: a phone number's card, an account's numbers, uploaded media, and what a token is good for."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from aiohttp import BodyPartReader, web

from handbill.fake_graph.errors import GraphError
from handbill.fake_graph.model import Number
from handbill.fake_graph.world import World

MEDIA_LIMIT = 100 * 1024 * 1024
_TIERS = {250: "TIER_250", 1_000: "TIER_1K", 2_000: "TIER_2K", 10_000: "TIER_10K", 100_000: "TIER_100K"}


def routes(world: World) -> list[web.RouteDef]:
    pages = Pages(world)
    return [
        web.get("/debug_token", pages.debug_token),
        web.get("/{version}/debug_token", pages.debug_token),
        web.post("/{version}/{number}/media", pages.upload),
        web.get("/{version}/{waba}/phone_numbers", pages.numbers),
        web.post("/{version}/{waba}/subscribed_apps", pages.subscribe),
        web.get(r"/{version}/{node:\d+}", pages.node),
        web.delete(r"/{version}/{node:\d+}", pages.forget),
    ]


class Pages:
    def __init__(self, world: World) -> None:
        self._world = world

    async def node(self, request: web.Request) -> web.Response:
        self._world.check_token(request.headers, request.query)
        node = request.match_info["node"]
        if media := self._world.media.get(node):
            return _json(media)
        return _json(self._card(self._world.number(node)))

    async def forget(self, request: web.Request) -> web.Response:
        self._world.check_token(request.headers, request.query)
        if self._world.media.pop(request.match_info["node"], None) is None:
            raise GraphError(100, "No such media.", subcode=33)
        return _json({"success": True})

    async def numbers(self, request: web.Request) -> web.Response:
        self._world.check_token(request.headers, request.query)
        waba = request.match_info["waba"]
        if waba not in self._world.templates:
            raise GraphError(100, f"Object with ID '{waba}' does not exist.", subcode=33)
        return _json({"data": [self._card(one) for one in self._world.numbers.values() if one.waba == waba]})

    async def subscribe(self, request: web.Request) -> web.Response:
        self._world.check_token(request.headers, request.query)
        if request.match_info["waba"] not in self._world.templates:
            raise GraphError(100, "No such account.", subcode=33)
        return _json({"success": True})

    async def upload(self, request: web.Request) -> web.Response:
        """Only the file's size and digest are kept."""
        self._world.check_token(request.headers, request.query)
        self._world.number(request.match_info["number"])
        if not request.content_type.startswith("multipart/"):
            raise GraphError(100, "A multipart body is needed.")
        fields: dict[str, str] = {}
        kept: dict[str, object] = {}
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise GraphError(100, "Nested multipart bodies are not read.")
            if part.name == "file":
                kept = await _digested(part)
            else:
                fields[str(part.name)] = (await part.read()).decode("utf-8", "replace")
        if fields.get("messaging_product") != "whatsapp" or not kept:
            raise GraphError(100, "messaging_product and file are needed.")
        kept["mime_type"] = fields.get("type") or kept["mime_type"]
        media_id = self._world.new_id()
        self._world.media[media_id] = {"id": media_id, "messaging_product": "whatsapp", **kept}
        return _json({"id": media_id})

    async def debug_token(self, request: web.Request) -> web.Response:
        self._world.check_token(request.headers, request.query)
        asked = request.query.get("input_token", "")
        world = self._world
        dead = world.all_dead or asked in world.dead_tokens
        valid = bool(asked) and not dead and (not world.config.tokens or asked in world.config.tokens)
        scopes = ["whatsapp_business_management", "whatsapp_business_messaging"]
        data: dict[str, Any] = {"app_id": "600000000000001", "type": "SYSTEM_USER", "is_valid": valid}
        data |= {"expires_at": world.config.token_ends.get(asked, 0), "scopes": scopes if valid else []}
        data["data_access_expires_at"] = world.config.data_access_ends.get(asked, 0)
        if not valid:
            data["error"] = {"code": 190, "subcode": 463, "message": "The access token is not valid."}
        return _json({"data": data})

    def _card(self, number: Number) -> dict[str, Any]:
        tier = self._world.portfolio(number.portfolio).tier
        level = "HIGH" if number.per_second > 80 else "STANDARD"
        return {
            "id": number.id,
            "display_phone_number": f"+{number.display}",
            "verified_name": number.name,
            "quality_rating": number.quality,
            "throughput": {"level": level},
            "messaging_limit_tier": "TIER_UNLIMITED" if tier is None else _TIERS.get(tier, f"TIER_{tier}"),
        }


async def _digested(part: BodyPartReader) -> dict[str, object]:
    digest, size = hashlib.sha256(), 0
    while chunk := await part.read_chunk(65_536):
        size += len(chunk)
        if size > MEDIA_LIMIT:
            raise GraphError(131052, "The file is too large.", status=400)
        digest.update(chunk)
    mime = part.headers.get("Content-Type", "application/octet-stream")
    return {"sha256": digest.hexdigest(), "file_size": size, "mime_type": mime}


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
