"""The dialects, one module each. Third parties register theirs through the entry-point group ``tracekit.parsers``."""

from importlib.metadata import entry_points

from tracekit.dialect import Dialect
from tracekit.errors import TracekitError
from tracekit.parsers import ggml_sycl, llm_scaler, vllm_step, vllm_xpu

DIALECTS: tuple[Dialect, ...] = (
    ggml_sycl.DIALECT,
    llm_scaler.DIALECT,
    vllm_xpu.EVENTS,
    vllm_xpu.SUMMARY,
    vllm_step.STEP,
    vllm_step.ENGINE,
)


def catalogue() -> tuple[Dialect, ...]:
    """Return every dialect, third parties' included.

    Raises:
        TracekitError: two dialects open with the same marker or bear the same name, or an entry point is no dialect.
    """
    others = []
    for entry in entry_points(group="tracekit.parsers"):
        dialect = entry.load()
        if not isinstance(dialect, Dialect):
            raise TracekitError(f"entry point {entry.name} of group tracekit.parsers is no Dialect: fix or remove it")
        others.append(dialect)
    found = (*DIALECTS, *others)
    for key in ("name", "marker"):
        values = [getattr(d, key) for d in found]
        twice = {v for v in values if values.count(v) > 1}
        if twice:
            raise TracekitError(f"two dialects have the same {key}: {', '.join(sorted(twice))}")
    return found
