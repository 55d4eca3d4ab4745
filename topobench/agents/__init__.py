"""What runs on each host: discovery, preflight, pinned workers, the Ray agent."""

if __name__ != "topobench.agents":
    # The repository shows this package at its root through a link; imported from
    # there it would exist twice, with two sets of classes and two module states.
    raise ImportError(f"import topobench.agents, not {__name__!r}")
