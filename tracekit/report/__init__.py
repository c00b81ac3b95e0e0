"""The report of a run: what it holds (`contents`), its charts, and the page or the Markdown that it is written as."""

from tracekit.report.contents import Report, Section, gather
from tracekit.report.note import markdown
from tracekit.report.page import html

__all__ = ["Report", "Section", "gather", "html", "markdown"]
