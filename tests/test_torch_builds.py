"""The line that mends a torch which cannot use the driver's GPUs."""

from __future__ import annotations

import pytest

import torch_choice
from topobench.torch_builds import RELEASES, mending_line


@pytest.mark.parametrize(
    ("cuda", "torch", "release"),
    [
        ("13.0", "2.13.0+cpu", "2.13.0"),
        ("13.2", None, "2.13.0"),
        ("12.2", "2.13.0", "2.10.0"),
        ("12.8", "2.13.0+cu130", "2.10.0"),
        ("12.8", "2.10.0+cu128", None),
        ("13.0", "2.13.0", None),
        ("11.4", "2.13.0", None),
        (None, "2.13.0", None),
    ],
)
def test_the_driver_decides_the_release(
    cuda: str | None, torch: str | None, release: str | None
) -> None:
    line = mending_line("/opt/my env/python", cuda, torch)
    start = "'/opt/my env/python' -m pip install --force-reinstall torch=="
    assert line == (f"{start}{release}" if release else None)


def test_the_releases_are_those_the_install_script_takes() -> None:
    known = {(r.version, r.cuda[0]) for r in torch_choice.PLAIN["x86_64"]}
    assert {(release, least[0]) for least, release in RELEASES} <= known
