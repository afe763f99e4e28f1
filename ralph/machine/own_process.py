"""Secures this process before it imports anything else. From then on nothing is imported from where commands may write,
core dumps are forbidden, and on Linux other processes cannot read its memory. Also follows the links of a path one by one.

At its top, this module may import only modules that the interpreter has already loaded or that are built into it,
because other modules could come from the working directory. Python may run code before ralph's first line if `PYTHONPATH` names it
(`sitecustomize.py`). This module cannot undo what such code has done.
"""

import os
import pwd
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PACKAGE_CACHES = "ralph/packages"
"""The place of the package caches of all checkouts, below the user's own cache."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - nothing is made there
READ_LATER = ("GCONV_PATH", "LOCPATH", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES")
"""Variables by which libraries find code or settings when they first need them, and not at the start of the process."""

MOST_LINKS = 40  # as many as Linux follows (path_resolution(7))


def know_home() -> None:
    """Without HOME, as in a service of the system, takes the home directory that the system knows: the user's settings, guards
    and places of secrets are there.
    """
    if os.environ.get("HOME"):
        return
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user need not be known to the system
        return
    if os.path.isdir(home):
        os.environ["HOME"] = home


def temporary_directory() -> str:
    """The first directory that TMPDIR, TEMP or TMP names, or that is usual, in which this process may make files. `tempfile` finds
    the same one, but makes a file to find it, and takes long to load. Raises OSError if there is none.
    """
    named = filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP")))
    for place in (*named, "/tmp", "/var/tmp", "/usr/tmp"):  # noqa: S108 - nothing is made there
        if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return os.path.abspath(place)
    raise FileNotFoundError("there is no directory for temporary files")


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def leave_working_directory_out(arguments: list[str]) -> list[str]:
    """Removes entries from `sys.path`: relative entries, and those to which a path leads through a place that commands may
    write, or by a link there. These places are the current directory, the directories that `--cd` and `--add-dir` could
    name, the caches of packages and the shared memory. Also removes the directory of the script that started ralph,
    because it holds no modules.

    A directory of installed packages is not removed, such as a virtual environment inside a checkout, unless
    `PYTHONPATH` names it. Returns the removed entries that came from `PYTHONPATH`.

    In the same way it leaves out the directory of byte code that `PYTHONPYCACHEPREFIX` names, and hides the variables
    `READ_LATER` from the libraries of this process. `os.environ` keeps them for commands.
    """
    try:
        here = os.getcwd()
    except OSError:  # it is gone, and nothing can lie in it
        here = os.sep
    given = os.environ.get("PYTHONPATH")
    named = {os.path.normpath(os.path.join(here, one)) for one in given.split(os.pathsep)} if given else set()
    works = ("", *_named_directories(arguments), *written_by_all(os.environ))
    # If the directory is the root of the file system, only the root itself counts: every path is below it.
    inside = tuple(os.path.realpath(os.path.join(here, path)) + os.sep for path in works)

    def leads_inside(path: str) -> bool:
        try:
            return any(
                (place + os.sep).startswith(inside) for place, _, _ in way_to(os.path.join(here, path))
            )
        except OSError:
            return True

    scripts = _directory_of_scripts()
    kept, left_out = [], []
    for entry in sys.path:
        is_installed = entry not in named and _is_for_installed_modules(entry)
        is_at_work = not is_installed and leads_inside(entry)
        if os.path.isabs(entry) and not is_at_work and (entry != scripts or entry in named):
            kept.append(entry)
        else:
            left_out.append(entry)
    sys.path[:] = kept
    if sys.pycache_prefix is not None and leads_inside(sys.pycache_prefix):
        sys.pycache_prefix = None
    for name in READ_LATER:
        if name in os.environ and any(map(leads_inside, os.environ[name].split(os.pathsep))):
            os.unsetenv(name)
    return [entry for entry in left_out if entry in named]


def way_to(
    path: str, target_of: "Callable[[str], str | None] | None" = None
) -> "Iterator[tuple[str, bool, list[str]]]":
    """Yields each path that the system looks up on the way to an absolute path, whether it is a symbolic link, and the names
    that follow it, the next one last; and at the end where the path leads. No path contains links but as its last part.
    `target_of` is `link_target`, or one that remembers. Raises OSError if there are more links than the system follows.
    """
    here, ahead, links = "/", path.split("/")[::-1], 0
    while ahead:
        part = ahead.pop()
        if part in ("", os.curdir, os.pardir):
            here = os.path.dirname(here) if part == os.pardir else here
            continue
        place = f"{here.rstrip('/')}/{part}"
        target = (target_of or link_target)(place)
        yield place, target is not None, ahead
        if target is None:
            here = place
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(f"{path}: too many links")
        here = "/" if target.startswith("/") else here
        ahead += target.split("/")[::-1]
    yield here, False, ahead


def link_target(place: str) -> str | None:
    """Where a symbolic link leads. None if it is not a link, or not there."""
    try:
        return os.readlink(place)
    except OSError:
        return None


def written_by_all(environment: "Mapping[str, str]") -> "list[str]":
    """The places that the commands of every run may write: shared memory, and the caches for their packages, also those that were
    used before a variable named others.
    """
    caches = map(package_caches, (environment, {"HOME": environment.get("HOME", "")}))
    return list(dict.fromkeys((SHARED_MEMORY, *filter(None, caches))))


def package_caches(environment: "Mapping[str, str]") -> str | None:
    """The directory of the package caches of commands, one for each checkout. None if the environment names no home."""
    home, base = environment.get("HOME", ""), environment.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    return f"{os.path.realpath(base)}/{PACKAGE_CACHES}"


def _directory_of_scripts() -> str:
    """That of the script `ralph`, which Python put first in `sys.path`. Empty if another program started ralph."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    return (
        os.path.dirname(os.path.realpath(script))
        if script and os.path.basename(script) in {"ralph", "ralph-headless"}
        else ""
    )


def _is_for_installed_modules(entry: str) -> bool:
    """Whether it has the standard library or installed packages (on Debian, `dist-packages`)."""
    is_standard = (entry + os.sep).startswith(os.path.dirname(os.__file__) + os.sep)
    return is_standard or os.path.basename(entry) in ("site-packages", "dist-packages")


def _named_directories(arguments: list[str]) -> list[str]:
    """Every argument that could be the value of `--cd` or `--add-dir`. Others among them do no harm."""
    found = []
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            if name in ("--cd", "--add-dir"):
                found.append(value if equals else following)
        elif argument.startswith("-") and "C" in argument:
            found.append(argument.partition("C")[2] or following)
    return found
