"""Says what commands get of home directories. It runs no program.

Besides the fixed places of the table, a run needs directories of PATH, packages that are installed as editable, and the checkouts of
the roots. What is where commands may write is not believed, and no link there is followed: `outside` resolves a path
(`LinkResolver`), and returns None for those.

A configuration file with credentials gets a copy without: what looks like one, by its name or its form, is cut. TOML, XML and git's
configuration are parsed, and a copy of them has no comments. Other formats are judged line by line. What cannot be understood counts
as a file of credentials, and its copy is empty.

The homes of others that this user can read are closed: as user id 0 those of all users, and on Windows Subsystem for Linux those of
Windows.

The user's own caches are laid under those of a checkout: what they hold appears there as links, which commands can read and not
change. No link in the caches of the checkout is followed, because commands write there.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import tomllib
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import (
    MOST_BYTES,
    beginning_of,
    entries_in,
    is_folder,
    is_within,
    repositories_above,
)
from ralph.places import table
from ralph.places.git_config import UNREADABLE, plain_value, raw_settings, text_of
from ralph.places.places import XDG, is_needed_as_a_whole, is_of_a_person
from ralph.places.table import EMPTY_FILES, GIT_ENTRIES, LAYERS, expanded
from ralph.values.credentials import looks_like_credential_name
from ralph.values.redaction import MARK, Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ralph.places.git_places import GitPlaces

    Outside = Callable[[str], str | None]
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from xml.etree.ElementTree import Element

    from ralph.places.table import Bases

_MOST_PACKAGES = 5000
_BINARIES = ("bin", "sbin")
# What the directory of an installation has beside `bin`, and a checkout with a `bin` need not have.
_INSTALLED = ("lib", "lib64", "libexec", "share", "pyvenv.cfg", "conda-meta")
# Modules of setuptools, editables, scikit-build-core and meson-python that find those of an editable package.
_FINDER = re.compile(r"_+editable_.*\.py|_.*_editable(?:_loader)?\.py")
_QUOTED_PATH = re.compile(r"""(?<=['"])/[^'"\n]+(?=['"])""")


def program_directories(variables: Mapping[str, str], outside: Outside) -> Iterator[str]:
    """Yields the directories of PATH, and those of the installations that they belong to, such as `~/jdk` for `~/jdk/bin`."""
    for directory in _search_path(variables, outside):
        yield directory
        above = os.path.dirname(directory)
        is_installed = any(os.path.exists(f"{above}/{name}") for name in _INSTALLED)
        if os.path.basename(directory) in _BINARIES and is_installed and not os.path.lexists(f"{above}/.git"):
            yield above


def editable_packages(variables: Mapping[str, str], outside: Outside) -> Iterator[str]:
    """Yields the directories of editable packages in the Python environments of PATH, VIRTUAL_ENV and CONDA_PREFIX. pip,
    setuptools and other tools name them in `.pth` files, in finders and in `direct_url.json`.
    """
    named = (variables.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    above = map(os.path.dirname, _search_path(variables, outside))
    for prefix in dict.fromkeys((*filter(os.path.isabs, named), *above)):
        for packages in site_packages(f"{prefix}/lib"):
            # These files name directories and modules.
            found = (path for _, path in named_in(packages, outside))
            yield from (path for path in found if os.path.isdir(path) or path.endswith(".py"))


def site_packages(library: str) -> Iterator[str]:
    """Yields where each version of Python that has its modules in a directory such as `/usr/lib` may have installed packages."""
    for version in sorted(entry.path for entry in entries_in(library)):
        if os.path.basename(version).startswith(("python", "pypy")):
            yield from (f"{version}/site-packages", f"{version}/dist-packages")


def named_in(packages: str, outside: Outside) -> Iterator[tuple[str, str]]:
    """Yields each path from which a Python also takes modules because of a file in its `site-packages`, behind that file."""
    for file in islice(sorted(entry.path for entry in entries_in(packages)), _MOST_PACKAGES):
        if file.endswith(".pth"):
            for line in _text(file, outside).splitlines():
                is_code = line.startswith(("import ", "import\t"))
                paths = _QUOTED_PATH.findall(line) if is_code else [line.rstrip()] * (line[:1] != "#")
                yield from ((file, os.path.normpath(os.path.join(packages, path))) for path in paths if path)
        elif _FINDER.fullmatch(os.path.basename(file)):
            yield from ((file, path) for path in _QUOTED_PATH.findall(_text(file, outside)))
        elif file.endswith(".dist-info"):
            with suppress(ValueError, AttributeError, LookupError):  # it is not JSON of this form
                told = json.loads(_text(f"{file}/direct_url.json", outside))
                if told.get("dir_info", {}).get("editable"):
                    yield file, unquote(urlsplit(told["url"]).path)


def checkouts(roots: Sequence[str], git: GitPlaces) -> Iterator[str]:
    """Yields the checkouts around the roots, and the main checkout or bare repository of a linked worktree that it knows."""
    for root in roots:
        yield from islice(
            (top for top, is_checkout in repositories_above(root) if is_checkout and top != root), 1
        )
    for path in dict.fromkeys((*git.granted, *(os.path.dirname(part) for part in git.parts))):
        if any(is_within(root, path) for root in roots):  # such as a bare repository around its worktrees
            yield from (f"{path}/{name}" for name in GIT_ENTRIES)
        else:
            yield os.path.dirname(path) if os.path.basename(path) == ".git" else path


def holds_credentials(path: str) -> bool:
    """Whether a configuration file holds something that a copy must not. True if it cannot be read as text."""
    if not os.path.isfile(path):
        return False
    text = filtered(path)
    return text is None or text.encode() != beginning_of(path)


def filtered(path: str) -> str | None:
    """The text of a configuration file without credentials. None if it is not text, or too long."""
    data = beginning_of(path)
    try:
        return None if len(data) >= MOST_BYTES else without_credentials(os.path.basename(path), data.decode())
    except UnicodeDecodeError:
        return None


def _text(file: str, outside: Outside) -> str:
    real = outside(file)
    return "" if real is None else os.fsdecode(beginning_of(real))


def _search_path(variables: Mapping[str, str], outside: Outside) -> list[str]:
    found = filter(os.path.isabs, variables.get("PATH", os.defpath).split(os.pathsep))
    return [real for real in map(outside, found) if real is not None]


# npm: `//host/:_authToken`. Git: `http.extraHeader`. Poetry: `http-basic`. SonarQube: `sonar.login`, which may be a token. Many
# tools: `password`, `npmAuthIdent`, `repository-token`.
_SECRET_NAME = re.compile(
    r"auth(?!or(?!i[sz]))|token|pass(?!ive)|pwd?\b|pw$|secret|credential|cookie|extraheader|http-basic|sonar\.login|\botp\b"
    r"|(?:api|access|private)[-_.]?key|personal[-_.]?access",
    re.IGNORECASE,
)
_NAMED = re.compile(r"""([\w$.:/@%+-]{1,200})["']?\s*(?:=|:(?!/))""")
_COMMENT = re.compile(r"(?m)(?:^|\s)[#;!]\s*([\w-]+)\s+\S+[ \t]*$")
# A user with a password, in a URL (git allows quotes there) and without a scheme; tokens in the paths of Anaconda and
# Cloudsmith (their documentation), and in queries; words of Gradle's scripts; passwords for sshpass(1) and curl(1).
_FORM = re.compile(
    r"""://[^\s/:@]+:[^\s/]+@"""
    r"""|(?<![\w./@+-])[^\s:/@'"=]{1,200}:(?!//)[^\s@'"/]{1,200}@[a-z]"""
    r"""|(?<![\w./@+-])[^\s:/@'"=]{8,200}@[\w.-]{1,200}:\d"""
    r"""|://\S{1,200}?/(?:t|auth)/[^/\s'"]{4}|://dl\.cloudsmith\.io/(?!public/|basic/)|[?&](?:sig|signature|key|code)=[^&\s'"]"""
    r"""|(?:pass(?:word|wd|phrase)|token|secret|apikey)[\s(]\s*['"]\S"""
    r"""|--(?:pass(?:word|wd|phrase)?|token|secret|api-?key|auth)["',=\s]+[^\s"',=-]"""
    r"""|\bsshpass\b|--oauth2-bearer\b|(?:^|[\s'"])(?:-u|--user[=\s])[=\s]*[^\s:-][^\s:]*:""",
    re.IGNORECASE,
)
# Names are free in these files, so only known ones are kept. Gradle, Kotlin and Android documentation; MIRRORS of Maven.
_KEPT = {
    "gradle.properties": re.compile(
        r"(?:org\.gradle|kotlin|android|ksp)\.|systemProp\.https?\.(?:proxy(?:Host|Port)|nonProxyHosts)\b"
    )
}
_BY_LINES = re.compile(r".*(?:rc|\.conf|\.properties|\.ya?ml|env)", re.DOTALL)
_YAML = re.compile(r".*(?:\.ya?ml|condarc)", re.DOTALL)
_FIRST = re.compile(
    r"""[#;!\s-]*(?:export\s+)?["']?(?P<key>[^=\s"']+?)["']?(?:\s*=|\s*:(?=\s|$)|\s+(?=\S))\s*(?P<more>\S?)"""
)
_GOES_ON = re.compile(
    r"\\$|<<|[:=]\s*[&*]"
)  # a line joined to the next, a here-document, an anchor or alias of YAML
_SECRET_ELEMENTS = frozenset(("servers", "packagesourcecredentials", "apikeys", "username"))
_NAMES_OF_ELEMENTS = ("name", "key", "id")


