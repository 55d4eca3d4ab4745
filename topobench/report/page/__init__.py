"""A sweep as a page: one self-contained HTML file, and the parts that web pages share."""

from topobench.report.page.page import Sight, render_report

__all__ = ["Sight", "render_report"]
