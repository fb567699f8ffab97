"""A GeoIP file as small as they come: MaxMind's format, IPv4 networks, one country each."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

_MARK = b"\xab\xcd\xefMaxMind.com"


def mmdb(countries: Mapping[str, str]) -> bytes:
    """The file for these networks (`10.0.0.0/8`: `NL`)."""
    tree: list[list[int | str | None]] = [[None, None]]
    for network, country in countries.items():
        _plant(tree, ipaddress.IPv4Network(network), country)
    data, offsets = bytearray(), {}
    for country in sorted(set(countries.values())):
        offsets[country] = len(data)
        data += _map({"country": _map({"iso_code": _text(country)})})
    count = len(tree)
    nodes = bytearray()
    for pair in tree:
        for side in pair:
            record = count if side is None else side if isinstance(side, int) else count + 16 + offsets[side]
            nodes += record.to_bytes(3, "big")
    about = _map(
        {
            "node_count": _number(count),
            "record_size": _number(24),
            "ip_version": _number(4),
            "database_type": _text("Test-Country"),
            "languages": bytes((0x00, 0x04)),
            "binary_format_major_version": _number(2),
            "binary_format_minor_version": _number(0),
            "build_epoch": _number(1_700_000_000),
            "description": _map({}),
        }
    )
    return bytes(nodes) + bytes(16) + bytes(data) + _MARK + about


def _plant(tree: list[list[int | str | None]], network: ipaddress.IPv4Network, country: str) -> None:
    bits = int(network.network_address)
    node = 0
    for depth in range(network.prefixlen):
        side = bits >> (31 - depth) & 1
        if depth == network.prefixlen - 1:
            tree[node][side] = country
            return
        following = tree[node][side]
        if not isinstance(following, int):
            tree.append([None, None])
            following = tree[node][side] = len(tree) - 1
        node = following


def _text(value: str) -> bytes:
    return bytes((0x40 | len(value),)) + value.encode()


def _number(value: int) -> bytes:
    raw = value.to_bytes(4, "big").lstrip(b"\0")
    return bytes((0xC0 | len(raw),)) + raw


def _map(fields: Mapping[str, bytes]) -> bytes:
    return bytes((0xE0 | len(fields),)) + b"".join(_text(name) + value for name, value in fields.items())
