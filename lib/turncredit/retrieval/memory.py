"""How much memory there is, asked before something large is loaded."""

from pathlib import Path

_GIB = 1 << 30


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be had: the machine's, or the control group's if that is less.

    None where the system does not tell (not Linux).
    """
    found = [_machine(root / "proc/meminfo"), _group(root / "sys/fs/cgroup")]
    return min((each for each in found if each is not None), default=None)


def require_memory(needed: int, purpose: str, available: int | None = None) -> None:
    """Raises MemoryError naming both numbers when `needed` bytes are not available.

    available: in bytes; None asks the system, and where it does not tell nothing is refused.
    """
    available = available_bytes() if available is None else available
    if available is not None and needed > available:
        sizes = f"{needed / _GIB:.2f} GiB, {available / _GIB:.2f} GiB are available"
        raise MemoryError(f"{purpose} needs {sizes}")


def _machine(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def _group(folder: Path) -> int | None:
    """What the limit of control group 2, or 1, leaves; file pages count as used only if active."""
    for limit, used, stat, inactive in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            now = int((folder / used).read_text(encoding="ascii"))
            pages = dict(line.split() for line in (folder / stat).read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most != "max":
            return max(0, int(most) - now + int(pages.get(inactive, 0)))
    return None
