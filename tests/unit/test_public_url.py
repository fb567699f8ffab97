"""Links that leave the installation begin with its public address, and are refused by name without one."""

from __future__ import annotations

import json
from uuid import UUID

import msgspec
import pytest

from handbill.banners.plan import CLICKS, Face
from handbill.kit.errors import Conflict
from handbill.kit.public_url import PublicUrl
from handbill.messaging.callbacks import Callbacks
from handbill.ops.doctor import public_url
from handbill.settings import Settings, replace
from handbill.settings.model import Api
from tests.unit.test_ranking import banner

CONNECTION = UUID("0190163d-8694-739b-aea5-966c26f8ad92")
HERE = "https://ads.example.com"


def test_a_link_without_a_public_address_is_refused_by_the_settings_name() -> None:
    nowhere = PublicUrl(None)
    with pytest.raises(Conflict) as error:
        nowhere.link("/r/x")
    assert error.value.code == "PUBLIC_URL_UNSET"
    assert "HANDBILL_API__PUBLIC_URL" in error.value.detail
    assert nowhere.link_if_set("/r/x") is None
    assert nowhere.link_or_path("/r/x") == "/r/x"
    assert PublicUrl(HERE + "/").link("/r/x") == f"{HERE}/r/x"


def test_callbacks_are_whole_addresses() -> None:
    callbacks = Callbacks(b"k" * 32, PublicUrl(f"{HERE}/ads"))
    found = callbacks.callback(CONNECTION)
    assert found.url == f"{HERE}/ads/webhooks/whatsapp/{CONNECTION}"
    assert found.verify_token == callbacks.verify_token(CONNECTION)
    with pytest.raises(Conflict, match="HANDBILL_API__PUBLIC_URL"):
        Callbacks(b"k" * 32, PublicUrl(None)).callback(CONNECTION)


@pytest.mark.parametrize("clicks", [CLICKS, f"{HERE}/r/"])
def test_links_for_clicks_begin_with_the_public_address(clicks: str) -> None:
    shown = msgspec.structs.replace(banner(1), cta_link="https://shop.example/sale")
    written = json.loads(Face(shown, None, None, clicks).written(b"TOKEN", b"2026-01-01T00:00:00Z"))
    assert written["click_url"] == f"{clicks}TOKEN"


@pytest.mark.parametrize(
    ("url", "status"),
    [
        (None, "warn"), (HERE, "ok"), ("http://ads.example.com", "fail"), ("http://127.0.0.1:8080", "warn"),
        ("https://intranet", "warn"),
    ],
)  # fmt: skip
def test_the_doctor_looks_at_the_public_address(url: str | None, status: str) -> None:
    found = public_url(replace(Settings(), {"api.public_url": url}))
    assert found.status == status
    assert (found.advice == "") == (status == "ok")


@pytest.mark.parametrize("url", ["ads.example.com", "https://", "https://a@b.example", f"{HERE}/?x=1", f"{HERE}#x"])
def test_the_setting_takes_addresses_only(url: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"public_url": url}, Api)
