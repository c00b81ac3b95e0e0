"""Timing hooks: found where they are, missed where they are not, before anything is run."""

import re
import subprocess
from pathlib import Path

import elf_writer as elf
import pytest

from tracekit import rules
from tracekit.binary import find_hook, inspect_file, missing_hook
from tracekit.binary.hooks import declared, hook, is_read, why_missing
from tracekit.binary.libraries import libraries
from tracekit.doctor import DIALECTS
from tracekit.errors import UsageError
from tracekit.parsers import catalogue

VARIABLE = "GGML_SYCL_OP_TIMING"
LINE = "[SYCL_OP_TIMING] dev=%d op=%s name=%s ne=%ldx%ldx%ldx%ld us=%ld\\n"


def library(folder: Path, name: str, variable: str, line: str) -> Path:
    """Build a library that prints a line if a variable is set."""
    source = folder / f"{name}.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        f'void {name}_work(void) {{ if (getenv("{variable}")) '
        f'fprintf(stderr, "{line}", 0, "", "", 1L, 1L, 1L, 1L, 1L); }}\n'
    )
    path = folder / f"lib{name}.so"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-O2", "-o", str(path), str(source)], check=True)
    return path


def program(folder: Path, name: str, *arguments: str, calls: str = "") -> Path:
    source = folder / f"{name}.c"
    declared_ = f"void {calls}(void);" if calls else ""
    source.write_text(f"{declared_}\nint main(void) {{ {calls + '();' if calls else ''} return 0; }}\n")
    path = folder / name
    subprocess.run(["gcc", "-w", "-o", str(path), str(source), *arguments], check=True)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A worker whose backend is linked: the hook is in a library, the program has none itself."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "lib").mkdir()
    library(folder / "lib", "backend", VARIABLE, LINE)
    program(folder, "rpc-server", f"-L{folder}/lib", "-lbackend", "-Wl,-rpath,$ORIGIN/lib", calls="backend_work")
    program(folder, "plain")
    return folder


def test_hook_is_found_in_a_library_of_the_program(built: Path) -> None:
    assert inspect_file(built / "rpc-server").hooks == ()
    found = find_hook(built / "rpc-server", VARIABLE, {})
    assert found.found == ((built / "lib/libbackend.so", ("[SYCL_OP_TIMING]",)),)
    assert missing_hook(built / "rpc-server", VARIABLE, {}) is None


def test_program_without_the_hook_is_named_in_a_sentence(built: Path) -> None:
    sentence = missing_hook(built / "plain", VARIABLE, {})
    assert sentence is not None
    assert re.fullmatch(
        r"this plain has no GGML_SYCL_OP_TIMING in it or the \d+ libraries with it; see `tracekit patch`", sentence
    )


