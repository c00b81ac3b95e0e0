"""`tracekit report`: one page that holds every section, asks nobody for anything, and takes names for what they are."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import ROOT, Command
from hypothesis import given
from hypothesis import strategies as st

import tracekit as tk
from tracekit.grid import Grid
from tracekit.report import Report, Section, gather, html, markdown

SECTIONS = ["identity", "budget", "top", "layers", "steps", "kernels", "balance", "ledger", "trace"]
HOSTILE = "<script>alert(1)</script>\"'&|`<img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What stands in a page: tags with their attributes, the text of each section, tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = {}
        self.section = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"] or ""

    def handle_data(self, data: str) -> None:
        self.words[self.section] = self.words.get(self.section, "") + data

    def count(self, tag: str) -> int:
        return sum(t == tag for t, _ in self.tags)


def written(tracekit: Command, tmp_path: Path, *args: str | Path) -> str:
    done = tracekit("report", *args, "-o", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def asks_nobody(text: str) -> None:
    """No element of the page loads anything, and only the page's own script may run."""
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "image", "use"), tag
        assert not [a for a in attributes if a.startswith("on") or a in ("src", "xlink:href")], (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert page.count("script") == 1
    assert "url(" not in text.replace("url(#", "")
    assert re.search(r"Content-Security-Policy\" content=\"default-src 'none'; .*script-src 'sha256-", text)


def test_every_section_is_filled(tracekit: Command, samples: Path, tmp_path: Path) -> None:
    logs = [samples / f"llama_rpc_worker{n}.log" for n in (0, 1)]
    text = written(tracekit, tmp_path, *logs, "--bench", samples / "bench_rpc.json")
    page = Page(text)
    assert [a["id"] for t, a in page.tags if t == "section"] == SECTIONS
    assert all(len(page.words[name]) > 100 for name in SECTIONS)
    assert page.count("svg") == 5
    assert len(text.encode()) < 1_000_000
    asks_nobody(text)
    assert "prefill, warm-up?" in page.words["steps"]
    assert "ms outside of the timed operations" in page.words["budget"]
    assert "Of the decode steps alone" in page.words["budget"]


def test_markdown_holds_the_tables_of_the_page(samples: Path) -> None:
    run = tk.read(samples / "generated" / "a_minimax_layer")
    report = gather(run, ["a_minimax_layer"], tok_s=3.834472)
    note, page = markdown(report), Page(html(report))
    for section in report.sections:
        for grid in section.grids:
            for row in grid.rows:
                for cell in row:
                    assert cell in page.words[section.name]
                    assert cell in note
    assert "116.615" in note
    assert "12.123" in note


@pytest.mark.parametrize(
    "log",
    [
        "vllm_eager_tp2.log",
        "vllm_summary_only.log",
        "vllm_bench_skip16_every8_rank0.log",
        "vllm_step_qwen36_tp4_piecewise_20260611c.rank0.log",
        "sycl_cpu_gemma270m.log.gz",
        "generated/b_moe_kernel_waits.log",
        "llama_rpc_client.log",
    ],
)
def test_logs_that_lack_this_or_that(tracekit: Command, samples: Path, tmp_path: Path, log: str) -> None:
    text = written(tracekit, tmp_path, samples / log)
    page = Page(text)
    assert [a["id"] for t, a in page.tags if t == "section"] == SECTIONS
    assert all(page.words[name].strip() for name in SECTIONS)
    assert len(text.encode()) < 1_000_000
    asks_nobody(text)


def test_a_long_run_stays_small(tracekit: Command, tmp_path: Path) -> None:
    layers = "".join(f"[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-{n} ne=64x1x1x1 us={n + 5}\n" for n in range(4))
    (tmp_path / "w.log").write_text(layers * 5000)
    text = written(tracekit, tmp_path, tmp_path / "w.log")
    assert len(text.encode()) < 300_000
    assert "a point is the median of 17 steps" in Page(text).words["steps"]


def test_hostile_names_are_words(tracekit: Command, tmp_path: Path) -> None:
    log = tmp_path / "a<b>&'.log"
    line = f"[SYCL_OP_TIMING] dev=0 op=MUL_MAT name={HOSTILE}-3 ne=64x1x1x1 us=5\n"
    log.write_text(
        line * 3 + f"[SYCL_OP_TIMING] dev=0 op={HOSTILE} name=x ne=1x1x1x1 us=7\n" + "[SYCL_OP_TIMING] <b>\n"
    )
    text = written(tracekit, tmp_path, log, "--title", HOSTILE)
    asks_nobody(text)
    assert HOSTILE in Page(text).words[""]
    note = tracekit("report", log, "--format", "markdown", "--title", HOSTILE).stdout
    assert "<script" not in note
    assert "<img" not in note


TEXT = st.text(max_size=20)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=4), TEXT)
def test_any_words_come_back_as_they_are(rows: list[tuple[str, str]], title: str) -> None:
    grid = Grid(title, ["a", "b"], rows, ["a"], [title])
    page = html(Report(title, [Section("s", title, [title], [title], grids=[grid])]))
    asks_nobody(page)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == 2 * len(rows)
    lines = markdown(Report(title, [Section("s", "t", grids=[grid])])).splitlines()
    assert sum(line.startswith("|") for line in lines) <= len(rows) + 2


