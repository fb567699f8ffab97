"""redis://, rediss:// (TLS) and unix:// URLs."""

from __future__ import annotations

import ssl
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from handbill.kit.errors import Broken


class Address(msgspec.Struct, frozen=True):
    """Where Redis is and how to log in. Its text shows no password."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    user: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    cluster_allowed: bool = False
    """For tests of keys and scripts on one node of a cluster. An installation is refused there: see line.connect."""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}/{self.db}"

    def __repr__(self) -> str:
        return f"Address({self})"

    def handshake(self, name: str) -> list[tuple[str, ...]]:
        """What a fresh connection says first."""
        commands: list[tuple[str, ...]] = []
        if self.password is not None:
            commands.append(("AUTH", self.user, self.password) if self.user else ("AUTH", self.password))
        if self.db:
            commands.append(("SELECT", str(self.db)))
        commands.append(("CLIENT", "SETNAME", name))
        commands.append(("PING",))
        return commands

    def ssl_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.tls else None


def parse(url: str) -> Address:
    parts = urlsplit(url)
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    try:
        if parts.scheme == "unix":
            db = int(parse_qs(parts.query).get("db", ["0"])[0])
            return Address(path=unquote(parts.path), user=user, password=password, db=db)
        if parts.scheme in ("redis", "rediss"):
            return Address(
                host=parts.hostname or "127.0.0.1",
                port=parts.port or 6379,
                user=user,
                password=password,
                db=int(parts.path.strip("/") or 0),
                tls=parts.scheme == "rediss",
            )
    except ValueError as error:
        raise Broken(f"The Redis URL is not valid: {error}", code="REDIS_URL") from error
    raise Broken(
        f"The Redis URL must start with redis://, rediss:// or unix://, not {parts.scheme}://", code="REDIS_URL"
    )
