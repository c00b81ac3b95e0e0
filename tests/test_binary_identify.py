"""`identify`: what a manifest says about each executable and library."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from tracekit.binary import identify
from tracekit.errors import UsageError


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    (folder / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    arguments = ["gcc", "-Wl,--build-id=0x0123456789abcdef", "-o", str(folder / "hello"), str(folder / "hello.c")]
    subprocess.run(arguments, check=True)
    return folder / "hello"


def test_program_is_named_by_build_id_digest_and_compiler(program: Path) -> None:
    found = identify(program)
    assert found["path"] == str(program)
    assert found["size"] == program.stat().st_size
    assert found["build_id"] == "0123456789abcdef"
    assert found["sha256"] == hashlib.sha256(program.read_bytes()).hexdigest()
    assert found["compiler"] is not None
    assert found["compiler"].startswith("GCC: ")


def test_script_has_a_digest_only(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_bytes(b"#!/usr/bin/env python3\n")
    expected = hashlib.sha256(script.read_bytes()).hexdigest()
    assert identify(script) == {
        "path": str(script), "size": 23, "build_id": None, "sha256": expected, "compiler": None
    }  # fmt: skip


def test_stripped_headers_leave_the_build_id_of_the_segments(program: Path, tmp_path: Path) -> None:
    data = bytearray(program.read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff: no section headers
    data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    cut = tmp_path / "cut"
    cut.write_bytes(data)
    assert identify(cut)["build_id"] == "0123456789abcdef"


def test_damaged_file_still_has_a_digest(program: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(program.read_bytes()[:1000])
    found = identify(cut)
    assert found["build_id"] is None
    assert found["size"] == 1000
    assert found["sha256"] == hashlib.sha256(cut.read_bytes()).hexdigest()


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        identify(tmp_path / "missing")
    with pytest.raises(UsageError, match="is a directory"):
        identify(tmp_path)