def test_backends_beside_the_program_and_named_ones_count(built: Path, tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_bytes((built / "plain").read_bytes())
    backend = built / "lib/libbackend.so"
    for variable in ("GGML_BACKEND_PATH", "LD_PRELOAD"):
        assert missing_hook(server, VARIABLE, {variable: str(backend)}) is None
    assert missing_hook(server, VARIABLE, {}) is not None
    (tmp_path / "libggml-sycl.so").write_bytes(backend.read_bytes())
    assert missing_hook(server, VARIABLE, {}) is None


def test_same_variable_with_lines_that_are_not_read_is_told(tmp_path: Path) -> None:
    path = library(tmp_path, "fork", VARIABLE, "[SYCL-OP] device_us=1")
    if is_read("[SYCL-OP]"):
        pytest.fail("a dialect reads [SYCL-OP] now: choose another marker for this test")
    assert missing_hook(path, VARIABLE, {}) == (
        "libfork.so has GGML_SYCL_OP_TIMING (in libfork.so) but prints [SYCL-OP] lines, which tracekit does not read"
    )


def test_longer_variables_and_device_code_are_no_hook(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    text = elf.Part(".rodata", b"GGML_SYCL_OP_TIMING_EVERY\0MY_GGML_SYCL_OP_TIMING\0", flags=elf.ALLOC)
    code = elf.Part("OFFLOAD_DEVICE_CODE", b"\0GGML_SYCL_OP_TIMING\0[SYCL_OP_TIMING]\0", flags=elf.ALLOC)
    path.write_bytes(elf.write([text, code]))
    assert inspect_file(path).hooks == ()


def test_literal_across_blocks_is_found(tmp_path: Path) -> None:
    """The search reads in blocks of 4 MiB: no literal is lost at a seam."""
    path = tmp_path / "module.py"
    marker = b"[vllm-xpu-timing]"
    for shift in (0, 1, len(marker) // 2, len(marker)):
        path.write_bytes(b"VLLM_XPU_DECODE_TIMING" + b" " * ((4 << 20) - 22 - shift) + marker)
        (found,) = inspect_file(path).hooks
        assert (found.variable, found.markers) == ("VLLM_XPU_DECODE_TIMING", ("[vllm-xpu-timing]",))


def test_what_cannot_be_known_is_not_refused(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\nexec rpc-server\n")
    assert missing_hook(script, VARIABLE) is None
    assert missing_hook("/bin/sh", VARIABLE) is None
    assert missing_hook(tmp_path / "serve.sh", "VLLM_XPU_DECODE_TIMING") is None
    with pytest.raises(UsageError, match="No such file"):
        missing_hook(tmp_path / "gone", VARIABLE)
    with pytest.raises(UsageError, match="no timing hook is known for GGML_TYPO; known are GGML_SYCL_OP_TIMING"):
        missing_hook(script, "GGML_TYPO")


def test_missing_libraries_are_named(tmp_path: Path) -> None:
    library(tmp_path, "gone", "X", "y")
    path = program(tmp_path, "worker", f"-L{tmp_path}", "-lgone", calls="gone_work")
    (tmp_path / "libgone.so").unlink()
    found = find_hook(path, VARIABLE, {})
    assert found.missing == ("libgone.so",)
    assert "libgone.so could not be found; see" in str(why_missing(found, "worker"))


def test_loader_rules_decide_between_two_libraries(built: Path, tmp_path: Path) -> None:
    """Against the loader itself: ldd names the same files."""
    other = tmp_path / "other"
    other.mkdir()
    library(other, "backend", "X", "y")
    for environment in ({}, {"LD_LIBRARY_PATH": str(other)}):
        ours = {lib.name: str(lib.path) for lib in libraries(built / "rpc-server", environment)}
        told = subprocess.run(
            ["ldd", str(built / "rpc-server")],
            env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        theirs = dict(re.findall(r"(\S+) => (\S+)", told.stdout))
        assert {name: str(Path(path).resolve()) for name, path in theirs.items()} == {
            name: str(Path(ours[name]).resolve()) for name in theirs
        }


def test_hooks_print_the_markers_that_the_dialects_read() -> None:
    markers = {dialect.name: dialect.marker for dialect in catalogue()}
    for dialect, variable in DIALECTS.items():
        assert markers[dialect] in hook(variable).markers
        assert is_read(markers[dialect])
    variables = [h.variable for h in declared()]
    assert len(set(variables)) == len(variables)


def test_own_rules_are_read_and_faults_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "hooks.toml"
    monkeypatch.setenv(rules.VARIABLE, str(tmp_path))
    row = '[[hook]]\nvariable = "MY_TIMING"\nmarkers = ["[my]"]\ninstrument = "i"\nlanguage = "binary"\nmeaning = "m"\n'
    try:
        for text, fault in (
            (row.replace("MY_TIMING", "my"), "capital letters"),
            (row.replace('"binary"', '"cobol"'), "language is 'cobol'"),
            (row.replace('["[my]"]', '"[my]"'), "list of texts"),
            (row + "colour = 1\n", "colour"),
            ("hook = 3\n", "hooks.toml"),
            ("[[hook", "hooks.toml"),
        ):
            declared.cache_clear()
            own.write_text(text)
            with pytest.raises(UsageError, match=fault):
                declared()
        declared.cache_clear()
        own.write_text(row)
        assert hook("MY_TIMING").markers == ("[my]",)
    finally:
        declared.cache_clear()
