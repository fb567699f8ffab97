"""Tokens by reference: sealed for one tenant and one place, opened for a while."""

from __future__ import annotations

import pytest

from handbill.kit.errors import Broken
from handbill.messaging.model import Account, Credentials
from handbill.messaging.providers.graph import BASE_URL, VERSION
from handbill.messaging.providers.vault import Vault
from handbill.settings import Settings
from handbill.settings.model import Tenants
from handbill.tenants.seals import Sealer
from handbill.wiring import providers
from tests.kit.graph import NUMBER, WABA, StillClock

ACCOUNT = Account(1, NUMBER, WABA, "whatsapp/1")
SECRET = Credentials("token-1", "app-secret")


class Rows:
    """The core's table: sealed bytes by tenant."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.reads = 0

    async def load(self, account: Account) -> bytes:
        self.reads += 1
        return self.kept[account.tenant_id]


async def test_a_token_is_sealed_opened_remembered_and_renewed() -> None:
    rows, clock = Rows(), StillClock()
    vault = Vault(Sealer(b"k" * 32), rows.load, clock)
    rows.kept[1] = vault.sealed(1, ACCOUNT.secret, SECRET)
    assert b"token-1" not in rows.kept[1]
    assert await vault.credentials(ACCOUNT) == SECRET
    rows.kept[1] = vault.sealed(1, ACCOUNT.secret, Credentials("token-2"))
    assert (await vault.credentials(ACCOUNT)).token == "token-1"
    clock.ms += 30_000
    assert (await vault.credentials(ACCOUNT)).token == "token-2"
    assert rows.reads == 2
    vault.forget(1, ACCOUNT.secret)
    await vault.credentials(ACCOUNT)
    assert rows.reads == 3


async def test_bytes_moved_to_another_tenant_do_not_open() -> None:
    rows = Rows()
    vault = Vault(Sealer(b"k" * 32), rows.load, StillClock())
    rows.kept[2] = vault.sealed(1, ACCOUNT.secret, SECRET)
    with pytest.raises(Broken) as caught:
        await vault.credentials(Account(2, NUMBER, WABA, ACCOUNT.secret))
    assert caught.value.code == "SEAL_BROKEN"


async def test_the_wiring_builds_both() -> None:
    settings = Settings(tenants=Tenants(seal_key="x" * 32))
    assert (settings.messaging.graph_url, settings.messaging.graph_version) == (BASE_URL, VERSION)
    vault = providers.vault(settings, Rows().load, StillClock())
    whatsapp = providers.whatsapp(settings, vault)
    assert whatsapp.channel == "whatsapp"
    await whatsapp.close()
