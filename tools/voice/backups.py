"""Files as one archive in a few parts of limited size, of which a folder keeps the newest complete one.

The parts of archive NNN are checkpoint-NNN.tar.1-of-3 and so on. The archive is an ordinary one:

    cat checkpoint-007.tar.* | tar x -C FOLDER
"""

import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path

PART = 15_000_000  # bytes of a part at most
NAME = re.compile(r"checkpoint-(\d+)\.tar\.(\d+)-of-(\d+)")


def save(files: Iterable[Path], folder: Path, part: int = PART) -> int:
    """Write an archive of the files, each under its own name, and remove the older ones. Returns its number.

    Every part is renamed when it is complete, and the older archives go last, so that one is complete at any time.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in files:
            tar.add(path, path.name)
    data = archive.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    older = _parts(folder)
    number = max(older, default=0) + 1
    count = -(-len(data) // part)
    for index in range(count):
        path = folder / f"checkpoint-{number:03d}.tar.{index + 1}-of-{count}"
        temporary = folder / ".part"
        temporary.write_bytes(data[index * part : (index + 1) * part])
        temporary.replace(path)
    for paths in older.values():
        for path in paths:
            path.unlink()
    return number


def restore(folder: Path, out: Path) -> int:
    """Unpack the newest complete archive of a folder, and return its number. Raises ValueError if there is none."""
    whole = {number: paths for number, paths in _parts(folder).items() if len(paths) == _count(paths[0])}
    if not whole:
        raise ValueError(f"{folder} has no complete checkpoint-NNN.tar.K-of-N; give another folder")
    number = max(whole)
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in whole[number]))) as tar:
        tar.extractall(out, filter="data")
    return number


def holds_parts(folder: Path) -> bool:
    """True for a folder that `save` wrote to."""
    return bool(_parts(folder))


def _parts(folder: Path) -> dict[int, list[Path]]:
    """The parts of each archive, in their order."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in folder.glob("checkpoint-*"):
        if match := NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append((int(match[2]), path))
    return {number: [path for _, path in sorted(parts)] for number, parts in found.items()}


def _count(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[3])
