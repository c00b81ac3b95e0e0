"""Draws Vega-Lite specifications to SVG. The one place that needs the package of charts, which is an extra."""

import re
from typing import Any

from tracekit.errors import TracekitError, UsageError


def svg(spec: dict[str, Any], number: int) -> str:
    """Return one chart as an SVG element that can stand in a page beside others.

    Args:
        spec: Vega-Lite.
        number: of the chart in the page: what it names within itself must not be what another names.

    Raises:
        UsageError: the package of charts is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError(
            "the charts of a report need one more package: pip install 'tracekit[report]'; "
            "--format markdown writes the tables without it"
        ) from error
    try:
        drawn = vl_convert.vegalite_to_svg(spec, vl_version="5.20", allowed_base_urls=[])
    except ValueError as error:
        raise TracekitError(f"a chart could not be drawn ({str(error)[:200]})") from error
    return re.sub(r'(id="|url\(#)(?=(?:gradient|clip)_?\d)', rf"\1chart{number}-", drawn)
