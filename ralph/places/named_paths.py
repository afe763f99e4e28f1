"""Finds the paths that texts name: those in a command or in a value of git's configuration, the files that git's configuration names,
and those that ssh reads and what it runs because of them (ssh_config(5)). It runs no program.

What git's configuration names is in the work further configuration, which commands must not change, and programs, which are the
project's own code. In the home, it is what git reads.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from glob import iglob
from itertools import chain, islice, product
from shlex import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.paths import (
    beginning_of,
    directory_named_in,
    entries_in,
    git_installation,
    is_within,
    is_within_any,
    leads_into,
    links_and_file,
)
from ralph.machine.own_process import way_to
from ralph.places.git_config import ATTRIBUTES, UNREADABLE, WORKTREE, names_program, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch

_WORD = re.compile(r"[^\s\"'`;|&()<>$=!]+")
# Of `${NAME...}` the value counts, or what stands there in its place (bash(1), Parameter Expansion).
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*)|(?::?\?|[%#/^,@]|: *\d)[^{}]*)?\})")
_WORKING_DIRECTORY = re.compile(
    r"(?:\$\(|`)(?:pwd|realpath \.|git rev-parse --show-toplevel)(?: 2> ?/dev/null)?[)`]|(?<!\S)~\+(?=/)"
)
_MOST_ROUNDS = 5
_ASSIGNED = re.compile(r"(?<![\w$])(\w+)\+?=([^\s;|&()<>]*)")
_QUOTES = re.compile(r"[\"'`\\]")
# A word that may be the name of a variable that the line sets, such as that of `read`, `for` or an assignment.
_MAY_BE_SET = re.compile(r"(?<![\w$/.{~-])[A-Za-z_]\w*(?![\w/.])")
# A variable of which `_ASSIGNED` does not give the value: it gets longer, or has what quotes keep from the shell.
_NOT_READ = re.compile(
    r"(?<![\w$])(\w+)(?:\+=|=[^\s;|&()<>]*\\|=[^\s;|&()<>\"']*([\"'])(?:(?!\2).)*[\s;|&()<>])", re.DOTALL
)
# Where an absolute path or one of a home begins, and where it may end: at white space, at a quote, or with the text.
_PATH_BEGINS = re.compile(r"(?:(?<![^\s\"'`;|&()<>=,:!{])|(?<=\s-[A-Za-z]))[/~]")
_PATH_ENDS = tuple(map(re.compile, (r"[\s;|&()<>:,]", r"[\"'`]", r"\Z")))
# Characters of a path that mean something else to a shell. A character for private use stands for each in texts with values.
_SPECIAL = " \t\n'\"`\\;|&()<>$=![]{}*?#~,:%"
_HIDDEN = {ord(char): 0xE000 + ord(char) for char in _SPECIAL}
_KEPT = {char: hidden for char, hidden in _HIDDEN.items() if chr(char) not in " \t\n"}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
_OF_INSTALLATION = "%(prefix)/"


def shown(text: str) -> str:
    """A text with the characters of paths that `with_values` has hidden."""
    return text.translate(_SHOWN)


def assigned(text: str) -> list[tuple[str, str]]:
    """The variables that a text sets, each with a value as it is written, without quotes."""
    return _ASSIGNED.findall(_QUOTES.sub("", text))


def with_values(text: str, known: Mapping[str, str], *, only_sure: bool = False) -> str:
    """A text with the values of variables, also of those that it sets. With `only_sure`, no value stands for a variable that may have
    another one.
    """
    text = _WORKING_DIRECTORY.sub("$PWD", text)
    for _ in range(_MOST_ROUNDS):
        given = assigned(text)
        values = {**dict(given), **known}
        if only_sure:
            set_again = {*_MAY_BE_SET.findall(_QUOTES.sub("", text))}
            set_again -= {name for name, value in given if f"${name}" in value}
            times = Counter(name for name, _ in {*given})
            times.update(found[1] for found in _NOT_READ.finditer(text))
            sure = {name: one for name, one in given if times[name] == 1 and "$" not in one}
            values = {name: value for name, value in known.items() if name not in set_again} | sure
        text = _VARIABLE.sub(partial(_value, values, hidden=only_sure), text)
    return text


def _value(values: Mapping[str, str], found: re.Match[str], *, hidden: bool) -> str:
    value = values.get(found[1] or found[2])
    if value:
        is_path = value.startswith("/") and os.path.exists(value)
        return value.translate(_HIDDEN) if is_path else value.translate(_KEPT) if hidden else value
    return found[0] if found[3] is None else found[3]


def paths_in(text: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yields what may be a path in a command or another value: absolute paths, with `~` and variables replaced, and every word
    that could be a relative one. A path may have spaces or be quoted, so there are several for each place where one begins, of
    which the longest may have more behind it.
    """
    home, text = variables.get("HOME", ""), with_values(text, variables)
    for form in dict.fromkeys((text, _QUOTES.sub("", text))):
        for begin in _PATH_BEGINS.finditer(form):
            ends = (one.search(form, begin.start()) for one in _PATH_ENDS)
            found = (absolute_path(form[begin.start() : end.start()], "/", home) for end in ends if end)
            yield from map(shown, found)
        yield from (shown(word) for word in _WORD.findall(form) if word[0] not in "/~")
        words = shlex(form, posix=True, punctuation_chars=True)
        words.whitespace_split, words.commenters = True, ""
        with suppress(ValueError):  # a quote without its end
            yield from (absolute_path(shown(word), "", home) for word in words if word)


