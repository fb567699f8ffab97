"""Which addresses are public, which URLs may be called, and which settings may name an address inside."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given

from handbill.infra.safe_http import HttpPolicy, is_public_address
from handbill.kit.errors import Invalid
from handbill.settings import load
from handbill.wiring.house import House
from tests.kit.sockets import LOCAL, PUBLIC, inside

EMBEDDINGS = {
    "mapped": "::ffff:0:0",
    "compatible": "::",
    "translated": "::ffff:0:0:0",
    "NAT64": "64:ff9b::",
    "NAT64 of a network": "64:ff9b:1::",
    "ISATAP": "2606:4700::5efe:0:0",
    "ISATAP, unique": "2606:4700::200:5efe:0:0",
    "ISATAP, link-local": "fe80::5efe:0:0",
}


@given(inside)
def test_an_address_inside_stays_inside_in_every_form_of_ipv6(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    forms = {name: ipaddress.IPv6Address(prefix) + number for name, prefix in EMBEDDINGS.items()}
    forms["6to4"] = ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1)
    forms["Teredo server"] = ipaddress.IPv6Address(0x20010000 << 96 | number << 64 | 1)
    forms["Teredo client"] = ipaddress.IPv6Address(0x20010000 << 96 | (number ^ 0xFFFFFFFF))
    assert not is_public_address(str(address))
    assert [name for name, form in forms.items() if is_public_address(str(form))] == []


def test_which_addresses_are_public() -> None:
    public = (PUBLIC, "1.1.1.1", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d70e", "::ffff:93.184.215.14")
    assert [address for address in public if not is_public_address(address)] == []
    others = (
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "203.0.113.9", "192.88.99.1", "::",
        "::1", "fe80::1%eth0", "2606:4700::1%eth0", "fd00:ec2::254", "ff02::1", "2001:db8::1", "3fff::1",
        "5f00::1", "2001:2::1", "100::1", "", "x", "example.com", "127.1", "１２７.０.０.１",
    )  # fmt: skip
    assert [address for address in others if is_public_address(address)] == []


REFUSED = (
    "http://example.com/", "https://user:pw@example.com/", "https://user@example.com/", "https://example.com:22/",
    "https://example.com:x/", "https://", "https:///x", "//example.com/", "example.com", "", "ftp://example.com/",
    "https://a..b/", "https://.example.com/", "https://example.com./", "https://exa mple.com/",
    "https://example.com/\r\nx", "https://[::1/", "https://example.com\\x", "https://1.2.3/", "https://1.2.3.4.5/",
    "https://example.com:99999/", f"https://{'a' * 64}.example.com/", f"https://{'a.' * 127}com/",
    "https://ex%61mple.com/",
)  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_urls_that_are_refused_by_their_spelling(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        HttpPolicy().check(url)
    assert refused.value.code == "OUTGOING_REFUSED"


def test_urls_that_are_allowed() -> None:
    hosts = {
        "https://example.com/keys.json?a=b#c": "example.com",
        "https://EXAMPLE.com:8443": "example.com",
        "https://bücher.example/": "xn--bcher-kva.example",
        "https://my_shop-1.example/": "my_shop-1.example",
        f"https://{PUBLIC}/": PUBLIC,
        "https://[2606:4700::1111]/": "2606:4700::1111",
    }
    assert {url: HttpPolicy().check(url).raw_host for url in hosts} == hosts
    assert LOCAL.check("http://127.0.0.1:9400/").port == 9400


# --- addresses in the settings


@pytest.mark.parametrize(
    "setting", ["HANDBILL_MESSAGING__GRAPH_URL", "HANDBILL_ADSTATS__META_URL", "HANDBILL_BANNERS__GEO_URL"]
)
def test_a_setting_that_leads_inside_is_refused_by_its_name(setting: str, tmp_path: Path) -> None:
    insecure = setting.removesuffix("_URL") + "_INSECURE"
    engines = {
        "HANDBILL_HOME": str(tmp_path),
        "HANDBILL_POSTGRES__URL": "postgresql://a@127.0.0.1/a",
        "HANDBILL_REDIS__URL": "redis://127.0.0.1",
        "HANDBILL_CLICKHOUSE__URL": "http://127.0.0.1:8123",
        "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
    }
    for url in ("http://example.com", "https://10.0.0.1:9400", "https://１０.０.０.１", "http://127.0.0.1.example.com"):
        with pytest.raises(Invalid, match=f"{setting} .*{insecure}") as refused:
            House(load({**engines, setting: url}))
        assert refused.value.code == "SETTINGS_INVALID"
        House(load({**engines, setting: url, insecure: "true"}))
    for url in ("http://127.0.0.1:9400", "http://localhost:9400", "http://[::1]:9400"):  # the operator's own machine
        House(load({**engines, setting: url}))
