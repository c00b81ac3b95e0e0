"""Source patches for the engines: which there are, whether one fits a tree, applying and undoing it.

A patch adds whole files of ours and single lines in upstream files (`tracekit.hunks`). A tree is accepted when each
file to change is one that the patch was made for (by git's hash of its content), or when it is unchanged for git and
every place for our lines is found exactly once. All or nothing: the new content of every file is made before the first
is written, and a failure while writing puts back what was there.
"""

import hashlib
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from tracekit import hunks
from tracekit.errors import TracekitError, UsageError
from tracekit.hunks import Hunk, HunkError

State = Literal["ready", "applied", "refused", "absent"]

_WAS = "// tracekit patch: "


class PatchError(TracekitError):
    """A patch was refused, or could not be applied or undone; the tree is as it was (exit code 1)."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One way to make an engine print timing lines.

    Attributes:
        name: what commands call it.
        kind: ``source`` changes a tree, ``preload`` is built and loaded into an unmodified program.
        title: what it does.
        upstream, made_for: whose source, which version.
        prints: names of the dialects that read what it prints.
        switch: what turns the timing on.
        tested: how far it was tested.
        blobs: for each file to change, git's hashes of the contents it was made for.
        adds: the files to add: path to content.
        hunks: the lines to add.
        forbids: texts of a file to change that mean it is timed already.
        source: the program text of a preload.
    """

    name: str
    kind: Literal["source", "preload"]
    title: str
    upstream: str
    made_for: str
    prints: tuple[str, ...]
    switch: str
    tested: str
    blobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    adds: Mapping[str, str] = field(default_factory=dict)
    hunks: tuple[Hunk, ...] = ()
    forbids: tuple[str, ...] = ()
    source: Traversable | None = None

    @property
    def diff(self) -> str:
        """The lines to add, as a unified diff; the added files are not in it."""
        return "" if self.kind == "preload" else _folder(self.name).joinpath("hooks.patch").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Report:
    """How a patch and a tree stand to each other.

    Attributes:
        patch: the patch's name.
        state: ``ready`` to apply, ``applied``, ``refused`` for `reasons`, or ``absent``: another engine's tree.
        exact: every file to change is one that the patch was made for.
        reasons: why it was refused.
        notes: what could not be verified.
        files: the files that it changes or adds.
    """

    patch: str
    state: State
    exact: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[str, ...]


@cache
def patches() -> tuple[Patch, ...]:
    """Return all patches, the least invasive first.

    Example:
        >>> [patch.name for patch in patches()]
        ['ggml-shim', 'llama-cpp-sycl', 'ik-llama-cpp-sycl', 'llm-scaler-moe']
    """
    return tuple(_load(name) for name in ("ggml-shim", "llama-cpp-sycl", "ik-llama-cpp-sycl", "llm-scaler-moe"))


def find(name: str) -> Patch:
    """Return the patch of that name.

    Raises:
        UsageError: there is none.
    """
    for patch in patches():
        if patch.name == name:
            return patch
    raise UsageError(f"no patch is called {name!r}; there are {', '.join(p.name for p in patches())}")


def _folder(name: str) -> Traversable:
    root = resources.files("tracekit.patches")
    return root.joinpath("ggml") if name == "ggml-shim" else root.joinpath("sources", name)


def _load(name: str) -> Patch:
    """Read a patch's folder: ``patch.toml``, and the files that it names."""
    folder = _folder(name)
    data: dict[str, Any] = tomllib.loads(folder.joinpath("patch.toml").read_text("utf-8"))
    common = {key: data[key] for key in ("name", "kind", "title", "upstream", "made_for", "switch", "tested")}
    if data["kind"] == "preload":
        return Patch(**common, prints=tuple(data["prints"]), source=folder.joinpath(data["source"]))
    sources = resources.files("tracekit.patches").joinpath("sources")
    return Patch(
        **common,
        prints=tuple(data["prints"]),
        blobs={entry["path"]: tuple(entry["blobs"]) for entry in data["files"]},
        adds={entry["path"]: sources.joinpath(entry["source"]).read_text("utf-8") for entry in data["adds"]},
        hunks=hunks.parse(folder.joinpath(data["hooks"]).read_text("utf-8"), f"{name}/{data['hooks']}"),
        forbids=tuple(data["forbids"]),
    )