def absolute_path(value: str, directory: str, home: str) -> str:
    """An absolute path as git reads it (git-config(1), pathname). `%(prefix)` is the directory in which git is installed."""
    if value.startswith(_OF_INSTALLATION):
        return os.path.normpath(f"{git_installation()}/{value.removeprefix(_OF_INSTALLATION)}")
    if value == "~" or value.startswith("~/"):
        return f"{home}{value[1:]}"
    return os.path.join(directory, os.path.expanduser(value) if value.startswith("~") else value)


INCLUDES = re.compile(r"include\.path|includeif\..*\.path", re.DOTALL)
_HOOKS = "core.hookspath"
# git-config(1): the settings whose values are directories or files that git reads.
TEMPLATES = "init.templatedir"
_DIRECTORIES = (_HOOKS, TEMPLATES)
_FILES = re.compile(
    r"core\.(?:excludesfile|attributesfile)|commit\.template|mailmap\.file|gpg\.ssh\.(?:allowedsigners|revocation)file"
)
# Git reads ten files deep (MAX_INCLUDE_DEPTH in its config.c).
_MOST_DEEP = 10
_MOST_FILES = 1_000
_MOST_SHOWN = 3
# The times of files are those of the kernel's last tick, which takes 10 ms at most (CONFIG_HZ).
_TICK_NS = 10_000_000


class NamedByGit(Struct, frozen=True):
    """Absolute paths of what commands may change. Files need not exist."""

    configuration: tuple[str, ...] = ()
    """The files with settings or attributes, and the links on the way to them."""
    programs: tuple[str, ...] = ()
    """Files that commands in the settings name, directories of hooks, and what links in the place of hooks lead to."""


