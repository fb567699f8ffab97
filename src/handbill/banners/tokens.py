"""Decision tokens: encrypted notes of what was decided for whom and when, which come back with views and clicks.

    token  = base64url( version 0x20 (1)  synthetic IV (16)  ciphertext )        AES-256-SIV, RFC 5297
    clear  = tenant (4)  banner (4)  placement or 0 (4)  campaign or 0 (4)  decided at, ms (8)  good for, s (4)
             lease or 0 (4)  flags (1)  device type (1)  country or zeros (2)  length of user (2)  of session (2)
             user  session  variant (rest)

The key belongs to the installation. Nobody without it can read a token, make one or change one: a link or a log names
no person. There is no nonce: equal notes give equal tokens, and different notes different ones, however many processes
write them. Tokens of earlier releases (0x10) were signed, not encrypted, and know the user's digest only; they are
read as before.
"""

from __future__ import annotations

import hmac
from binascii import a2b_base64, b2a_base64
from hashlib import blake2b
from struct import Struct

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from handbill.kit.bounds import DECISION_TOKEN_MAX

_SEALED = b"\x20"
_IV = 16
_DECIDED = Struct(">IIIIQII")
_PERSON = Struct(">BB2sHH")
_CLEAR = _DECIDED.size + _PERSON.size
_PROVED = 0x01
_DEVICES = (None, "mobile", "tablet", "desktop")
_DEVICE_CODES = {device: code for code, device in enumerate(_DEVICES)}
_NO_COUNTRY = b"\0\0"

_SIGNED = Struct(">BIIIQI8sI")
_SIGNED_VERSION = 0x10
_MAC = 17

_SAFE = bytes.maketrans(b"+/", b"-_")
_PLAIN = bytes.maketrans(b"-_", b"+/")


class Token(msgspec.Struct, frozen=True):
    """What a good token says. `proved`: the user of the decision was known by the tenant's own token."""

    tenant_id: int
    banner_id: int
    placement_id: int | None
    variant: str | None
    decided_ms: int
    expires_ms: int
    user: bytes
    """The user's digest, as `Tokens.user` makes it."""
    proved: bool
    lease: int
    name: str
    """The same for every spelling of the same token."""
    user_id: str | None = None
    """None in a token of an earlier release, as are the session, the device type, the country and the campaign."""
    session_id: str | None = None
    device_type: str | None = None
    country: str | None = None
    campaign_id: int | None = None


class Tokens:
    def __init__(self, key: bytes, *, ttl_s: int = 86_400) -> None:
        self._cipher = AESSIV(blake2b(key, person=b"handbill-sealed", digest_size=64).digest())
        self._signing_key = blake2b(key, person=b"handbill-token", digest_size=64).digest()
        users = blake2b(key, person=b"handbill-user", digest_size=32).digest()
        self._users = blake2b(digest_size=8, key=users)
        self._ttl_s = ttl_s

    @property
    def ttl_ms(self) -> int:
        return self._ttl_s * 1000

    def user(self, tenant_id: int, user: str) -> bytes:
        digest = self._users.copy()
        digest.update(b"%d\0%s" % (tenant_id, user.encode("utf-8", "surrogatepass")))
        return digest.digest()

    def is_for(self, token: Token, user: str) -> bool:
        """Whether the token's decision was for this user."""
        return token.user_id == user if token.user_id is not None else token.user == self.user(token.tenant_id, user)

    def person(
        self, user: str, session: str | None, device_type: str | None, country: str | None, *, proved: bool
    ) -> bytes:
        """What all tokens of one decision have in common. An empty session is none; so is an unknown device type."""
        user_bytes = user.encode("utf-8", "surrogatepass")
        session_bytes = session.encode("utf-8", "surrogatepass") if session else b""
        is_code = country is not None and len(country) == 2 and country.isascii()
        code = country.upper().encode() if country is not None and is_code else _NO_COUNTRY
        device = _DEVICE_CODES.get(device_type, 0)
        head = _PERSON.pack(_PROVED if proved else 0, device, code, len(user_bytes), len(session_bytes))
        return head + user_bytes + session_bytes

    def mint(
        self,
        tenant_id: int,
        banner_id: int,
        placement: int,
        campaign: int,
        variant: bytes,
        decided_ms: int,
        person: bytes,
        lease: int = 0,
    ) -> bytes:
        """`placement` or `campaign` 0 and an empty `variant` mean none."""
        decided = _DECIDED.pack(tenant_id, banner_id, placement, campaign, decided_ms, self._ttl_s, lease)
        sealed = _SEALED + self._cipher.encrypt(decided + person + variant, None)
        return b2a_base64(sealed, newline=False).translate(_SAFE).rstrip(b"=")

    def read(self, token: str) -> Token | None:
        """What it says, expired or not; None for what this installation never gave out."""
        if len(token) > DECISION_TOKEN_MAX:
            return None
        try:
            sent = token.encode("ascii")
            raw = a2b_base64(sent.translate(_PLAIN) + b"=" * (-len(sent) % 4), strict_mode=True)
        except ValueError:
            return None
        return self._opened(raw) if raw[:1] == _SEALED else self._verified(raw)

    def _opened(self, raw: bytes) -> Token | None:
        if len(raw) < 1 + _IV + _CLEAR:
            return None
        try:
            clear = self._cipher.decrypt(raw[1:], None)
        except InvalidTag:
            return None
        tenant, banner, placement, campaign, decided, good_s, lease = _DECIDED.unpack_from(clear)
        flags, device, country, user_size, session_size = _PERSON.unpack_from(clear, _DECIDED.size)
        user_end = _CLEAR + user_size
        session_end = user_end + session_size
        user = clear[_CLEAR:user_end].decode("utf-8", "surrogatepass")
        return Token(
            tenant_id=tenant,
            banner_id=banner,
            placement_id=placement or None,
            variant=clear[session_end:].decode("ascii", "replace") or None,
            decided_ms=decided,
            expires_ms=decided + good_s * 1000,
            user=self.user(tenant, user),
            proved=bool(flags & _PROVED),
            lease=lease,
            name=raw[1 : 1 + _IV].hex(),
            user_id=user,
            session_id=clear[user_end:session_end].decode("utf-8", "surrogatepass") or None,
            device_type=_DEVICES[device],
            country=country.decode("ascii") if country != _NO_COUNTRY else None,
            campaign_id=campaign or None,
        )

    def _verified(self, raw: bytes) -> Token | None:
        """A token of an earlier release: its body, and the first bytes of HMAC-SHA256 of that."""
        body, mac = raw[:-_MAC], raw[-_MAC:]
        if len(body) < _SIGNED.size or not hmac.compare_digest(mac, self._mac(body)):
            return None
        flags, tenant, banner, placement, decided, good_s, user, lease = _SIGNED.unpack_from(body)
        if flags & 0xF0 != _SIGNED_VERSION:
            return None
        return Token(
            tenant_id=tenant,
            banner_id=banner,
            placement_id=placement or None,
            variant=body[_SIGNED.size :].decode("ascii", "replace") or None,
            decided_ms=decided,
            expires_ms=decided + good_s * 1000,
            user=user,
            proved=bool(flags & _PROVED),
            lease=lease,
            name=blake2b(body, digest_size=16).hexdigest(),
        )

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._signing_key, body, "sha256")[:_MAC]


def storable(value: str | None) -> str | None:
    """A text of a token or a link as it can be stored: a zero character fits no text column, and half of a surrogate
    pair no message."""
    if value is None or ("\0" not in value and value.isascii()):
        return value
    return value.replace("\0", "").encode("utf-8", "replace").decode()