def without_credentials(name: str, text: str) -> str:
    """`text` without credentials: as it is if it holds none, and empty if it cannot be understood. `name` says its format."""
    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        return text
    if name.endswith((".xml", ".Config", ".config")) or start.startswith("<"):
        return _without_secret_elements(text)
    if _BY_LINES.fullmatch(name):
        copy = _without_secret_lines(name, text)
    else:
        copy = _without_secret_settings(name, text)
    return "" if _holds_secret(copy) else copy


def _holds_secret(text: str) -> bool:
    return (
        any(map(_is_secret_name, _NAMED.findall(text)))
        or any(map(_SECRET_NAME.match, _COMMENT.findall(text)))
        or _FORM.search(text) is not None
        or MARK in text
        or Redactor().redact_all(text) != text
    )


def _is_secret_name(name: str) -> bool:
    return (
        _SECRET_NAME.search(name) is not None
        or looks_like_credential_name(name)
        or looks_like_credential_name(name.rpartition(".")[2])
    )


# --- TOML and git's configuration


def _without_secret_settings(name: str, text: str) -> str:
    settings = list(raw_settings(text.encode("utf-8", "surrogateescape")))
    if name.endswith(".toml") or any(one == UNREADABLE for one, _ in settings):
        # Git's configuration also names files of other formats, such as lists of patterns.
        is_toml = name.endswith((".toml", "config"))
        return _without_secret_tables(text) if is_toml else _without_secret_lines(name, text)
    kept = [(one, raw) for one, raw in settings if not _is_secret_setting(one, raw)]
    copy = text_of(kept)
    return copy if len(kept) < len(settings) or _holds_secret(text) else text


