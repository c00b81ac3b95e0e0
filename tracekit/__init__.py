"""tracekit: timing logs of LLM inference on Intel GPUs, as tables and Perfetto traces.

The way of the data is one way: logs (`read`) to frames (`Run.events`, `Run.summaries`, ...), to tables (`buckets`,
`layers`), to text (`tracekit.table`) or a trace (`write_trace`).

>>> import tracekit as tk
>>> run = tk.read("samples/llama_rpc_worker0.log")
>>> table = tk.buckets(run, by=["category"])[0]
>>> table.frame.select("category", "calls", "total_ns").row(0)
('matmul', 2520, 446195000)

Names are imported when they are first used, so that ``tracekit --help`` does not wait for polars.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tracekit.bucketing import Table, buckets
    from tracekit.layering import LayerTable, layers
    from tracekit.reading import Run, read
    from tracekit.stepping import steps
    from tracekit.trace import TraceReport, write_trace

_HOMES = {
    "read": "reading",
    "Run": "reading",
    "buckets": "bucketing",
    "Table": "bucketing",
    "layers": "layering",
    "LayerTable": "layering",
    "steps": "stepping",
    "write_trace": "trace",
    "TraceReport": "trace",
}

__all__ = [
    "LayerTable",
    "Run",
    "Table",
    "TraceReport",
    "__version__",
    "buckets",
    "layers",
    "read",
    "steps",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(import_module(f"tracekit.{_HOMES[name]}"), name)