def blob_hash(content: bytes) -> str:
    """Return git's hash of a file's content.

    Example:
        >>> blob_hash(b"")
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def check(tree: Path, patch: Patch) -> Report:
    """Say whether a patch fits a tree, is in it, or why it is refused. Nothing is written.

    Raises:
        UsageError: the tree is no directory, or the patch is not one for source.
    """
    _source_only(patch)
    if not tree.is_dir():
        raise UsageError(f"{tree}: no such directory; name the top of the source tree of {patch.upstream}")
    files = (*patch.blobs, *patch.adds)
    missing = [path for path in patch.blobs if not (tree / path).is_file()]
    if missing:
        return Report(patch.name, "absent", False, (f"{missing[0]} is not there",), (), files)  # noqa: FBT003
    contents = {path: _read(tree / path) for path in patch.blobs}
    exact = all(blob_hash(contents[path]) in known for path, known in patch.blobs.items())
    state, reasons = _standing(tree, patch, contents)
    notes: list[str] = []
    if state == "ready" and not exact:
        changed, notes = _git_says(tree, tuple(patch.blobs))
        reasons = [f"{path} has changes that are not committed: commit them or undo them first" for path in changed]
        notes.append(f"not the version that the patch was made for ({patch.made_for}); every place was found once")
    return Report(patch.name, "refused" if reasons else state, exact, tuple(reasons), tuple(notes), files)


def _source_only(patch: Patch) -> None:
    if patch.kind != "source":
        raise UsageError(f"{patch.name} changes no source: build it with `tracekit patch build {patch.name}`")


def _standing(tree: Path, patch: Patch, contents: Mapping[str, bytes]) -> tuple[State, list[str]]:
    """Return whether the patch can be applied or is applied, and what speaks against either."""
    away, there = _misplaced(patch, contents, present=False), _misplaced(patch, contents, present=True)
    added = {path: _added_state(tree / path, text) for path, text in patch.adds.items()}
    if not there and all(state == "ours" for state in added.values()):
        return "applied", []
    if len(there) < len(patch.hunks):
        whole = len(patch.hunks)
        reasons = [f"the patch is there in part: {whole - len(there)} of {whole} places carry it", *there]
        reasons += [f"{path} {_ADDED[state]}" for path, state in added.items() if state != "ours"]
        return "refused", reasons
    timed = [
        f"{path} mentions {text}: this tree prints such lines itself"
        for path, content in contents.items()
        for text in patch.forbids
        if text.encode() in content
    ]
    taken = [f"{path} {_ADDED[state]}" for path, state in added.items() if state != "missing"]
    unknown = [f"unknown version of {patch.upstream}: {reason}" for reason in away]
    reasons = timed or (unknown + taken)
    return "refused" if reasons else "ready", reasons


_ADDED = {
    "missing": "is missing",
    "ours": "is there already",
    "other": "is there, but is not what this version of tracekit adds (changed, or added by another version)",
}


def _added_state(file: Path, text: str) -> str:
    if not file.exists():
        return "missing"
    return "ours" if _read(file).decode("utf-8", "replace").split(_WAS)[0] == text else "other"


def _misplaced(patch: Patch, contents: Mapping[str, bytes], *, present: bool) -> list[str]:
    """Return the hunks whose place (or whose lines, if `present`) cannot be found, as reasons."""
    reasons = []
    for path, content in contents.items():
        lines = _lines(content)
        for hunk in patch.hunks:
            if hunk.path != path:
                continue
            try:
                hunks.place(lines, hunk, present=present)
            except HunkError as error:
                reasons.append(str(error))
    return reasons


def _git_says(tree: Path, paths: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the files with uncommitted changes, and what git could not tell."""
    command = ["git", "--no-optional-locks", "-C", str(tree), "status", "--porcelain", "--ignored", "--", *paths]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], [f"whether the files were changed is not known: git could not be asked ({error})"]
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        return [], [f"whether the files were changed is not known: {why}"]
    entries = [(line[:2], line[3:]) for line in done.stdout.splitlines()]
    unknown = [path for code, path in entries if code in ("??", "!!")]
    notes = ["whether the files were changed is not known: git does not track them"] if unknown else []
    return [path for code, path in entries if code not in ("??", "!!")], notes


