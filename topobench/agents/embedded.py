"""
What an embedded Ray needs around it, before ray is imported: its token, folder and reaper.

Ray reads its authentication settings once, when its library is loaded, so they must be in
the environment first. This module imports no ray.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from topobench import processes
from topobench.agents import reaper
from topobench.errors import AgentError
from topobench.units import format_bytes

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


_OUTLIVES_THE_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "900"}
"""
Ray ends every process that has not reached the head for so long; the driver comes last.

Hosts keep to 60 s, or what their Ray was started with: their cells fail, and the sweep ends well.
"""


LEAST_FREE_BYTES = 64 << 20
"""Of the folder for temporary files, for an embedded Ray."""


@contextlib.contextmanager
def surroundings(address: str, sweep: str) -> Iterator[dict[str, Any]]:
    """
    Prepare this process for ``ray.init``; import ray inside.

    Yields:
        Options for ``ray.init``: of a private Ray that cannot outlive this process where
        the address is ``local``, none otherwise.
    """
    if address != "local":
        with _environment({**_QUIET, **_OUTLIVES_THE_HEAD}):
            yield {}
        return
    _check_room()
    _check_names()
    reaper.sweep_leftovers()
    token = reaper.new_token()
    folder = reaper.ray_folder(token)
    settings = {
        **_QUIET,
        processes.DRIVER: token,
        processes.SWEEP: sweep,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _ray_token(),
    }
    with _environment(settings):
        watcher = reaper.start_reaper(token)
        try:
            yield {
                "include_dashboard": False,
                "num_cpus": 1,  # Ray starts as many idle workers; an agent asks for none
                "object_store_memory": 100 * 2**20,
                "_temp_dir": str(folder),
            }
        finally:
            reaper.reap(token)
            watcher.close()
            shutil.rmtree(folder, ignore_errors=True)


def _check_room() -> None:
    """
    Whether Ray can write its logs and sockets: without room its agents die and say nothing.

    Raises:
        AgentError: There is no folder for temporary files, or a full one.
    """
    try:
        folder = reaper.ray_folder("").parent
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"no folder for temporary files: {error.strerror}; name one by TMPDIR"
        raise AgentError(text) from error
    if free < LEAST_FREE_BYTES:
        least = format_bytes(LEAST_FREE_BYTES)
        raise AgentError(
            f"{folder} has {format_bytes(free)} left, and Ray needs {least} for its logs and "
            "sockets: make room, or name another folder by TMPDIR"
        )


def _check_names() -> None:
    """
    Whether Ray can name the folder that this runs in, and that for temporary files.

    Raises:
        AgentError: One has a name that is not UTF-8.
        FileNotFoundError: The folder that this runs in was removed.
    """
    for folder in (Path.cwd(), reaper.ray_folder("").parent):
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            raise AgentError(
                f"{str(folder)!r}: its name is not UTF-8, and Ray cannot start there: change to "
                "another folder, and name one for temporary files by TMPDIR"
            ) from error


@functools.cache
def _ray_token() -> str:
    """One for the life of this process: Ray never reads it again."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {k: os.environ.get(k) for k in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