def _without_secret_tables(text: str) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ""
    kept = _kept_values(found)
    copy = "".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in kept.items())
    return copy if kept != found or _holds_secret(text) else text


def _is_secret_setting(name: str, raw: str) -> bool:
    section, _, key = name.rpartition(".")
    part = section.partition(".")[2]
    return _is_secret_name(key) or _holds_secret(part) or _holds_secret(plain_value(raw))


def _kept_values(value: Any) -> Any:
    """The tables and arrays of a TOML file without secret ones and without secret strings."""
    if isinstance(value, dict) and value.get("redact") is True:  # mise
        return None
    if isinstance(value, dict):
        kept = {key: _kept_values(one) for key, one in value.items() if not _is_secret_name(key)}
        return {key: one for key, one in kept.items() if one is not None and not _holds_secret(key)}
    if isinstance(value, list):
        return [one for one in map(_kept_values, value) if one is not None]
    return None if isinstance(value, str) and _holds_secret(value) else value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml(key)} = {_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool | float) else str(value)


# --- Lines: `key = value`, `key: value` and `key value`, in sections or without


def _without_secret_lines(name: str, text: str) -> str:
    # A key in PEM has many lines. Redacted, it is a part of one.
    lines = Redactor().redact_all(text).splitlines(keepends=True)
    copy = "".join(_kept_lines(lines, _KEPT.get(name)))
    # What a bracket of YAML opens may continue on any line.
    is_open = _YAML.fullmatch(name) and any(
        line.count(opening) != line.count(closing) for line in lines for opening, closing in ("{}", "[]")
    )
    return "" if is_open and _holds_secret(text) else copy


