"""Finds the configuration files that ssh reads, and what it runs because of them (ssh_config(5)). It runs no program."""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from glob import iglob
from itertools import islice, product
from typing import TYPE_CHECKING

from ralph.machine.files.paths import beginning_of, is_within, is_within_any
from ralph.machine.own_process import way_to
from ralph.places.named_paths import absolute_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch

_SYSTEM = "/etc/ssh"
_OPTION = re.compile(r"(?:^|\s)-F\s*[\"']?([^\s\"']+)")
# As OpenSSH splits a line (`strdelim` and `argv_split` in its misc.c).
_LINE = re.compile(r'^[ \t\r\f\v=]*(?:(\w*)"(\w+)"|(\w+)(?=[ \t\r\f\v=]))[ \t\r\f\v=]*(.+)$', re.MULTILINE)
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.?|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")
_PART = re.compile(r"""\\(["'\\ ])|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""")
_ESCAPED = re.compile(r"""\\(["'\\])""")
# glob(3) takes a backslash away that the words have kept.
_LEFT_OVER = re.compile(r"\\(.)")
_BEHIND_NUL = re.compile(r"\0[^\n]*")
_PATTERN = re.compile(r"[*?\[]")
_TOKEN = re.compile(r"%(.)|\$\{(\w+)\}")
# Programs, libraries, and files that say which hosts are believed.
_USES = frozenset(
    """
    proxycommand localcommand knownhostscommand match pkcs11provider smartcarddevice securitykeyprovider xauthlocation
    userknownhostsfile globalknownhostsfile
    """.split()
)
_MOST_FILES = 1_000


def ssh_files(commands: Iterable[str], homes: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """The files that ssh reads if one of `commands` (none: plain `ssh`) starts it, and the directories in which patterns look for
    some. Neither need exist. A file after `-F` replaces the usual ones. `variables` are those of the environment.
    """
    named = [found[1] for command in commands for found in _OPTION.finditer(command)]
    usual = [*(f"{home}/.ssh/config" for home in homes), f"{_SYSTEM}/ssh_config"]
    pending = [
        (absolute_path(file, "/", next(iter(homes), "")), True) for file in named or usual if file != "none"
    ]
    known = {file for file, _ in pending}
    for file, is_file in pending:
        included = (
            _LEFT_OVER.sub(
                r"\1", _PART.sub(lambda part: part[1] or _ESCAPED.sub(r"\1", part[2] or part[3] or ""), word)
            )
            for name, value in (_settings(file) if is_file and len(known) < _MOST_FILES else ())
            for word in (_WORD.findall(value) if name == "include" else ())
        )
        for one, home in product(included, homes):
            # Relative paths are relative to the directory of the user's or of the system's configuration.
            directory = _SYSTEM if is_within(file, _SYSTEM) else f"{home}/.ssh"
            path = absolute_path(_with_values(one, home, variables, "*"), directory, home)
            pattern = _PATTERN.search(path)
            found = [(path, True)]
            if pattern:
                found = [(os.path.dirname(path[: pattern.start() + 1]), False)]
                found += [(match, True) for match in islice(iglob(path), _MOST_FILES)]
            pending += (new for new in found if new[0] not in known)
            known.update(new for new, _ in found)
    return tuple(file for file, _ in pending)


def used_by_ssh(file: str, homes: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yields the values of a configuration file that name programs, libraries or hosts to believe."""
    for name, value in _settings(file):
        yield from (_with_values(value, home, variables) for home in homes if name in _USES)


def ssh_files_of_agents(
    commands: Iterable[str], search: ProgramSearch, homes: Sequence[str], variables: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields those of `ssh_files` to which the way leads through places that commands may write, each with the parts of the way
    there: links, a file or a directory; or of which such a place has a second name. `~/.ssh` in such a place is closed to
    commands all the same, unless it is or has such a place itself.
    """
    closed = [f"{os.path.realpath(home)}/.ssh" for home in homes]

    def is_agents(place: str) -> bool:
        return any(
            one != os.sep
            and is_within(place, one)
            and not any(
                kept != one and is_within(kept, one) and (place == one or is_within(place, kept))
                for kept in closed
            )
            for one in search.roots
        )

    for file in ssh_files(commands, homes, variables):
        links, last, is_open = [], "/", False
        try:
            for place, is_link, _ in way_to(file):
                last, is_open = place, is_open or is_agents(place)
                links += [place] if is_link else []
        except OSError:  # more links than the system follows
            is_open = True
        if is_open:
            yield (
                file,
                [one for one in dict.fromkeys((*links, last)) if is_agents(one) and one not in search.roots],
            )
        elif not is_within_any(last, search.roots) and search.may_be_changed(last):
            yield file, [last]


def _settings(file: str) -> Iterator[tuple[str, str]]:
    text = _BEHIND_NUL.sub("", os.fsdecode(beginning_of(file)))
    return (("".join(name).lower(), value) for *name, value in _LINE.findall(text))


def _with_values(text: str, home: str, variables: Mapping[str, str], unknown: str | None = None) -> str:
    """Replaces tokens and variables (ssh_config(5)). One that depends on the host becomes `unknown`, or stays as it is."""
    user = {"%": "%", "d": home, "u": _login_name(), "i": str(os.getuid())}

    def value(found: re.Match[str]) -> str:
        known = variables.get(found[2]) if found[2] else user.get(found[1])
        return known if known is not None else unknown or found[0]

    return _TOKEN.sub(value, text)


def _login_name() -> str:
    with suppress(KeyError):  # a container's user need not be known to the system
        return pwd.getpwuid(os.getuid()).pw_name
    return ""
