"""Instrumentation for the engines: a preload shim for ggml, and source patches. Data; `tracekit.patching` reads it."""
