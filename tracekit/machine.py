"""The machine as sysfs, procfs and the file system show it: Intel GPUs, their drivers, who may use them, runtimes.

Everything is read below a root directory, so that another machine's tree can be examined. Nothing is run.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

INTEL = "0x8086"

#: PCI class of display controllers, first byte.
_DISPLAY = "0x03"

#: Kernel modules that drive Intel GPUs.
_MODULES = ("xe", "i915")

#: Where the names of PCI devices are kept.
_PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")

#: Below this the processor sees only a window of a graphics card's memory: resizable BAR is off.
_SMALL_BAR = 1 << 30

Access = Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One Intel display device on the PCI bus.

    `driver` is None where no driver is bound, `render` the node that compute goes through, `accessible` whether this
    user may open it. `bar_bytes` is the largest window onto its memory.
    """

    pci: str
    ids: str
    name: str | None
    driver: str | None
    card: str | None
    render: str | None
    accessible: bool
    integrated: bool
    numa_node: int | None
    bar_bytes: int | None

    @property
    def small_bar(self) -> bool:
        """Whether a graphics card shows less than 1 GiB of its memory: resizable BAR is off."""
        return not self.integrated and self.bar_bytes is not None and self.bar_bytes < _SMALL_BAR


@dataclass(frozen=True, slots=True)
class Driver:
    """A kernel module. In-tree modules have no version of their own: theirs is the kernel's."""

    module: str
    version: str | None
    srcversion: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group that owns GPU nodes, and whether this user is in it."""

    name: str
    gid: int
    member: bool


def may_open(node: Path) -> bool:
    """Return whether this process may read and write a device node."""
    return os.access(node, os.R_OK | os.W_OK)


def gpus(root: Path = Path("/"), access: Access = may_open) -> tuple[Gpu, ...]:
    """Return the Intel GPUs in the order of their PCI addresses, those without a driver too."""
    devices = root / "sys/bus/pci/devices"
    names = _device_names(root)
    return tuple(_gpu(root, path, names, access) for path in _listing(devices) if _is_intel_display(path))


def _is_intel_display(path: Path) -> bool:
    return text(path / "vendor") == INTEL and (text(path / "class") or "").startswith(_DISPLAY)


def _gpu(root: Path, path: Path, names: Mapping[str, str], access: Access) -> Gpu:
    identifier = (text(path / "device") or "0x").removeprefix("0x")
    nodes = [entry.name for entry in _listing(path / "drm")]
    card = next((n for n in nodes if n.startswith("card")), None)
    render = next((n for n in nodes if n.startswith("renderD")), None)
    numa = text(path / "numa_node")
    return Gpu(
        pci=path.name,
        ids=f"8086:{identifier}",
        name=names.get(identifier),
        driver=(path / "driver").resolve().name if (path / "driver").exists() else None,
        card=card,
        render=render,
        accessible=render is not None and access(root / "dev/dri" / render),
        integrated=path.name.endswith(":00:02.0"),
        numa_node=int(numa) if numa and numa.isdigit() else None,
        bar_bytes=_largest_bar(path),
    )


def _largest_bar(path: Path) -> int | None:
    """Return the size of the largest memory window: sysfs ``resource`` has start, end and flags a line."""
    sizes = []
    for line in (text(path / "resource") or "").splitlines()[:6]:
        parts = line.split()
        if len(parts) == 3 and (end := int(parts[1], 16)):
            sizes.append(end - int(parts[0], 16) + 1)
    return max(sizes, default=None)


def _device_names(root: Path) -> dict[str, str]:
    """Return the names of Intel's PCI devices by identifier, from the list that the distribution ships."""
    for place in _PCI_IDS:
        try:
            lines = (root / place).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found, inside = {}, False
        for line in lines:
            if line and line[0] not in "\t#":
                inside = line.startswith("8086 ")
            elif inside and (match := re.match(r"\t([0-9a-f]{4})  (.+)", line)):
                found[match[1]] = match[2]
        return found
    return {}


def drivers(root: Path = Path("/")) -> tuple[Driver, ...]:
    """Return the kernel modules for Intel GPUs that are loaded."""
    paths = [root / "sys/module" / module for module in _MODULES]
    return tuple(Driver(p.name, text(p / "version"), text(p / "srcversion")) for p in paths if p.is_dir())


def kernel(root: Path = Path("/")) -> str | None:
    """Return the kernel's release."""
    return text(root / "proc/sys/kernel/osrelease")


def groups(root: Path = Path("/"), own: frozenset[int] | None = None) -> tuple[Group, ...]:
    """Return the groups render and video, where the system has them.

    Args:
        root: where ``etc/group`` stands.
        own: the numbers of the user's groups; those of this process by default.
    """
    own = frozenset({*os.getgroups(), os.getegid()}) if own is None else own
    found = []
    for line in (text(root / "etc/group") or "").splitlines():
        parts = line.split(":")
        if len(parts) == 4 and parts[0] in ("render", "video") and parts[2].isdigit():
            found.append(Group(parts[0], int(parts[2]), int(parts[2]) in own))
    return tuple(sorted(found, key=lambda group: group.name))


def opencl_drivers(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the libraries that OpenCL's vendor files name."""
    files = [p for p in _listing(root / "etc/OpenCL/vendors") if p.suffix == ".icd"]
    return tuple(name for p in files if (name := text(p)))


def oneapi(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[Path | None, tuple[str, ...]]:
    """Return where oneAPI is installed and which versions of its compiler are there."""
    named = environment.get("ONEAPI_ROOT")
    for place in (Path(named) if named else None, root / "opt/intel/oneapi"):
        if place is not None and place.is_dir():
            versions = [p.name for p in _listing(place / "compiler") if re.match(r"\d", p.name)]
            return place, tuple(versions)
    return None, ()


def text(path: Path) -> str | None:
    """Return the stripped content of a small file; None where there is none or it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _listing(path: Path) -> Iterator[Path]:
    try:
        yield from sorted(path.iterdir())
    except OSError:
        return
