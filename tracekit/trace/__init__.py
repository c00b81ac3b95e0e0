"""Traces: events placed on a timeline and written for Perfetto, Chrome's viewer, or as flame graphs."""

from tracekit.trace.layout import LAYOUTS
from tracekit.trace.slices import ARGUMENTS
from tracekit.trace.source import TraceSource
from tracekit.trace.writing import FORMATS, TraceReport, write_trace

__all__ = ["ARGUMENTS", "FORMATS", "LAYOUTS", "TraceReport", "TraceSource", "write_trace"]
