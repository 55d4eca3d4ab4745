"""Parameters that probes of a whole model have in common: its shape, precision and mode."""

from __future__ import annotations

from typing import Any

from topobench.probes.forward import MODES
from topobench.probes.precisions import PRECISIONS
from topobench.probes.protocol import Kind, parameter
from topobench.probes.shapes import SHAPE_HELP, Shape, shape_of

AUTO = "auto"
"""The shape or mode that suits the device: the planner names it before a case is stored."""
ON_GPUS, ON_CPUS = "llama3-8b", "tiny"
MODE_ON = ("graph", "eager")


def shape_parameter() -> Any:
    """The parameter that names the model, or writes its shape out."""
    what = f"auto ({ON_GPUS}; {ON_CPUS} on CPUs), {SHAPE_HELP}"
    return parameter(AUTO, kind=Kind.TEXT, auto=(ON_GPUS, ON_CPUS), help=what)


def precision_parameter() -> Any:
    """The parameter that says in which type matrices are multiplied."""
    what = "type of the products; in int4 are weights alone"
    return parameter("bf16", kind=Kind.CHOICE, choices=tuple(PRECISIONS), help=what)


def mode_parameter() -> Any:
    """The parameter that says how kernels are launched."""
    return parameter(
        AUTO,
        kind=Kind.CHOICE,
        choices=(AUTO, *MODES),
        auto=MODE_ON,
        help="kernel by kernel, as one CUDA graph, or layers compiled first (and then a graph); "
        f"auto is {MODE_ON[0]} on GPUs, {MODE_ON[1]} on CPUs",
    )


def planned_shape(text: str) -> Shape:
    """The shape of a case that is not on a device yet; on GPUs if it is left to the device."""
    return shape_of(ON_GPUS if text == AUTO else text)
