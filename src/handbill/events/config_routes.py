"""What posthog-js loads by addresses with parts: its configuration, the same for every key, and empty extensions."""

from __future__ import annotations

from typing import Any

from litestar import Response, get
from litestar.params import FromPath

from handbill.events.dialects import posthog_config
from handbill.kit.errors import NotFound

_HEADERS = {
    "Cache-Control": posthog_config.CACHE,
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
_PUBLIC: dict[str, Any] = {"public": True, "cors": True, "open_query": True}


@get(
    "/array/{token:str}/config",
    operation_id="posthogConfig",
    tags=["Events"],
    opt={
        **_PUBLIC,
        "example": {"token": "hbw_...", "supportedCompression": ["gzip", "gzip-js"], "sessionRecording": False},
    },
)
async def config(token: FromPath[str]) -> Response[dict[str, Any]]:
    """Remote configuration for posthog-js: events only. The key is not looked up; every key gets the same reply."""
    _check(token)
    return Response(posthog_config.config(token), media_type="application/json", headers=_HEADERS)  # type: ignore[arg-type]


@get(
    "/array/{token:str}/config.js",
    operation_id="posthogConfigScript",
    tags=["Events"],
    opt=_PUBLIC,
    media_type="text/javascript",
)
async def config_script(token: FromPath[str]) -> Response[bytes]:
    """The same as the script that posthog-js loads first."""
    _check(token)
    return Response(posthog_config.config_script(token), media_type="text/javascript", headers=_HEADERS)


@get(
    "/static/{name:path}",
    operation_id="posthogExtension",
    tags=["Events"],
    opt=_PUBLIC,
    media_type="text/javascript",
)
async def extension(name: FromPath[str]) -> Response[bytes]:
    """An empty script for each extension of posthog-js (surveys, recorder and the like): none of them starts.

    posthog-js itself (`array.js`) is not served: install it with your page.
    """
    if not posthog_config.is_extension(name):
        raise NotFound("There is no such script here. Install posthog-js with your page: it is not served by Handbill.")
    return Response(posthog_config.NO_EXTENSION, media_type="text/javascript", headers=_HEADERS)


def _check(token: str) -> None:
    """Raises NotFound for what no key looks like: it is not repeated in a script."""
    if not posthog_config.is_token(token):
        raise NotFound("There is no configuration here: a key has letters, digits, `_` and `-` only.")


handlers = [config, config_script, extension]
