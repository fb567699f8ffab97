"""PgBouncer in transaction mode in front of a database, where it is installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from handbill.infra.postgres.urls import as_role, role_password
from tests.kit.leash import die_with_parent
from tests.kit.optional import need
from tests.kit.processes import free_port
from tests.kit.waiting import eventually


@asynccontextmanager
async def bouncer(owner_url: str) -> AsyncIterator[tuple[str, str]]:
    """The app's and the worker's URL through a pooler that gives each transaction any server connection."""
    program = need("pgbouncer")
    parts = urlsplit(owner_url)
    port = free_port()
    home = Path(tempfile.mkdtemp(prefix="hbb-"))
    home.chmod(0o755)
    users = "".join(f'"{role}" "{role_password(owner_url, role)}"\n' for role in ("handbill_app", "handbill_worker"))
    (home / "users.txt").write_text(users)
    (home / "pgbouncer.ini").write_text(
        f"""[databases]
* = host={parts.hostname} port={parts.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {home}/users.txt
pool_mode = transaction
default_pool_size = 2
"""
    )
    command = [program, str(home / "pgbouncer.ini")]
    if os.geteuid() == 0:
        command[1:1] = ["-u", "nobody"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    try:
        await eventually(lambda: _listens(port))
        yield _through(as_role(owner_url, "handbill_app"), port), _through(as_role(owner_url, "handbill_worker"), port)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        shutil.rmtree(home, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
