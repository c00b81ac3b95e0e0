"""Damaged, cut off and hostile files: a report or one clear error, never another exception, never without bounds."""

import json
import struct
import subprocess
import tempfile
from pathlib import Path

import elf_writer as elf
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tracekit.binary import DamagedError, identify, inspect_file
from tracekit.binary.libraries import libraries
from tracekit.binary.report import report_json
from tracekit.binary.text import report_text
from tracekit.binary.zeinfo import read
from tracekit.errors import TracekitError

INFO = (
    "---\nversion: '1.39'\nkernels:\n  - name: k\n    execution_env:\n      grf_count: 128\n      simd_size: 16\n"
    "    per_thread_memory_buffers:\n      - type: scratch\n        usage: single_space\n        size: 64\n...\n"
)


def _built() -> bytes:
    """Return a program with a timing hook, as GCC builds it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "a.c"
        source.write_text(
            '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { if (getenv("GGML_SYCL_OP_TIMING"))'
            ' puts("[SYCL_OP_TIMING] dev=0"); return 0; }\n'
        )
        program = source.with_suffix("")
        arguments = ["gcc", "-Os", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--build-id", "-o", str(program), str(source)]
        subprocess.run(arguments, check=True)
        return program.read_bytes()


BUILT = _built()
IMAGES = [
    elf.spirv(["one", "two"], 16),
    zstandard.compress(elf.spirv(["three"] * 20)),
    elf.zebin(INFO, 1 << 22),
    elf.archive([("64.20.1.0", elf.zebin(INFO)), ("generic_ir", elf.spirv(["four"]))]),
]
HOST = elf.with_table("__CLANG_OFFLOAD_BUNDLE__sycl-spir64", IMAGES)
SEARCHED = elf.write([elf.Part("OFFLOAD_DEVICE_CODE", b"".join(IMAGES), flags=elf.ALLOC)])
SEEDS = {"gcc": BUILT, "host": HOST, "searched": SEARCHED, "zebin": elf.zebin(INFO, 1 << 22), "spirv": IMAGES[0]}

#: What a hostile writer puts where sizes, offsets and counts stand.
EXTREMES = st.sampled_from(
    [bytes(8), b"\xff" * 8, b"\xff\xff", struct.pack("<Q", 1 << 40), struct.pack("<q", -8), b"\x01", b"\x7fELF"]
)


def survives(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    named = identify(path)
    assert named["size"] == len(data)
    for ask in (inspect_file, libraries):
        try:
            found = ask(path)
        except TracekitError as error:
            assert str(path) in str(error) or "ze_info" in str(error)  # noqa: PT017 - either outcome is right
        else:
            if ask is inspect_file:
                json.dumps(report_json(found))
                assert not set(report_text(found, "*")) & set("\x1b\r\0\x07")


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_seeds_are_read(seed: str, tmp_path: Path) -> None:
    """Else the mutations below would only ever test the refusal of what is broken already."""
    path = tmp_path / "file"
    path.write_bytes(SEEDS[seed])
    found = inspect_file(path)
    assert found.faults == ()
    assert bool(found.images) == (seed != "gcc")
    if seed == "gcc":
        assert [h.variable for h in found.hooks] == ["GGML_SYCL_OP_TIMING"]
        assert found.runpath == ("$ORIGIN/lib",)


@settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(sorted(SEEDS)),
    changes=st.lists(st.tuples(st.floats(0, 1), st.one_of(EXTREMES, st.binary(min_size=1, max_size=8))), max_size=6),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_mutations_are_read_or_refused(
    tmp_path: Path, seed: str, changes: list[tuple[float, bytes]], keep: float
) -> None:
    data = bytearray(SEEDS[seed])
    for place, value in changes:
        at = int(place * len(data))
        data[at : at + len(value)] = value
    survives(bytes(data[: int(keep * len(data))]), tmp_path / "file")


@settings(max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(["gcc", "host", "zebin"]),
    field=st.integers(4, 63),
    value=st.one_of(EXTREMES, st.binary(min_size=1, max_size=8)),
)
@example(seed="gcc", field=0x3C, value=b"\0\0")  # e_shnum 0: the count stands in the first section header
@example(seed="gcc", field=0x28, value=b"\xff" * 8)  # e_shoff beyond the file
@example(seed="gcc", field=0x3A, value=b"\0\0")  # e_shentsize 0
@example(seed="host", field=0x3E, value=b"\xff\xff")  # e_shstrndx in the first section header
def test_headers_that_lie_are_read_or_refused(tmp_path: Path, seed: str, field: int, value: bytes) -> None:
    data = bytearray(SEEDS[seed])
    data[field : field + len(value)] = value
    survives(bytes(data), tmp_path / "file")


@settings(max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(["gcc", "host", "searched", "zebin"]),
    header=st.integers(0, 40),
    field=st.integers(0, 63),
    value=EXTREMES,
)
def test_section_headers_that_lie_are_read_or_refused(
    tmp_path: Path, seed: str, header: int, field: int, value: bytes
) -> None:
    data = bytearray(SEEDS[seed])
    (table,) = struct.unpack_from("<Q", data, 0x28)
    at = table + header * 64 + field
    data[at : at + len(value)] = value
    survives(bytes(data), tmp_path / "file")


def test_every_truncation_of_a_program_is_read_or_refused(tmp_path: Path) -> None:
    for size in range(0, len(HOST), 37):
        survives(HOST[:size], tmp_path / "file")


def test_what_is_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "half.so"
    path.write_bytes(BUILT[: len(BUILT) // 2])
    with pytest.raises(DamagedError, match=r"half.so: cut off or damaged: .* outside the file"):
        inspect_file(path)


def test_names_of_kernels_cannot_steer_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(elf.spirv(["clear\x1b[2Jscreen"]))
    text = report_text(inspect_file(path), "*")
    assert "\x1b" not in text
    assert r"clear\x1b[2Jscreen" in text


# The reader of .ze_info: the subset in full, and nothing else.

KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
#: Characters that fit an escape of four digits.
TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=12)
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        TEXT,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3), st.dictionaries(KEYS, inner, min_size=1, max_size=3)
        ),
        max_leaves=12,
    ),
    min_size=1,
    max_size=4,
)


def quoted(text: str, style: int) -> str:
    if style and all(c.isprintable() for c in text):
        return "'" + text.replace("'", "''") + "'"
    escaped = "".join(c if c.isprintable() and c not in '"\\' and ord(c) < 0x80 else f"\\u{ord(c):04x}" for c in text)
    return f'"{escaped}"'


def written(value: object, indent: int, style: int) -> str:
    """Write a document as compilers do: block mappings and sequences, first keys behind the dash."""
    pad = " " * indent
    if isinstance(value, str):
        return f" {quoted(value, style)}\n"
    if isinstance(value, dict):
        return "\n" + "".join(f"{pad}{k}:{written(v, indent + 2, style)}" for k, v in value.items())
    assert isinstance(value, list)
    out = "\n"
    for item in value:
        text = written(item, indent + 2, style)
        if isinstance(item, dict):
            text = " " + text.lstrip("\n").lstrip(" ")
        elif isinstance(item, list):
            text = "\n" + text.lstrip("\n")
        out += f"{pad}-{text}"
    return out


@given(DOCUMENTS, st.integers(0, 1))
def test_ze_info_reads_back_what_was_written(document: dict[str, object], style: int) -> None:
    text = "---" + written(document, 0, style) + "...\n"
    assert read(text) == document


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a: &anchor 1", "neither plain nor quoted"),
        ("a: |", "neither plain nor quoted"),
        ("a: {b: 1}", "neither plain nor quoted"),
        ("a: [1, 2", "not closed"),
        ("a: 'open", "neither plain nor quoted"),
        ("a: b: c", "neither plain nor quoted"),
        ("a: 1\na: 2", "twice"),
        ("a:\n    b: 1\n  c: 2", "not indented"),
        ("a: 1\n  b: 2", "not indented"),
        ("\ta: 1", "tab"),
        ("no key", "no `key: value`"),
        ("- 1", "no `key: value`"),
        ("a:\n  -", "without content"),
        ('a: "\\q"', "unknown escape"),
    ],
)
def test_ze_info_refuses_what_it_does_not_know(line: str, reason: str) -> None:
    with pytest.raises(DamagedError, match=reason):
        read(line)


@given(st.text(alphabet=" \n-:[]'\"{}ab1#\t", max_size=60))
def test_ze_info_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except DamagedError as error:
        assert ".ze_info" in str(error)  # noqa: PT017 - either outcome is right
