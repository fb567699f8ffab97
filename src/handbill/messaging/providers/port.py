"""What the core asks of a provider, and what a provider asks of the core.

`send` never raises for anything the outside did: it says what happened, and above all whether the message may have
arrived. A cancelled `send` has said nothing: whoever recorded the attempt must take it for lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from handbill.messaging.model import (
    Account,
    Channel,
    Credentials,
    Message,
    NumberInfo,
    Outcome,
    Template,
    TokenInfo,
)


class Secrets(Protocol):
    """Opens what `Account.secret` points at. Asked once per call: whoever implements it keeps what it opened."""

    async def credentials(self, account: Account) -> Credentials: ...


class Provider(Protocol):
    """Verbs other than `send` raise: PROVIDER_AWAY and _BUSY pass by themselves, PROVIDER_TOKEN and _REFUSED do not."""

    @property
    def channel(self) -> Channel: ...

    async def open_credentials(self, account: Account) -> None: ...

    async def send(self, account: Account, message: Message) -> Outcome: ...

    async def templates(self, account: Account) -> list[Template]: ...

    async def create_template(
        self,
        account: Account,
        *,
        name: str,
        language: str,
        category: str,
        components: Sequence[dict[str, Any]],
        named: bool = False,
    ) -> Template: ...

    async def delete_template(self, account: Account, name: str) -> None: ...

    async def upload(self, account: Account, data: bytes, *, mime: str, filename: str) -> str: ...

    async def number(self, account: Account) -> NumberInfo: ...

    async def token(self, account: Account) -> TokenInfo: ...

    async def close(self) -> None: ...
