"""The two public routes with an id in their path: a banner's looks, cacheable, and the click that is counted."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, QueryParameter, SkipValidation

from handbill.banners import examples
from handbill.banners.marks import BOT
from handbill.banners.service import BannersService
from handbill.banners.wire import PublicBanner
from handbill.kit.agents import is_bot

Banners = NamedDependency[SkipValidation[BannersService]]
ClickId = Annotated[str | None, QueryParameter(name="c", min_length=1, max_length=150, description="Names the click.")]
Seen = Annotated[str | None, HeaderParameter(name="If-None-Match", description="The ETag of your copy.")]
Face = Annotated[str | None, QueryParameter(max_length=40, description="One face of an A/B test.")]

_CACHE = "public, max-age=60"


@get(
    "/banner/{banner_id:uuid}",
    operation_id="getPublicBanner",
    tags=["Serving"],
    opt={"public": True, "cors": True, "example": examples.PUBLIC_BANNER},
)
async def looks(banners: Banners, banner_id: FromPath[UUID], variant: Face = None, seen: Seen = None) -> Response[Any]:
    """How a banner looks, the same for everybody: for a CDN or a client to keep. 304 when your copy is still good."""
    found: PublicBanner = await banners.show.public.banner(banner_id, variant)
    tag = f'"v{found.version}"'
    headers = {"ETag": tag, "Cache-Control": _CACHE, "Access-Control-Allow-Origin": "*"}
    headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    if seen is not None and tag in seen:
        return Response(None, status_code=304, headers=headers)
    return Response(msgspec.json.encode(found), media_type="application/json", headers=headers)


@get("/r/{token:str}", operation_id="followBanner", tags=["Serving"], status_code=302, opt={"public": True})
async def follow(
    request: Request[Any, Any, Any], banners: Banners, token: FromPath[str], click_id: ClickId = None
) -> Response[None]:
    """Count a click on a decided banner, once, and go where the banner leads."""
    marks = (BOT,) if is_bot(request.headers.get("user-agent", "")) else ()
    untracked = request.headers.get("dnt") == "1" or request.headers.get("sec-gpc") == "1"
    address = request.scope["state"]["client_ip"]
    target = await banners.show.public.follow(token, click_id, address, marks, untracked=untracked)
    return Response(None, status_code=302, headers={"Location": target, "Cache-Control": "no-store"})


handlers = [looks, follow]
