"""Where a provider sends its webhooks: the address of each connection and the token that proves a subscription."""

from __future__ import annotations

import hashlib
import hmac
from uuid import UUID

import msgspec

from handbill.kit.public_url import PublicUrl


class Callback(msgspec.Struct, frozen=True):
    """What the provider's app is given, so that it sends webhooks here."""

    url: str
    """The address of the connection's webhook."""
    verify_token: str
    """What to give to the provider beside the address: it proves that the subscription is yours."""


class Callbacks:
    """Made from the installation's secret and its public address; kept nowhere."""

    def __init__(self, verify_key: bytes, public_url: PublicUrl) -> None:
        self._verify_key = verify_key
        self._public_url = public_url

    def path(self, connection_id: UUID) -> str:
        return f"/webhooks/whatsapp/{connection_id}"

    def url_if_set(self, connection_id: UUID) -> str | None:
        return self._public_url.link_if_set(self.path(connection_id))

    def verify_token(self, connection_id: UUID) -> str:
        return hmac.new(self._verify_key, connection_id.bytes, hashlib.sha256).hexdigest()[:40]

    def callback(self, connection_id: UUID) -> Callback:
        """What the provider's app is given. Raises Conflict while the public address is not set."""
        return Callback(self._public_url.link(self.path(connection_id)), self.verify_token(connection_id))
