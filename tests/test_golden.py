"""Every sample has a golden answer beside it: what `top` says of it, whole.

A sample without one fails. `pytest tests/test_golden.py --update-golden` writes them (not in CI); the commit says why.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tracekit.bucketing import buckets
from tracekit.reading import read
from tracekit.table import ledger_json, table_json

SAMPLES = Path(__file__).parent.parent / "samples"
LOGS = sorted(p for p in SAMPLES.rglob("*") if p.name.endswith((".log", ".log.gz", ".log.zst")))


def answer(log: Path) -> dict[str, Any]:
    run = read(log)
    tables = [table_json(t, None) for t in buckets(run, by=["op", "category", "worker"], sort="group")]
    coverage = ledger_json(run.coverage.collect(), run.findings.collect())
    said: dict[str, Any] = {"tables": tables, "coverage": coverage}
    # Paths differ from machine to machine; shares are rounded, so that a last digit does not matter.
    text = json.dumps(said).replace(str(log), log.name)
    plain: dict[str, Any] = json.loads(text, parse_float=lambda x: round(float(x), 9))
    return plain


@pytest.mark.parametrize("log", LOGS, ids=lambda p: str(p.relative_to(SAMPLES)))
def test_the_answer_is_the_golden_one(log: Path, request: pytest.FixtureRequest) -> None:
    golden = log.parent / f"{log.name}.golden.json"
    found = answer(log)
    if request.config.getoption("--update-golden"):
        assert not os.environ.get("CI"), "goldens are not updated in CI"
        rows = ",\n".join(json.dumps(row) for table in found["tables"] for row in table.pop("rows"))
        golden.write_text(json.dumps(found, indent=1)[:-2] + f',\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")
        return
    assert golden.exists(), f"no golden answer for {log.name}: write it with --update-golden and look at it"
    expected = json.loads(golden.read_text(encoding="utf-8"))
    found["rows"] = [row for table in found["tables"] for row in table.pop("rows")]
    assert found == expected


def test_no_golden_without_its_sample() -> None:
    for golden in SAMPLES.rglob("*.golden.json"):
        assert (golden.parent / golden.name.removesuffix(".golden.json")).exists(), golden
