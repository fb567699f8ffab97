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
from handbill.kit.agents import is_bot

Banners = NamedDependency[SkipValidation[BannersService]]
ClickId = Annotated[
    str | None, QueryParameter(name="c", description="Names the click, by its first 150 characters; empty: no name.")
]
Anonymous = Annotated[
    str | None, QueryParameter(name="anonymous", description="With any value: count it for nobody, without a session.")
]
Seen = Annotated[str | None, HeaderParameter(name="If-None-Match", description="The ETag of your copy.")]
Face = Annotated[str | None, QueryParameter(max_length=40, description="One face of an A/B test.")]


@get(
    "/banner/{banner_id:uuid}",
    operation_id="getPublicBanner",
    tags=["Serving"],
    opt={"public": True, "cors": True, "example": examples.PUBLIC_BANNER},
)
async def looks(
    request: Request[Any, Any, Any],
    banners: Banners,
    banner_id: FromPath[UUID],
    variant: Face = None,
    seen: Seen = None,
) -> Response[Any]:
    """How a banner that is shown now looks, the same for everybody: for a CDN or a client to keep, for a minute and
    never past its end. 304 when your copy is still good; 404 while it is switched off or outside its dates. To look at
    one that is not shown, read `GET /admin/banners/{banner_id}` with a key."""
    found, keep_s = await banners.show.public.banner(banner_id, variant, request.scope["state"]["client_ip"])
    tag = f'"v{found.version}"'
    headers = {"ETag": tag, "Cache-Control": f"public, max-age={keep_s}", "Access-Control-Allow-Origin": "*"}
    headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    if seen is not None and tag in seen:
        return Response(None, status_code=304, headers=headers)
    return Response(msgspec.json.encode(found), media_type="application/json", headers=headers)


@get(
    "/r/{token:str}",
    operation_id="followBanner",
    tags=["Serving"],
    status_code=302,
    opt={"public": True, "open_query": True},
)
async def follow(
    request: Request[Any, Any, Any],
    banners: Banners,
    token: FromPath[str],
    click_id: ClickId = None,
    anonymous: Anonymous = None,
) -> Response[None]:
    """Count a click on a decided banner, once, and go where the banner leads, also when the link is too old to count.

    HEAD counts nothing: programs that check links ask so."""
    marks = (BOT,) if is_bot(request.headers.get("user-agent", "")) else ()
    untracked = request.headers.get("dnt") == "1" or request.headers.get("sec-gpc") == "1"
    address = request.scope["state"]["client_ip"]
    target = await banners.show.public.follow(
        token,
        click_id,
        address,
        marks,
        untracked=untracked,
        anonymous=anonymous is not None,
        counts=request.method != "HEAD",
    )
    headers = {"Location": target, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return Response(None, status_code=302, headers=headers)


handlers = [looks, follow]
