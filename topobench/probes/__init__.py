"""Kinds of measurement, one file each, and the worker process that runs them."""

if __name__ != "topobench.probes":
    # The repository shows this package at its root through a link; imported from
    # there it would exist twice, with two sets of classes and two module states.
    raise ImportError(f"import topobench.probes, not {__name__!r}")
