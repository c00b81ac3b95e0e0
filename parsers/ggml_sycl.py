"""``[SYCL_OP_TIMING]``: one line per operation of ggml's SYCL backend (ik_llama.cpp, llama.cpp).

Grammar::

    [SYCL_OP_TIMING] dev=<int> op=<OPNAME> name=<text> ne=<int>x<int>x<int>x<int> us=<int>[ key=value...]

- ``dev``: device index inside the process. Every RPC worker pins one GPU and prints 0: the GPU's identity is in
  the file's name only.
- ``op``: ggml's operation name. ``UNARY`` does not tell which.
- ``name``: the tensor's name, at most 63 bytes (longer ones are cut silently). It may be empty and may hold
  spaces, parentheses and even `` ne=``: the record is anchored at its right end.
- ``ne``: dimensions of the *output*. ``ne[1]`` is the batch width only for results of hidden width.
- ``us``: whole microseconds; 0 is common on fast devices.
- Trailing pairs of tracekit's own instrument: ``graph`` (ordinal of the graph), ``t0_ns`` (start, monotonic
  clock) and ``ns`` (the duration again, in nanoseconds, which is then used). Other pairs are let through.

Clock: host time from before the dispatch to after a wait for the stream, so launch overhead, other streams'
backlog and first-call compilation are inside, and the device is serialised: diagnostic, not throughput.
Switched on by ``GGML_SYCL_OP_TIMING`` in the environment of the process that owns the backend (the RPC worker,
not its client); any value but exactly ``0``.

Not told: token, step, graph, time of day; operations that return early or run inside a fused one.
"""

import polars as pl

from tracekit.dialect import Dialect, Field

DIALECT = Dialect(
    name="ggml-sycl",
    family="ggml",
    kind="event",
    marker="[SYCL_OP_TIMING]",
    opening=r"^ dev=-?\d",
    cut=" us=",
    head=r" dev=(?P<device>-?\d+) op=(?P<op>[A-Za-z0-9_]+) name=(?P<name>.*) "
    r"ne=(?P<ne0>\d+)x(?P<ne1>\d+)x(?P<ne2>\d+)x(?P<ne3>\d+)",
    fields=(Field("us", "dur_ns", "us"),),
    trailing=(
        Field("ns", "exact_ns", "ns"),
        Field("t0_ns", "start_ns", "ns"),
        Field("graph", "graph", "count"),
    ),
    columns={
        "op": pl.col("op"),
        "name": pl.col("name"),
        "device": pl.col("device"),
        "shape": pl.concat_str("ne0", "ne1", "ne2", "ne3", separator="x"),
        "ne0": pl.col("ne0"),
        "ne1": pl.col("ne1"),
        "ne2": pl.col("ne2"),
        "ne3": pl.col("ne3"),
    },
    expects=(" dev=", " op=", " name=", " ne=", " us="),
    clock="host-wait",
    passes="layers",
    resolution_ns=1000,
    switch="GGML_SYCL_OP_TIMING=1 in the environment of each worker (any value but 0)",
    meaning="host time of one operation, with a wait for the device after it",
    sample="[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-0 ne=1024x1x1x1 us=97",
)
