"""Which URL is for whom. One owner URL is enough: the two plain roles log in with passwords derived from it."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

APP_ROLE = "handbill_app"
WORKER_ROLE = "handbill_worker"


class PostgresUrls(msgspec.Struct, frozen=True):
    """`pooled`: the app and worker URLs lead to a pooler, which forgets what belongs to a session.

    `prepared`: they keep named statements all the same; not so behind PgBouncer before 1.21.
    """

    owner: str
    app: str
    worker: str
    direct: str
    pooled: bool = False
    prepared: bool = True

    def __repr__(self) -> str:
        return f"PostgresUrls(owner={masked(self.owner)!r}, app={masked(self.app)!r}, worker={masked(self.worker)!r})"


def derive(
    owner: str,
    *,
    app: str | None = None,
    worker: str | None = None,
    direct: str | None = None,
    prepared: bool | None = None,
) -> PostgresUrls:
    """Fill in what was not given. A given app or worker URL counts as a pooler's unless `prepared` says otherwise."""
    pooled = app is not None or worker is not None
    return PostgresUrls(
        owner=owner,
        app=app or as_role(owner, APP_ROLE),
        worker=worker or as_role(owner, WORKER_ROLE),
        direct=direct or as_role(owner, WORKER_ROLE),
        pooled=pooled,
        prepared=not pooled if prepared is None else prepared,
    )


def role_password(owner_url: str, role: str) -> str | None:
    """The role's password, or None where the owner has none (trust or peer authentication)."""
    password = urlsplit(owner_url).password
    if not password:
        return None
    secret = unquote(password).encode()
    return hmac.new(secret, f"handbill-role:{role}".encode(), hashlib.sha256).hexdigest()


def as_role(owner_url: str, role: str) -> str:
    """The owner's URL with the role's name and derived password in place of the owner's."""
    parts = urlsplit(owner_url)
    password = role_password(owner_url, role)
    login = quote(role, safe="") + (f":{password}" if password else "")
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{login}@{host}"))


def masked(url: str) -> str:
    """The URL as it may be printed: the password is left out."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    login, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login.partition(':')[0]}:***@{host}"))
