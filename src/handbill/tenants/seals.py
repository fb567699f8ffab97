"""Seals: secrets that must be read again are kept encrypted (AES-256-GCM), bound to the place they belong to."""

from __future__ import annotations

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from handbill.kit.errors import Broken

_NONCE = 12


class Sealer:
    """Seals and opens with one 32-byte key. `place` is authenticated: a sealed value moved elsewhere does not open."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise Broken("The seal key must be 32 bytes; nothing was read. Check the tenants' seal key setting.")
        self._cipher = AESGCM(key)

    def seal(self, clear: bytes, place: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, clear, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], place.encode())
        except InvalidTag:
            raise Broken(
                f"The secret sealed for {place} does not open with this installation's seal key; it was left as it is. "
                "Restore the key it was sealed with, or set the secret again.",
                code="SEAL_BROKEN",
            ) from None


def sealer_for(credential: str, salt: str) -> Sealer:
    """A sealer that only the holder of this credential can make again."""
    return Sealer(hashlib.sha256(b"handbill-replay\0" + credential.encode() + b"\0" + salt.encode()).digest())
