"""Instruments that run inside an engine's process: they print what the dialects of `tracekit.parsers` read.

Nothing here imports polars, numpy or any other heavy package: an engine pays for what it uses, and for nothing else.
"""
