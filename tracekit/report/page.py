"""A report as one HTML page that needs nothing else: no network, one small script, which sorts tables.

Whatever came from logs is escaped here, and a content security policy lets no other script run.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import count

from tracekit.grid import Grid
from tracekit.report.contents import Chart, Report, Section
from tracekit.report.draw import svg

_NUMBER = ' class="n"'

#: Tables with more rows are folded below their heading.
_LONG = 30


def html(report: Report) -> str:
    """Return the report as a page.

    Raises:
        UsageError: the package of charts is not installed.
    """
    here = files("tracekit.report")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    numbers = count(1)
    links = "".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in report.sections)
    body = "".join(part for section in report.sections for part in _section(section, numbers))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{style}</style></head>\n"
        f"<body><header><h1>{escape(report.title)}</h1><nav>{links}</nav></header>\n"
        f"<main>{body}</main><script>{script}</script></body></html>\n"
    )


def _section(section: Section, numbers: Iterator[int]) -> Iterator[str]:
    yield f'<section id="{section.name}"><h2>{escape(section.title)}</h2>\n'
    yield from (f"<p>{escape(text)}</p>\n" for text in section.said)
    if section.commands:
        yield f"<pre>{escape(chr(10).join(section.commands))}</pre>\n"
    yield from (_figure(chart, next(numbers)) for chart in section.charts)
    yield from (_table(grid) for grid in section.grids)
    yield "</section>\n"


def _figure(chart: Chart, number: int) -> str:
    caption = escape(chart.caption)
    return f"<figure><figcaption>{caption}</figcaption>{svg(chart.spec, number)}</figure>\n"


def _table(grid: Grid) -> str:
    whole = len(grid.rows) - grid.sums
    words = [h in grid.words for h in grid.headers]
    heads = "".join(
        f'<th scope="col"{"" if word else _NUMBER}><button type="button">{escape(header)}</button></th>'
        for header, word in zip(grid.headers, words, strict=True)
    )
    body = "".join(_row(row, words) for row in grid.rows[:whole])
    foot = "".join(_row(row, words) for row in grid.rows[whole:])
    foot = f"<tfoot>{foot}</tfoot>" if foot else ""
    table = f"<div><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>{foot}</table></div>"
    if whole > _LONG:
        table = f"<details><summary>{whole} rows</summary>{table}</details>"
    notes = "".join(f"<li>{escape(line)}</li>" for line in grid.footer)
    heading = f"<h3>{escape(grid.heading)}</h3>" if grid.heading else ""
    return f"{heading}{table}{f'<ul>{notes}</ul>' if notes else ''}\n"


def _row(row: Sequence[str], words: Sequence[bool]) -> str:
    cells = (f"<td{'' if word else _NUMBER}>{escape(cell)}</td>" for cell, word in zip(row, words, strict=True))
    return f"<tr>{''.join(cells)}</tr>\n"
