"""The pictures in docs/traces.md are what the demo's trace shows."""

import re
from pathlib import Path

import pytest
import trace_picture
from trace_check import read_trace

import tracekit as tk

ROOT = Path(__file__).parent.parent
PICTURES = dict(
    re.findall(
        r"<!-- picture: (\w+) -->\n```text\n(.*?)```",
        (ROOT / "docs" / "traces.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
)


@pytest.mark.parametrize("layout", ["pipeline", "sequential"])
def test_pictures_of_layouts(layout: str, tmp_path: Path) -> None:
    tk.write_trace(tk.read(ROOT / "tracekit" / "demo"), tmp_path / "t.pftrace", layout=layout)
    assert trace_picture.steps(read_trace(tmp_path / "t.pftrace")) == PICTURES[layout]


def test_picture_of_the_nesting(tmp_path: Path) -> None:
    tk.write_trace(tk.read(ROOT / "tracekit" / "demo"), tmp_path / "t.pftrace")
    shown = trace_picture.nesting(read_trace(tmp_path / "t.pftrace"), "rpc-b70-0", 10)
    assert shown == PICTURES["nesting"]
