"""How workers share a step: one after the other along a pipeline, or side by side."""

from typing import Literal

from tracekit.errors import UsageError

Topology = Literal["pipeline", "parallel"]
TOPOLOGIES: tuple[Topology, ...] = ("pipeline", "parallel")

#: What each family's workers do, unless the user says otherwise: RPC workers hold layers, ranks hold slices.
_FAMILY: dict[str, Topology] = {"ggml": "pipeline"}


def topology(family: str, asked: str | None = None) -> Topology:
    """Return how a family's workers share a step; `asked` overrides.

    Raises:
        UsageError: `asked` is none of `TOPOLOGIES`.

    >>> topology("ggml"), topology("vllm-xpu"), topology("ggml", "parallel")
    ('pipeline', 'parallel', 'parallel')
    """
    if asked is None:
        return _FAMILY.get(family, "parallel")
    for known in TOPOLOGIES:
        if asked == known:
            return known
    raise UsageError(f"unknown topology {asked!r}; choose from {', '.join(TOPOLOGIES)}")
