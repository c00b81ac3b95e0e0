"""A table as words: what the commands print, what Markdown and a report show."""

from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of cells that are formatted already.

    Attributes:
        heading: what the table tells.
        headers: of the columns.
        rows: a cell per header each.
        words: the headers of columns that hold words; the others hold numbers, and are aligned right.
        footer: what stands below it, a sentence each.
        sums: how many rows at the end sum those before them, and so stay there however the others are sorted.
    """

    heading: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str]
    footer: Sequence[str] = ()
    sums: int = 0

    def text(self, *, markdown: bool) -> str:
        """Return heading, table and footer.

        >>> print(Grid("ops", ["op", "calls"], [["ADD", "2"]], ["op"], ["one worker"]).text(markdown=False))
        ops
        op      calls
        ----  -------
        ADD         2
        <BLANKLINE>
        one worker
        <BLANKLINE>
        """
        lines = [f"### {self.heading}\n" if markdown else self.heading, self.body(markdown=markdown)]
        if self.footer:
            lines += ["", *(f"- {line}" if markdown else line for line in self.footer)]
        return "\n".join(lines) + "\n"

    def body(self, *, markdown: bool) -> str:
        """Return the table alone.

        >>> print(Grid("", ["op", "calls"], [["a|b", "2"]], ["op"]).body(markdown=True))
        | op   |   calls |
        |:-----|--------:|
        | a\\|b |       2 |
        """
        rows = [[in_markdown(c) for c in row] for row in self.rows] if markdown else self.rows
        headers = [in_markdown(h) for h in self.headers] if markdown else self.headers
        align = ["left" if h in self.words else "right" for h in self.headers]
        return tabulate(
            rows,
            headers,
            tablefmt="pipe" if markdown else "simple",
            disable_numparse=True,
            colalign=align if rows else None,
        )


def in_markdown(text: str) -> str:
    r"""Return text that a Markdown table takes as it is: nothing in it starts a cell, a line or a tag.

    >>> in_markdown("a|b <i>")
    'a\\|b &lt;i>'
    """
    return " ".join(text.splitlines()).replace("|", "\\|").replace("<", "&lt;")