def _kept_lines(lines: list[str], known: re.Pattern[str] | None) -> Iterator[str]:
    cut_indent: int | None = None
    """The indentation of the last line if it was cut: deeper lines belong to it."""
    is_continued, is_section_cut = False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        belongs = is_continued or (cut_indent is not None and indent > cut_indent and line.strip())
        if line.lstrip("#; \t").startswith("[") and not belongs:
            is_section_cut = _holds_secret(line)
        if not (belongs or is_section_cut or _is_secret_line(line, known)):
            cut_indent = None if line.strip() else cut_indent
            yield line
            continue
        if not belongs:
            cut_indent = indent
        if _GOES_ON.search(line) or any(line.count(quote) % 2 for quote in "\"'"):
            return  # nobody knows where its value ends
        found = _FIRST.match(line)
        is_continued = not belongs and found is not None and not found["more"]


def _is_secret_line(line: str, known: re.Pattern[str] | None) -> bool:
    found = _FIRST.match(line)
    key = "" if found is None else found["key"]
    is_setting = key and not line.lstrip().startswith(("#", ";", "!"))
    if known is not None and not line.lstrip().startswith(("#", "!")) and not known.match(line.strip()):
        return bool(line.strip())
    return (bool(is_setting) and _is_secret_name(key)) or _holds_secret(line)


# --- XML


def _without_secret_elements(text: str) -> str:
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - few homes have such a file; it is the user's own

    if re.search(r"<!(?:DOCTYPE|ENTITY)|<\?(?!xml\s)", text):
        return ""
    try:
        top = ET.fromstring(text)  # noqa: S314 - without a document type, nothing can be expanded
    except (ET.ParseError, ValueError):
        return ""
    if not _cut_elements(top) and not any(map(_is_secret_comment, re.findall(r"(?s)<!--(.*?)-->", text))):
        return text
    return ET.tostring(top, encoding="unicode")


def _is_secret_comment(comment: str) -> bool:
    return _SECRET_NAME.search(comment) is not None or _holds_secret(comment)


def _cut_elements(above: Element) -> bool:
    """Cuts the secret elements below one, and names of namespaces, which not each reader understands. Returns whether there were
    secrets. The parser has left out comments already.
    """
    is_cut = False
    above.tag = _plain(above)
    for element in list(above):
        if _is_secret_element(element) or any(map(_is_secret_part, element)):
            above.remove(element)
            is_cut = True
        else:
            is_cut = _cut_elements(element) or is_cut
    return is_cut


def _is_secret_element(element: Element) -> bool:
    names = (_plain(element), *(element.get(name, "") for name in _NAMES_OF_ELEMENTS))
    return (
        names[0].lower() in _SECRET_ELEMENTS
        or any(map(_is_secret_name, (*names, *element.attrib)))
        or any(map(_holds_secret, (element.text or "", element.tail or "", *element.attrib.values())))
    )


def _is_secret_part(element: Element) -> bool:
    """Whether an element makes the one around it a secret, as a URL does, or the name beside a value."""
    name = _plain(element)
    return (name == "url" and _is_secret_element(element)) or (
        name in _NAMES_OF_ELEMENTS and _is_secret_name((element.text or "").strip())
    )


def _plain(element: Element) -> str:
    return element.tag.rpartition("}")[2]


_MOST_USERS = 200
# Microsoft's documentation of WSL, `automount.root`: the directories in which the drives of Windows are mounted, each by its letter.
_AROUND_DRIVES = ("/mnt", "/")
# The state of ralph has no template of its own there, because variables name it.
_STATE = ".local/state/ralph"


def other_homes(environment: Mapping[str, str], own: Iterable[str], roots: Sequence[str]) -> tuple[str, ...]:
    """The homes of others, without links. That of an account of the system or of a container's program is none if it is, or
    contains, a root: files such as `.npmrc` are of the work there. Neither are directories of the system.
    """
    known = {*map(os.path.realpath, own)}
    found = (os.path.realpath(home) for home in _homes_of_users(environment) if os.path.isdir(home))
    users = (
        home
        for home in dict.fromkeys(found)
        if home not in known
        and not is_needed_as_a_whole(home)
        and (is_of_a_person(home) or not any(is_within(root, home) for root in roots))
    )
    return tuple(dict.fromkeys((*islice(users, _MOST_USERS), *_homes_of_windows())))