def test_operations_with_any_name_are_drawn(tmp_path: Path) -> None:
    label = HOSTILE.replace("`", "")
    vllm = "".join(f"[vllm-xpu-timing] rank=0 label={label} count={n} last_ms=0.500000\n" for n in range(1, 9))
    (tmp_path / "v.log").write_text(vllm)
    report = gather(tk.read(tmp_path / "v.log"), ["v.log"])
    page = html(report)
    asks_nobody(page)
    assert Page(page).count("svg") >= 1
    assert "alert(1)" in Page(page).words["kernels"]


def test_steps_of_no_length_are_shown(tracekit: Command, tmp_path: Path) -> None:
    line = "[SYCL_OP_TIMING] dev=0 op={} name=x-{} ne=8x1x1x1 us=0\n"
    step = "".join(line.format(op, n) for n in range(3) for op in ("MUL_MAT", "ROPE", "ADD"))
    (tmp_path / "zero.log").write_text(5 * step)
    done = tracekit("report", "zero.log", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Time of each step" in done.stdout


@pytest.mark.parametrize("speed", [["--tok-s", "27.454699"], ["--bench", "bench_rpc.json"]])
def test_the_budget_is_that_of_the_command_budget(tracekit: Command, samples: Path, speed: list[str]) -> None:
    args = ["llama_rpc_worker0.log", *speed, "--format", "markdown"]
    page, budget = (tracekit(command, *args, cwd=samples).stdout for command in ("report", "budget"))
    (told,) = [line for line in budget.splitlines() if "ms per step (" in line]
    assert told.lstrip("- ") in page


def test_what_is_selected_is_said(tracekit: Command, samples: Path) -> None:
    done = tracekit("report", samples / "llama_rpc_worker0.log", "--phase", "decode", "--format", "markdown")
    assert "Only what matches phase decode, steps 0: is in the tables." in done.stdout
    assert "| prefill " not in done.stdout


@pytest.mark.parametrize("command", ["report", "budget"])
def test_the_benchmark_is_not_written_over(tracekit: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "w.log").write_text("[SYCL_OP_TIMING] dev=0 op=MUL name=x ne=1x1x1x1 us=5\n")
    (tmp_path / "b.json").write_text(text := '[{"avg_ts": 2.0, "n_gen": 1}]')
    done = tracekit(command, "w.log", "--bench", "b.json", "-o", "b.json", cwd=tmp_path)
    assert (done.returncode, "is the log that is read" in done.stderr) == (2, True)
    assert (tmp_path / "b.json").read_text() == text


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--where", "op=NONE", "--format", "markdown"], 0, ""),
        (["--tok-s", "nan"], 2, "expected tokens per second"),
        (["--tok-s", "3", "--bench", "b.json"], 2, "two answers"),
        (["-o", "w.log"], 2, "is the log that is read"),
    ],
)
def test_usage(tracekit: Command, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    (tmp_path / "w.log").write_text("[SYCL_OP_TIMING] dev=0 op=MUL name=x ne=1x1x1x1 us=5\n")
    done = tracekit("report", "w.log", *args, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


def test_nothing_recognised(tracekit: Command, samples: Path) -> None:
    assert tracekit("report", samples / "vllm_plain.log").returncode == 3


def test_without_the_package_of_charts_it_says_what_to_install(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "vl_convert.py").write_text("raise ImportError('gone')")
    log = samples / "llama_rpc_client.log"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    def report(*args: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "tracekit", "report", str(log), *args]
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, env=env)

    refused = report()
    assert refused.returncode == 2
    assert "pip install 'tracekit[report]'" in refused.stderr
    assert report("--format", "markdown").returncode == 0


#: Sorts the top table by its calls, looks whether anything is not drawn, and puts what it saw into the page's title.
PROBE = """
const heads = [...document.querySelectorAll('#top th')];
const calls = heads.find((head) => head.textContent === 'calls');
calls.querySelector('button').click();
const rows = [...document.querySelector('#top tbody').rows].map((row) => +row.cells[calls.cellIndex].textContent);
const lower = (what, least) => [...document.querySelectorAll(what)].filter((x) => x.clientHeight < least).length;
document.title = JSON.stringify({
  sorted: rows.length > 1 && rows.every((n, i) => !i || rows[i - 1] >= n),
  flat: lower('figure', 40), low: lower('section', 60), sort: calls.getAttribute('aria-sort'),
});
"""


@pytest.mark.browser
def test_a_browser_shows_it(tracekit: Command, samples: Path, tmp_path: Path) -> None:
    """In headless Chromium: no message on the console, every section and chart drawn, tables sort."""
    chromium = os.environ["TRACEKIT_CHROMIUM"]
    logs = [Path(p) for p in os.environ.get("TRACEKIT_CAPTURE", "").split(os.pathsep) if p]
    text = written(tracekit, tmp_path, *(logs or [samples / f"llama_rpc_worker{n}.log" for n in (0, 1)]))
    # The policy lets the page's own script run alone, so the probe stands in a copy without it.
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (tmp_path / "probed.html").write_text(copy.replace("</body>", f"<script>{PROBE}</script></body>"))

    def shown(page: str, *more: str) -> "subprocess.CompletedProcess[str]":
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1100,4000"]
        argv = [chromium, *flags, f"--user-data-dir={tmp_path / 'profile'}", *more, (tmp_path / page).as_uri()]
        return subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)

    picture = Path(os.environ.get("TRACEKIT_PICTURE", tmp_path / "r.png"))
    for page, more in (("r.html", [f"--screenshot={picture}"]), ("probed.html", ["--dump-dom"])):
        done = shown(page, *more)
        assert done.returncode == 0, done.stderr
        assert "CONSOLE" not in done.stderr, done.stderr
    assert picture.stat().st_size > 50_000
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    assert '"sorted":true' in title[1]
    assert '"flat":0,"low":0,"sort":"descending"' in title[1]

    (tmp_path / "w.log").write_text(f"[SYCL_OP_TIMING] dev=0 op=MUL name={HOSTILE}-3 ne=1x1x1x1 us=5\n" * 9)
    written(tracekit, tmp_path, tmp_path / "w.log", "--title", HOSTILE)
    done = shown("r.html", "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    assert Page(done.stdout).count("img") == 0
