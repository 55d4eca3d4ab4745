"""topobench measures what a GPU cluster's wiring is worth."""

__version__ = "0.1.0"
