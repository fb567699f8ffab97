"""Files that the API serves to browsers: with an entity tag, and compressed once for clients that read gzip."""

from __future__ import annotations

import gzip
import re
from hashlib import blake2b
from typing import Any

import msgspec
from litestar import Request, Response

_TYPES = {  # Litestar adds the charset to texts
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
}
_COMMENTS = re.compile(rb"^[ ]*(?://[^\n]*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.M)
"""Of our own scripts: those that have their lines to themselves."""
_INDENTATION = re.compile(rb"^[ ]+", re.M)
_PACKED = frozenset({"png"})
"""Kinds that gzip makes no smaller."""


class ServedFile(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str
    etag: str
    compressed: bytes | None = None


def dynamic(body: bytes, kind: str) -> ServedFile:
    """A body that was made for one request."""
    return ServedFile(body, _TYPES[kind], f'W/"{blake2b(body, digest_size=12).hexdigest()}"')


def static(body: bytes, kind: str) -> ServedFile:
    """A body that is the same for everybody."""
    file = dynamic(body, kind)
    if kind in _PACKED:
        return file
    return msgspec.structs.replace(file, compressed=gzip.compress(body, 9, mtime=0))


def static_script(source: bytes) -> ServedFile:
    """A script of ours, without its comments and indentation: those take a sixth of it when it is compressed."""
    return static(_INDENTATION.sub(b"", _COMMENTS.sub(b"", source)), "js")


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding allows gzip: by its name, else by `*`, and not with a weight of zero."""
    weights = {}
    for part in header.lower().split(","):
        name, _, parameters = part.partition(";")
        weight = parameters.partition("q=")[2].strip() or "1"
        weights[name.strip()] = weight.strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))


def serve(request: Request[Any, Any, Any], file: ServedFile, headers: dict[str, str]) -> Response[Any]:
    headers = {**headers, "ETag": file.etag, "Vary": "Accept-Encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(None, status_code=304, headers=headers)
    if file.compressed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
