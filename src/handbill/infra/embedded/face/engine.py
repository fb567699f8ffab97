"""chDB on one directory, in this process.

A connection serialises its queries and remembers every SET and USE. A fresh one costs a sixth of a millisecond, runs
beside the others and forgets everything, so each request gets its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handbill.infra.embedded.face.statements import identifier, quote


class Engine:
    """`open` once, then `connect` from any thread."""

    def __init__(self, data: Path, *, memory_bytes: int, mark_cache_bytes: int = 64 * 1024 * 1024) -> None:
        # Without these two a server takes nine tenths of the machine and a cache of 5 GB.
        self._address = f"{data}?max_server_memory_usage={memory_bytes}&mark_cache_size={mark_cache_bytes}"
        self._keeper: Any = None
        self.version = ""
        self.timezone = ""

    def open(self, database: str) -> None:
        """The first connection loads the engine and stays, so that it never unloads between requests."""
        self._keeper = self.connect()
        self._keeper.query(f"CREATE DATABASE IF NOT EXISTS {identifier(database)}", "Null")
        said = self._keeper.query("SELECT version(), timezone()", "TabSeparated").bytes().decode().strip()
        self.version, self.timezone = said.split("\t")

    def connect(self) -> Any:
        import chdb

        connect: Any = chdb.connect  # typed in one installation of the wheel and untyped in another
        return connect(self._address)

    def kill(self, tag: str) -> None:
        """End the query that carries this tag, if it runs already."""
        connection = self.connect()
        try:
            connection.query(f"KILL QUERY WHERE startsWith(Settings['log_comment'], {quote(tag)}) ASYNC", "Null")
        finally:
            connection.close()

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
