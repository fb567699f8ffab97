"""The script that pages load, the vectors for writers of other clients, and a small shop that shows both at work.

Everything here is public and the same for everybody, save the demo tenant's publishable key on the demo page. No page
of ours loads anything from another server.
"""

from __future__ import annotations

import html
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from handbill.api.served_files import dynamic, serve, static, static_script
from handbill.kit.errors import NotFound

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'"
_FOR_ALL = {"Cross-Origin-Resource-Policy": "cross-origin", "Access-Control-Allow-Origin": "*"}
"""Shops on other sites load the script; without this line their browsers would not let them."""
_SHORT = "public, max-age=300"
"""Five minutes: so long may pages run yesterday's script after an upgrade."""

_PUBLIC: dict[str, Any] = {"public": True, "open_query": True}


class Shop(msgspec.Struct, frozen=True):
    """What the page needs of the demo tenant. The file in the home knows more, and that stays there."""

    write_key: str
    placement_id: str


def handlers(home: Path, *, with_demo: bool) -> list[HTTPRouteHandler]:
    """The routes, for an installation whose home may hold a demo tenant's keys; without the demo shop if unwanted."""
    parts = {path.name: static(path.read_bytes(), path.suffix[1:]) for path in _files("api", "static")}
    shell = parts.pop("demo.html").body.decode()
    ours = {path.name: path.read_bytes() for path in _files("client", "") if path.name.endswith((".js", ".json"))}
    script_page = static_script(ours["handbill.js"])
    vectors_page = static(ours["vectors.json"], "json")

    @get("/handbill.js", operation_id="script", tags=["Client"], opt=_PUBLIC, media_type="text/javascript")
    async def script(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The client for pages: decides, shows, counts. Load it with a script tag."""
        return serve(request, script_page, {**_FOR_ALL, "Cache-Control": _SHORT})

    @get(
        "/handbill/vectors.json",
        operation_id="vectors",
        tags=["Client"],
        opt={**_PUBLIC, "example": {"version": 1}},
    )
    async def vectors(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        """What a client must do, as examples, for writers of other clients."""
        return serve(request, vectors_page, {**_FOR_ALL, "Cache-Control": _SHORT})

    @get("/demo", operation_id="demo", tags=["Client"], opt=_PUBLIC, media_type="text/html")
    async def demo(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A small shop with one slot for banners, and beside it what happens and why."""
        made = dynamic(_furnished(shell, kept(home)).encode(), "html")
        return serve(request, made, {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"})

    @get("/demo/{name:str}", operation_id="demoPart", tags=["Client"], opt=_PUBLIC, media_type="image/svg+xml")
    async def part(request: Request[Any, Any, Any], name: Annotated[FromPath[str], "a file"]) -> Response[bytes]:
        """A picture, style sheet or script of the demo shop."""
        found = parts.get(name)
        if found is None:
            raise NotFound("The demo shop has no such file.")
        return serve(request, found, {"Cache-Control": _SHORT})

    return [script, vectors, demo, part] if with_demo else [script, vectors]


def kept(home: Path) -> Shop | None:
    """The demo tenant, where `handbill up` made one."""
    try:
        return msgspec.json.decode((home / "secrets" / "demo.json").read_bytes(), type=Shop)
    except (OSError, msgspec.DecodeError):
        return None


def _furnished(shell: str, shop: Shop | None) -> str:
    known = shop or Shop("", "")
    return shell.replace("{write_key}", html.escape(known.write_key)).replace(
        "{placement}", html.escape(known.placement_id)
    )


def _files(room: str, folder: str) -> list[Path]:
    """The plain files of a folder in a room; they travel in the wheel beside the code."""
    place = files(f"handbill.{room}").joinpath(folder) if folder else files(f"handbill.{room}")
    return [Path(str(entry)) for entry in place.iterdir() if entry.is_file()]
