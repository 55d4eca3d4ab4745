"""Files that users name: what is none is refused at once, and no read is without an end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from topobench import config, user_files
from topobench.errors import ConfigError
from topobench.probes.serving_load import Lengths

Made = Callable[[Path], Path]


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def link(path: Path) -> Path:
    path.symlink_to(path)
    return path


def listening(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # the name of a socket has 107 bytes
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (directory, "it is a directory, not a file"),
        (pipe, "it is a pipe, not a file"),
        (listening, "No such device or address"),
        (link, "symbolic links"),
        (lambda _: Path("/dev/zero"), "it is a device, not a file"),
        (lambda path: path, "No such file or directory"),
    ],
)
def test_what_is_no_file_is_not_read(tmp_path: Path, make: Made, said: str) -> None:
    path = make(tmp_path / "x")
    with pytest.raises(OSError, match=said):
        user_files.read_regular(path, 10)
    with pytest.raises(ValueError, match=said):
        Lengths.parse(f"file:{path}")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    for read in (user_files.read_regular, user_files.read):
        assert read(path, 10) == b"0123456789"
        with pytest.raises(OSError, match="it is larger than 9 B"):
            read(path, 9)


def test_a_pipe_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Its writer may come later than its reader, and may write in pieces."""
    path = pipe(tmp_path / "x")

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for byte in b"0123456789":
                file.write(bytes([byte]))

    for most in (10, 9):
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        if most == 10:
            assert user_files.read(path, most) == b"0123456789"
        else:
            with pytest.raises(OSError, match="it is larger than 9 B"):
                user_files.read(path, most)
        writer.join(10.0)
        assert not writer.is_alive()


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_files, "PIPE_SECONDS", 0.01)
    path = pipe(tmp_path / "cluster.yaml")
    with pytest.raises(ConfigError, match=r"nobody wrote to this pipe for 0\.01 s"):
        config.load(path, environ={})


@pytest.mark.parametrize("read", [user_files.read, user_files.read_regular])
def test_a_name_that_no_file_can_have_is_an_error_of_the_system(
    tmp_path: Path, read: Callable[[Path, int], bytes]
) -> None:
    with pytest.raises(OSError, match="its name holds a NUL character"):
        read(tmp_path / "a\0b", 9)
