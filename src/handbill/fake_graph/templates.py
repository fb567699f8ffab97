"""Message templates: list, create, edit, delete; a new one is looked at and approved after a while."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import msgspec
from aiohttp import web

from handbill.fake_graph.errors import GraphError
from handbill.fake_graph.model import Template
from handbill.fake_graph.world import World

_NAME = re.compile(r"[a-z0-9_]{1,512}")
_MOST = 250


class NewTemplate(msgspec.Struct):
    name: str
    language: str
    category: str
    components: list[dict[str, Any]]
    parameter_format: str = "POSITIONAL"


def routes(world: World) -> list[web.RouteDef]:
    pages = Pages(world)
    return [
        web.get("/{version}/{waba}/message_templates", pages.listed),
        web.post("/{version}/{waba}/message_templates", pages.create),
        web.delete("/{version}/{waba}/message_templates", pages.delete),
    ]


class Pages:
    def __init__(self, world: World) -> None:
        self._world = world

    def _of(self, request: web.Request) -> dict[tuple[str, str], Template]:
        self._world.check_token(request.headers, request.query)
        waba = request.match_info["waba"]
        found = self._world.templates.get(waba)
        if found is None:
            raise GraphError(100, f"Object with ID '{waba}' does not exist.", subcode=33)
        return found

    async def listed(self, request: web.Request) -> web.Response:
        templates = sorted(self._of(request).values(), key=lambda one: one.id)
        query = request.query
        for field in ("name", "language", "status", "category"):
            if wanted := query.get(field):
                templates = [one for one in templates if getattr(one, field) == wanted]
        limit = min(max(_int(query.get("limit"), 25), 1), _MOST)
        after = _place(query.get("after"))
        page = templates[after : after + limit]
        answer: dict[str, Any] = {"data": [_shown(one) for one in page]}
        if page:
            answer["paging"] = {"cursors": {"before": _cursor(after), "after": _cursor(after + len(page))}}
            if after + len(page) < len(templates):
                answer["paging"]["next"] = f"{request.url.with_query(None)}?after={_cursor(after + len(page))}"
        return _json(answer)

    async def create(self, request: web.Request) -> web.Response:
        templates = self._of(request)
        try:
            new = msgspec.json.decode(await request.read(), type=NewTemplate)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise GraphError(100, f"The body cannot be read: {error}") from None
        if not _NAME.fullmatch(new.name):
            raise GraphError(100, "name: small letters, digits and underscores only")
        if not any(str(part.get("type", "")).upper() == "BODY" for part in new.components):
            raise GraphError(100, "components need a BODY")
        if (new.name, new.language) in templates:
            raise GraphError(100, "There is already content in this language for this template.", subcode=2388024)
        waba = request.match_info["waba"]
        made = Template(
            id=self._world.new_id(),
            name=new.name,
            language=new.language,
            category=new.category,
            status="PENDING",
            components=new.components,
            parameter_format=new.parameter_format,
        )
        self._world.add_template(waba, made)
        asyncio.get_running_loop().call_later(self._world.config.approve_after_ms / 1000, self._approve, waba, made)
        return _json({"id": made.id, "status": made.status, "category": made.category})

    async def delete(self, request: web.Request) -> web.Response:
        templates = self._of(request)
        name, template_id = request.query.get("name"), request.query.get("hsm_id")
        gone = [
            key for key, one in templates.items() if one.name == name and (template_id is None or one.id == template_id)
        ]
        if not gone:
            raise GraphError(100, "No such template.", subcode=2593002)
        for key in gone:
            del templates[key]
        return _json({"success": True})

    def _approve(self, waba: str, made: Template) -> None:
        if made.status == "PENDING":
            change(self._world, waba, made, "APPROVED", "NONE")


def change(world: World, waba: str, template: Template, status: str, reason: str) -> None:
    """A template's new state, and the webhook that says so."""
    template.status = status
    value = {
        "event": status,
        "message_template_id": int(template.id),
        "message_template_name": template.name,
        "message_template_language": template.language,
        "reason": reason,
    }
    world.courier.tell(waba, "message_template_status_update", value, world.now_ms())


def _shown(template: Template) -> dict[str, Any]:
    return {
        "id": template.id,
        "name": template.name,
        "language": template.language,
        "status": template.status,
        "category": template.category,
        "parameter_format": template.parameter_format,
        "components": template.components,
    }


def _int(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else default


def _cursor(place: int) -> str:
    return base64.urlsafe_b64encode(str(place).encode()).decode().rstrip("=")


def _place(cursor: str | None) -> int:
    if not cursor:
        return 0
    try:
        return int(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        raise GraphError(100, "Invalid cursors values") from None


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
