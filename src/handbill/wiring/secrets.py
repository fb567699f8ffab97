"""The one secret of our own: the key that seals the tenants' secrets at rest."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from pathlib import Path

from handbill.kit.errors import Broken
from handbill.settings import Settings


def seal_key_file(settings: Settings) -> Path:
    return Path(settings.home) / "secrets" / "seal.key"


def seal_key(settings: Settings) -> bytes:
    """32 bytes from the setting, else from the home's file, which is made on first use."""
    text = settings.tenants.seal_key or _kept(seal_key_file(settings))
    return hashlib.sha256(text.encode()).digest()


def derived(settings: Settings, purpose: str) -> bytes:
    """A key of its own for each purpose, from the one secret: the same in every process of the installation."""
    return hashlib.blake2b(purpose.encode(), key=seal_key(settings), digest_size=32).digest()


def _kept(path: Path) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make(path)
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Broken(
            f"The key file {path} cannot be read or made ({error.strerror}). Nothing was changed. "
            "Set HANDBILL_HOME to a directory of your own, or HANDBILL_TENANTS__SEAL_KEY.",
            code="HOME_NOT_OURS",
        ) from error


def _make(path: Path) -> None:
    """Two processes may come here at once: each writes a draft whole, and the first to link it wins."""
    handle, name = tempfile.mkstemp(prefix="seal.", suffix=".new", dir=path.parent)  # readable by its owner only
    draft = Path(name)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # the other one's key stands
    finally:
        draft.unlink()
