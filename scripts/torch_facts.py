"""
Print what torch this interpreter has, and whether it can use the GPUs, as one JSON object.

Run by the interpreter in question; standard library only but for torch itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# A GPU held by another job says nothing against this torch.
BUSY = ("out of memory", "busy or unavailable")


def facts() -> dict[str, Any]:
    """The fields of ``torch_choice.TorchFacts``."""
    folders = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    try:
        import torch
    except Exception as error:  # a broken torch can raise anything
        return {"version": None, "error": f"{type(error).__name__}: {error}", "folders": folders}
    usable, error_text = _usable_gpus(torch)
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "usable": usable,
        "error": error_text,
        "folders": folders,
    }


def _usable_gpus(torch: Any) -> tuple[int, str | None]:
    """How many GPUs ran a kernel, and the first error."""
    usable, first_error = 0, None
    try:
        torch.cuda.init()
    except Exception as error:
        return 0, f"{type(error).__name__}: {error}"
    for index in range(torch.cuda.device_count()):
        try:
            # A build without kernels for this GPU fails only when one is run.
            torch.ones(1, device=f"cuda:{index}").add_(1).item()
            usable += 1
        except Exception as error:
            usable += any(sign in str(error) for sign in BUSY)
            first_error = first_error or f"GPU {index}: {type(error).__name__}: {error}"
    return usable, first_error


if __name__ == "__main__":
    print(json.dumps(facts()))
