"""
What a person reads: pure functions from documents to rich renderables.

Nothing here reads a file, a clock or a database. Print with :func:`show`, which keeps
lines whole that must not be cut.
"""

from topobench.report.plan_text import render_plan
from topobench.report.progress import Progress
from topobench.report.show import StderrConsole, StdoutConsole, show
from topobench.report.tables_text import query_csv, render_doctor, render_query, render_sweeps
from topobench.report.text import render_sweep, summary_line
from topobench.report.topo_text import render_topology

__all__ = [
    "Progress",
    "StderrConsole",
    "StdoutConsole",
    "query_csv",
    "render_doctor",
    "render_plan",
    "render_query",
    "render_sweep",
    "render_sweeps",
    "render_topology",
    "show",
    "summary_line",
]