def existing_in(homes: Sequence[str], guard: str) -> Iterator[str]:
    """Yields the existing paths in homes for which the table has a guard."""
    if not homes:  # as in most runs
        return
    templates = (template for row in table.ROWS if guard in row.guards for template in row.where)
    below: dict[str, list[str]] = {}
    for inside in filter(None, (*map(_in_home, templates), _STATE if guard == table.UNREAD else "")):
        below.setdefault(inside.partition("/")[0], []).append(inside)
    for home in homes:
        for entry in entries_in(home):
            paths = (f"{home}/{inside}" for inside in below.get(entry.name, ()))
            yield from filter(os.path.lexists, paths)


def _in_home(template: str) -> str:
    """The path of a template relative to a home in which no variable moves it, or an empty text."""
    first, _, rest = template.partition("/")
    if first == "~":
        return rest
    _, usual = XDG.get(first.strip("{}"), ("", ""))
    return usual and f"{usual}/{rest}"


def _homes_of_users(environment: Mapping[str, str]) -> Iterator[str]:
    if os.getuid() != 0:
        return
    with suppress(KeyError):
        # A directory service need not list its users.
        yield pwd.getpwnam(environment.get("SUDO_USER", "")).pw_dir
    yield from (user.pw_dir for user in pwd.getpwall())


def _homes_of_windows() -> Iterator[str]:
    for around in _AROUND_DRIVES:
        drives = (entry.path for entry in entries_in(around) if len(entry.name) == 1)
        for drive in drives:
            yield from (entry.path for entry in entries_in(f"{drive}/Users", is_folder))


_MOST_ENTRIES = 2000
"""The maximum number of entries of one directory. Caches of models and browsers have tens."""
_MOST_COPIED_BYTES = 64 * 1024
"""The maximum size of a file that is copied. A tool may write such a file again in its place, as Hugging Face's hub does with the name of a revision."""
_HELD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def lay_caches(
    packages: str,
    bases: Bases,
    environment: Mapping[str, str],
    is_readable: Callable[[str], bool],
    may_copy: Callable[[str], bool] = lambda _: True,
) -> None:
    """Adds empty files and what is new in the user's caches, as the table says, and removes links whose target is gone. `packages` is the
    directory of the checkout's caches, without links. `is_readable`: commands may read a path, and not write it. `may_copy`: a file
    holds no credentials by its place. One that may is linked, because commands see it without them, and a copy is removed. What
    cannot be laid out stays.
    """
    for directory, name in EMPTY_FILES:
        with suppress(OSError), opened(packages, _HELD) as top, _made(directory, top) as into:
            os.close(os.open(name, _NEW, 0o600, dir_fd=into))
    for place, depth, sources in LAYERS:
        for template in sources:
            for path in expanded(template, bases, environment):
                source = os.path.realpath(path)
                if is_readable(source) and os.path.isdir(source):
                    with suppress(OSError), ExitStack() as held:
                        into = held.enter_context(opened(packages, _HELD))
                        for part in place.split("/"):
                            into = held.enter_context(_made(part, into))
                        _lay_entries(source, into, depth, is_readable, may_copy)


def _made(name: str, directory: int) -> AbstractContextManager[int]:
    """Opens a directory in an open one, and makes it if it is missing. Raises OSError if it is anything else."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=directory)
    return opened(name, _HELD, dir_fd=directory)


def _lay_entries(
    source: str, into: int, depth: int, is_readable: Callable[[str], bool], may_copy: Callable[[str], bool]
) -> None:
    names = os.listdir(source)
    there = {*os.listdir(into)}
    for name in there.difference(names):
        with suppress(OSError):  # it is not a link
            if os.readlink(name, dir_fd=into) == f"{source}/{name}":
                os.unlink(name, dir_fd=into)
    for name in islice(names, _MOST_ENTRIES):
        path = f"{source}/{name}"
        status = os.lstat(path)
        if name in there and not may_copy(path) and _is_file(name, into):
            os.unlink(name, dir_fd=into)
            there.remove(name)
        if depth > 1 and stat.S_ISDIR(status.st_mode):
            with _made(name, into) as below:
                _lay_entries(path, below, depth - 1, is_readable, may_copy)
        elif name in there or not is_readable(path):
            continue
        elif stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_COPIED_BYTES and may_copy(path):
            with opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as read:
                content = os.read(read, _MOST_COPIED_BYTES)
            with opened(name, _NEW, dir_fd=into) as written:
                os.write(written, content)
        else:
            os.symlink(path, name, dir_fd=into)


def _is_file(name: str, directory: int) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
