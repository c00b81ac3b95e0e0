"""A report as Markdown, for a note or a pull request: the tables of the page without its charts."""

from tracekit.grid import Grid, in_markdown
from tracekit.report.contents import Report


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    parts = [f"# {in_markdown(report.title)}\n"]
    for section in report.sections:
        parts.append(f"## {section.title}\n")
        parts += [f"{in_markdown(text)}\n" for text in section.said]
        parts += [f"    {line}\n" for line in section.commands]
        parts += [_grid(grid) for grid in section.grids]
    return "\n".join(parts)


def _grid(grid: Grid) -> str:
    heading = f"### {in_markdown(grid.heading)}\n\n" if grid.heading else ""
    footer = "".join(f"- {in_markdown(line)}\n" for line in grid.footer)
    return f"{heading}{grid.body(markdown=True)}\n{footer and chr(10)}{footer}"
