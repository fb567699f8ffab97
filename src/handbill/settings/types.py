"""Kinds of values that settings have in common, and the marks of those that are never shown."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

SECRET_URL = {"mask": "url"}
"""Marks an address whose password is masked wherever settings are shown."""
SECRET = {"mask": "whole"}
"""Marks a value that is never shown."""
PostgresUrl = Annotated[str, Meta(pattern="^postgres(ql)?://", extra={"begins": "postgresql://"})]
RedisUrl = Annotated[str, Meta(pattern="^(rediss?|unix)://", extra={"begins": "redis://, rediss:// or unix://"})]
HttpUrl = Annotated[str, Meta(pattern="^https?://", extra={"begins": "http:// or https://"})]
HttpsUrl = Annotated[str, Meta(pattern="^https://", extra={"begins": "https://"})]
PublicUrl = Annotated[
    str, Meta(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", max_length=500, extra={"begins": "https:// (or http://)"})
]
"""An address without user, query or fragment."""

LOOPBACK = "127.0.0.1"
Port = Annotated[int, Meta(ge=1, le=65535)]
