"""tracekit: timing logs of LLM inference on Intel GPUs, as tables and Perfetto traces."""

__version__ = "0.1.0"