def work_named_by_git(
    roots: Sequence[str],
    git_directories: Sequence[str],
    user_files: Iterable[str],
    home: str,
    search: ProgramSearch,
    *,
    given: Sequence[tuple[str, str]] = (),
) -> NamedByGit:
    """Reads the configuration of the git directories, and the user's own. No path of these contains links. `home` is what `~`
    stands for. `search` knows where commands may write besides. `given` are settings of the user's environment.
    """
    directories, roots = tuple(git_directories), tuple(roots)
    user_files = tuple(absolute_path(file, next(iter(roots), "/"), home) for file in user_files)
    writable = (*roots, *directories, *search.roots)
    own = [(f"{directory}/config", f"{directory}/config.worktree") for directory in directories]
    configuration = {
        place: None for file in chain(*own) for place in links_and_file(file) if place != file
    } | dict.fromkeys(chain.from_iterable(map(links_and_file, user_files)))
    programs: dict[str, None] = {}
    # Git runs programs in a working tree.
    trees = []
    for directory in directories:
        named = [value for name, value in settings(beginning_of(f"{directory}/config")) if name == WORKTREE]
        usual = os.path.dirname(directory_named_in(f"{directory}/gitdir") or directory)
        trees.append((os.path.realpath(f"{directory}/{named[-1]}") if named else usual,))
    top = next(iter(roots), "/")
    all_trees = (*roots, *chain.from_iterable(trees))
    everything = (*((*one, ()) for one in zip(own, trees, strict=True)), (user_files, all_trees, given))
    for files, of_files, more in everything:
        for file, name, value in settings_with_included(files, home, given={os.path.join(top, ""): more}):
            if INCLUDES.fullmatch(name):
                configuration |= dict.fromkeys(
                    links_and_file(absolute_path(value, os.path.dirname(file), home))
                )
            elif name == TEMPLATES:  # `git init` and `git clone` copy both
                copied = absolute_path(value, os.path.dirname(file), home)
                configuration |= dict.fromkeys(links_and_file(f"{copied}/config"))
                programs[f"{copied}/hooks"] = None
            elif name == ATTRIBUTES:
                files_of = (links_and_file(absolute_path(value, tree, home)) for tree in of_files)
                configuration |= dict.fromkeys(chain.from_iterable(files_of))
            else:
                words = [*_words_of(name, value, home)]
                programs |= dict.fromkeys(
                    absolute_path(word, tree, home) for tree in of_files for word in words
                )
    for hooks in (f"{directory}/hooks" for directory in directories):
        linked = [hooks] if os.path.islink(hooks) else filter(os.path.islink, hooks_in(hooks))
        programs |= dict.fromkeys(map(os.path.realpath, linked))
    return NamedByGit(
        tuple(one for one in configuration if is_within_any(one, directories) or search.may_be_changed(one)),
        tuple(one for one in programs if leads_into(one, writable)),
    )


