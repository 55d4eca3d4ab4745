"""The database: schema, the one writer, views and named queries."""

if __name__ != "topobench.db":
    # The repository shows this package at its root through a link; imported from
    # there it would exist twice, with two sets of classes and two module states.
    raise ImportError(f"import topobench.db, not {__name__!r}")
