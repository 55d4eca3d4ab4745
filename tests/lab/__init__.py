"""
A real Linux kernel with several NUMA nodes and a PCIe tree, inside a QEMU guest.

The guest is emulated in software, so it needs neither KVM nor root. It sees this
machine's file system read-only under a throw-away overlay: programs and paths are the
same, and nothing it writes stays.
"""

from lab.guest import run, run_once, unavailable
from lab.kernel import LabUnavailable
from lab.shapes import SHAPES, Shape

__all__ = ["SHAPES", "LabUnavailable", "Shape", "run", "run_once", "unavailable"]