def apply(tree: Path, patch: Patch) -> Report:
    """Apply a patch, all or nothing.

    Returns:
        What was checked before.

    Raises:
        PatchError: the tree was refused, or a file could not be written; the tree is as it was.
        UsageError: as `check`.
    """
    report = check(tree, patch)
    if report.state != "ready":
        raise PatchError(_refusal(tree, report, "applied"))
    before = {path: _read(tree / path) for path in patch.blobs}
    after = {path: _joined(hunks.add(_lines(content), _of(patch, path))) for path, content in before.items()}
    marks = "".join(f"{_WAS}{path} was {blob_hash(content)}\n" for path, content in before.items())
    added = {path: (text + marks).encode() for path, text in patch.adds.items()}
    _write_all(tree, before | dict.fromkeys(added), after | added)
    return report


def revert(tree: Path, patch: Patch) -> tuple[str, ...]:
    """Take a patch out again, all or nothing: its lines, and the files it added.

    Returns:
        Files that were changed elsewhere since the patch was applied; those changes are kept.

    Raises:
        PatchError: the patch is not there whole and unchanged, or a file could not be written; the tree is as it was.
        UsageError: as `check`.
    """
    report = check(tree, patch)
    if report.state != "applied":
        raise PatchError(_refusal(tree, report, "in this tree"))
    before: dict[str, bytes | None] = {path: _read(tree / path) for path in report.files}
    after: dict[str, bytes | None] = {
        path: _joined(hunks.remove(_lines(before[path] or b""), _of(patch, path))) for path in patch.blobs
    }
    marks = {line for path in patch.adds for line in (before[path] or b"").decode("utf-8", "replace").splitlines()}
    kept = tuple(path for path in patch.blobs if f"{_WAS}{path} was {blob_hash(after[path] or b'')}" not in marks)
    _write_all(tree, before, after | dict.fromkeys(patch.adds))
    return kept


def _refusal(tree: Path, report: Report, wanted: str) -> str:
    why = {"applied": "it is in this tree already", "ready": "the tree is unpatched"}
    reasons = report.reasons or (why[report.state],)
    return f"{tree}: {report.patch} is not {wanted}: " + "; ".join(reasons)


def _of(patch: Patch, path: str) -> tuple[Hunk, ...]:
    return tuple(hunk for hunk in patch.hunks if hunk.path == path)


def _write_all(tree: Path, before: Mapping[str, bytes | None], after: Mapping[str, bytes | None]) -> None:
    """Write every file of `after` (None removes it); after a failure put back what was there before."""
    done: list[str] = []
    try:
        for path, content in after.items():
            done.append(path)
            _write(tree / path, content)
    except OSError as error:
        for path in done:
            _put_back(tree / path, before[path])
        raise PatchError(f"{tree / done[-1]}: {error.strerror or error}; the tree is as it was") from error


def _put_back(file: Path, content: bytes | None) -> None:
    try:
        _write(file, content)
    except OSError as error:
        raise PatchError(f"{file}: {error.strerror or error}; it could not be put back, restore it by hand") from error


def _write(file: Path, content: bytes | None) -> None:
    """Replace a file at once, keeping its permissions; None removes it."""
    if content is None:
        file.unlink(missing_ok=True)
        return
    if file.exists() and _read(file) == content:
        return
    beside = file.with_name(f".{file.name}.tracekit")
    try:
        beside.write_bytes(content)
        if file.exists():
            beside.chmod(file.stat().st_mode & 0o7777)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PatchError(f"{file}: {error.strerror or error}") from error


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "surrogateescape").split("\n")


def _joined(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "surrogateescape")