def relative_programs(
    user_files: Iterable[str], home: str, given: Iterable[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """The user's own settings that name a program, or a directory of hooks, in whatever working tree git runs, each with what may
    be a relative path in its value. `given` are settings of the environment.
    """
    found = settings_with_included(user_files, home, given={"/": given})
    words = ((name, word) for _, name, value in found for word in _words_of(name, value, home))
    return tuple(dict.fromkeys((name, word) for name, word in words if word[:1] not in ("", "/", "~", "%")))


def _words_of(name: str, value: str, home: str) -> Iterable[str]:
    if name == _HOOKS:
        return [value]
    is_program = not INCLUDES.fullmatch(name) and name not in (TEMPLATES, WORKTREE, UNREADABLE)
    return paths_in(value, {"HOME": home}) if is_program and names_program(name, value) else ()


def read_by_git(user_files: Iterable[str], home: str, outside: Callable[[str], str | None]) -> Iterator[str]:
    """Yields what the user's git configuration names: what it includes, and lists of patterns. No file is read to which `outside`
    (`LinkResolver`) finds no way.
    """

    def beginning(file: str) -> bytes:
        real = outside(file)
        return b"" if real is None else beginning_of(real)

    for file, name, value in settings_with_included(user_files, home, beginning):
        path = absolute_path(value, os.path.dirname(file), home)
        if os.path.isdir(path):
            if name in _DIRECTORIES:
                yield path
        elif INCLUDES.fullmatch(name) or _FILES.fullmatch(name):
            yield path


def settings_with_included(
    files: Iterable[str],
    home: str,
    beginning: Callable[[str], bytes] = beginning_of,
    given: Mapping[str, Iterable[tuple[str, str]]] = {},
) -> Iterator[tuple[str, str, str]]:
    """Yields the settings of files, and of what they include: the file, the name and the value. `given` are settings that are
    in no file, each with the path of one in whose directory they count.
    """
    depths = dict.fromkeys((*given, *files), 0)
    pending = [*depths]
    for file in pending:
        for name, value in given[file] if file in given else settings(beginning(file)):
            yield file, name, value
            if INCLUDES.fullmatch(name) and depths[file] < _MOST_DEEP and len(pending) < _MOST_FILES:
                # As git does, from the directory of the name, also if that is a link.
                included = absolute_path(value, os.path.dirname(file), home)
                if included not in depths:
                    depths[included] = depths[file] + 1
                    pending.append(included)


def changed_programs(programs: Iterable[str], since_s: float) -> tuple[str, ...]:
    """Those of the programs that have changed since a time, in seconds of the epoch. Of a directory of hooks, these are the
    hooks, or the directory itself if another one may have taken its place.
    """
    changed = []
    for path in programs:
        if os.path.isdir(path):
            hooks = hooks_in(path)
            new = [one for one in hooks if is_new(one, since_s)]
            changed += new or ([path] if hooks and is_new(path, since_s) else [])
        elif os.path.isfile(path) and is_new(path, since_s):
            changed.append(path)
    return tuple(changed)


def about_programs(changed: Sequence[str], roots: Sequence[str]) -> str:
    """A sentence for people. Empty if nothing has changed."""
    if not changed:
        return ""
    names = [os.path.relpath(one, roots[0]) if is_within_any(one, roots[:1]) else one for one in changed]
    return f"git runs {first_of([*map(shown_path, names)])}, which changed during the run"


def shown_path(path: str) -> str:
    """A path in a sentence for people."""
    return path if path.isprintable() else ascii(path)


def first_of(names: Sequence[str]) -> str:
    """The first names in a sentence, and how many more there are."""
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def hooks_in(directory: str) -> list[str]:
    """The paths of the hooks in a directory that git would run: the directory itself if it cannot be listed, which git need not."""
    if os.path.isdir(directory) and not os.access(directory, os.R_OK):
        return [directory]
    files = entries_in(directory, lambda entry: not entry.name.endswith(".sample"))
    return sorted(
        entry.path for entry in files if os.path.isfile(entry.path) and os.access(entry.path, os.X_OK)
    )


def is_new(
    path: str, since_s: float, looks: Sequence[Callable[[str], os.stat_result]] = (os.lstat, os.stat)
) -> bool:
    """Whether a file, or a link to it, has changed since a time, in seconds of the epoch."""
    since_ns = int(since_s * 1e9) - _TICK_NS
    for look in looks:
        with suppress(OSError):
            if look(path).st_ctime_ns >= since_ns:
                return True
    return False


_SYSTEM = "/etc/ssh"
_OPTION = re.compile(r"(?:^|\s)-F\s*[\"']?([^\s\"']+)")
# As OpenSSH splits a line (`strdelim` and `argv_split` in its misc.c).
_LINE = re.compile(r'^[ \t\r\f\v=]*(?:(\w*)"(\w+)"|(\w+)(?=[ \t\r\f\v=]))[ \t\r\f\v=]*(.+)$', re.MULTILINE)
_SSH_WORD = re.compile(r"""(?:[^\s"'\\]|\\.?|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")
_SSH_PART = re.compile(r"""\\(["'\\ ])|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""")
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
                r"\1",
                _SSH_PART.sub(lambda part: part[1] or _ESCAPED.sub(r"\1", part[2] or part[3] or ""), word),
            )
            for name, value in (_settings(file) if is_file and len(known) < _MOST_FILES else ())
            for word in (_SSH_WORD.findall(value) if name == "include" else ())
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
