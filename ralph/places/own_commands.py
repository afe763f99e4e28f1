"""Decides whether commands can change what a command line of the user's runs: a program of git's configuration, of `--notify`, of
keys, a hook outside the sandbox, or an MCP server. It reads the line as the rules for commands do, and runs nothing. What it does
not understand is refused.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from glob import iglob
from itertools import chain, islice, pairwise, product, takewhile
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.files.paths import beginning_of, directories_above, entries_in
from ralph.machine.loading import short_digest
from ralph.machine.own_process import way_to
from ralph.machine.own_programs import (
    interpreter_of,
    interpreters_of,
    link_from_home,
    own_program,
    programs_by_name,
    python_guard,
    trusted_directories,
    unsafe_loads,
    why_not_used,
)
from ralph.permissions.command_table import FORMS
from ralph.permissions.patterns import ANY, Word, name_of, plain
from ralph.permissions.shell import ParsedLine
from ralph.permissions.wrappers import INTERPRETERS, SHELLS, commands_in_assignment, inner_commands
from ralph.places.home import named_in, site_packages
from ralph.places.named_paths import absolute_path, assigned, paths_in, shown, with_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch
    from ralph.permissions.shell_syntax import SimpleCommand

ENTERS = frozenset({"cd", "pushd"})
# Programs that find what they run in a file of the directory in which they start.
FINDS_BY_ITSELF = frozenset(
    """
    make gmake just task rake ant mvn gradle cargo go npm npx pnpm pnpx yarn bunx uv uvx pipx poetry pipenv pdm hatch rye pixi tox nox
    invoke bundle mise asdf direnv devbox nix docker-compose pre-commit ninja cmake ctest dotnet conda mamba micromamba nix-shell compose
    podman-compose sbt mix stack cabal composer bazel bazelisk gulp grunt rails rspec poe tsx ts-node lefthook scons meson opam turbo nx
    run-parts jupyter jupyter-nbconvert prettier eslint stylelint rubocop pylint phpunit bun Rscript electron swift
    """.split()
)
_OF_GIT = frozenset("git gh tig lazygit".split())  # which run what a nested repository names
_INTERPRETER = re.compile(rf"(?:{'|'.join(INTERPRETERS)}|tclsh|expect|java)[0-9.]*")
# Programs that take a script, a module or a directory by its name.
_STARTER = re.compile(
    rf"{_INTERPRETER.pattern}|{'|'.join(SHELLS)}|source|\.|uv|pipx|hatch|poetry|go|swift|pwsh|nu|elixir|bb"
)
# Programs that take their own program from a file, and the option before it.
_FILTER = re.compile(r"(?:[gm]?awk|g?o?jq|jaq|yq|sed)")
_PROGRAM_FILE = re.compile(r"-(?:[A-Za-z]*f|-(?:from-)?file)=?(.*)")
# Commands, by their `_shape`, that run what is known only then: a variable that they set (its name, or one for programs), a script
# behind an option or at any place, their program or code, code from their input, and a module that Node.js looks for.
_KNOWN_LATER = re.compile(
    r".* (?:GIT_(?:(?:COMMON_|OBJECT_)?DIR\w*|WORK_TREE)|(?:XDG_CONFIG_)?HOME)=\S*\0.*"
    r"|(?:export|declare|readonly|typeset|local|read) (?:.* )?[^\s=]*\0.*"
    r"|(?:(?:n?vim?|view|ex|emacs) (?:.* )?-(?:[SsuUl]|-(?:cmd|load|script))|sqlite3 (?:.* )?(?:--?init|\.)|(?:tmux|screen) (?:.* )?-[fc]"
    r"|(?:gdb|lldb) (?:.* )?-(?:[xsS]|-?command|-source)|(?:docker|podman)\S* (?:.* )?-(?:[vf]|-(?:volume|mount|file|config))"
    r"|(?:ssh|scp|sftp) (?:.* )?-[Fo]|(?:at|psql) (?:.* )?-(?:f|-file)|(?:systemd-run|run-parts|pytest) .*"
    r"|(?:[gmn]?awk|g?o?jq|jaq|yq|g?sed) (?:.* )?-(?:[A-Za-z]*f|-(?:from-)?file))[ =]?\S*\0.*"
    r"|(?:[gmn]?awk|g?sed) (?:-[vF] \S+ |-(?![vF] )\S+ )*(?!-)\S*\0.*"
    r"|(?:node|bun|tsx|ts-node) (?:-\S+ )*(?:-r|--(?:require|import|loader|experimental-loader))[ =](?![/~.])\S.*"
    r"|(?:ed|ex|sqlite3|psql|mysql) (?:.* )?<\0|(?:ed|ex|batch|at(?! -f))(?: [^<\s]\S*)*|sqlite3(?: -\S+)*(?: [^-\s]\S*)?"
)
# The option behind which a text or a module stands, and those behind which a runner looks for code.
_BEFORE_TEXT = re.compile(r"-[A-Za-z]*[cemE]|--(?:eval|print)")
_LOOKS_IN = re.compile(
    r"-(?:[A-Za-z]*[CpPfd]\b|-[\w-]*(?:prefix|dir|directory|cd|cwd|chdir|project|from|spec|with|editable|package|path|file)[ =])"
)
_IN_PACKAGE = re.compile(r"[\[\]#;?@,]|file:(?://(?:localhost(?=/))?)?|^-\w(?=[/~])")
_ENDS = "/__main__.py /__init__.py /index.js /package.json .py .js .pm .rb .lua .class".split()
# A Python, the version in its name, the options that stand alone before what it runs, and those with a value.
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[dt]?")
_VERSION = re.compile(r"/[a-z]+(\d\.\d+)[dt]?\Z")
_FLAGS = re.compile(r"(?:-[bBdEiIOPqRsSuvx]+ )*(?:-[bBdEiIOPqRsSuvx]+)?")
_WITH_VALUE = re.compile(r"(?<!\S)-[WX] ?\S+ ")
_NODE = re.compile(r"(?:^|/|\s)(?:node(?:js)?[\d.]*|bun|deno|tsx|ts-node)(?:\s|$)")
# What pyvenv.cfg says of a virtual environment, and the script that puts one in front of PATH.
_SYSTEM_TOO = re.compile(r"(?im)^include-system-site-packages\s*=\s*true")
_ACTIVATES = re.compile(r"/activate\Z")
_GLUED = re.compile(r"^-[A-Za-z]")
_IS_PATH = re.compile(r"[\w.~+-]*[/.][\w./~+-]*(?<!\.)")
_ASSIGNMENT = re.compile(r"\w+\+?=")
_BY_NAME = re.compile(r"(?<!\S)-(?:[A-Za-z]*[mc]|(?!\S))|<<|python[\d.]*(?: +-[A-Za-z]+)*\s*(?:[|;&)]|\Z)")
# The input of the line itself.
_INPUT = re.compile(r"/dev/(?:std\w+|fd/\d+)")
# What a shell replaces by the names that are there.
_PATTERN = re.compile(r"[*?\[]")
_NONE = Word(("",))
_MOST_DIRECTORIES = 64
_MOST_FITTING = 64
ADVICE = "put it into a script of your own where commands may not write"
_LATER, _THERE = "its program is known only when it runs", "where commands may write"


def why_changeable(
    text: str,
    directory: str,
    environment: Mapping[str, str],
    search: ProgramSearch,
    *,
    names: Mapping[str, bool] | None = None,
    takes_data: bool = False,
    finds_there: bool = False,
) -> str:
    """Why commands can decide what a command line runs that is started in `directory` with the variables `environment`, or why that
    is not known, for people. Empty if they cannot, as far as the line tells.

    With `takes_data`, a path is data unless it names a file that is there, or what an interpreter starts: the user may give a
    directory of the work to a program. Without it, each path counts through which commands may write, and in a directory of theirs
    each word that names an entry, and a program that finds its code there. With `finds_there`, runners such as `make` may take
    what they run from directories of the work: the user is told so. `names` are the entries of `directory`, each with whether it
    is a file (None: those that are there).
    """
    line = _line_of(text, directory, environment, search)
    scripts = tuple(_scripts_of(line))
    found = [one for script in scripts for one in _files(script) if one[2]]
    if takes_data:
        found += chain(_files(line), ((path, search.root_around(path), True) for path in _missing(line)))
    reasons = (
        # Git's settings are judged with its own files in the home.
        filter(None, (link_from_home(environment, search) if names is None else "",)),
        *(_why_loaded(line), _why_replaced(line, scripts), _why_imported(line, scripts)),
        _why_required(line, scripts),
        () if takes_data else _why_taken(line, scripts, names),
        () if finds_there else _why_found(line),
        line.unknown,
        (f"{path} is found through {root}, {_THERE}" for path, root, _ in found if root),
    )
    return next(chain.from_iterable(reasons), "")


def guarding_files(
    commands: Iterable[str], directory: str, environment: Mapping[str, str], search: ProgramSearch
) -> dict[str, str]:
    """The files that these command lines start, where commands may write them, each with the digest of its content. As far as the
    words tell: their programs, which may be missing, executable files, and what an interpreter or a shell may take as its script.
    """
    started: list[str] = []
    for line in (_line_of(one, directory, environment, search) for one in commands):
        started += filter(search.root_around, _missing(line))
        files = chain.from_iterable(map(_files, (line, *_scripts_of(line))))
        started += [path for path, _, is_script in files if is_script or os.access(path, os.X_OK)]
    return {path: digest_of(path) for path in dict.fromkeys(started)}


def digest_of(path: str) -> str:
    """A digest of a file's content. Empty if it cannot be read."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            return short_digest(file.read(), 64)
    except OSError:
        return ""


class _Command(Struct, frozen=True):
    name: str
    program: str
    """Its first word, as far as it is known."""
    told: Sequence[Word]
    """The words behind it that say what it runs, up to its text, its script or the program that it starts."""
    is_split: bool
    """Whether the last of these is known to be its script or program."""

    @property
    def starts(self) -> bool:
        return _STARTER.fullmatch(self.name) is not None


class _CommandLine(Struct, frozen=True):
    text: str
    words: Sequence[str]
    """Whatever may be a path in it."""
    commands: Sequence[_Command]
    started: set[str]
    """The words that may be a script, a module or a directory that a command starts, also those within such a word."""
    unknown: Sequence[str]
    """Why what it starts, or where, is not known."""
    places: Sequence[str]
    """The directories in which the words may be, and first the one in which the line is started."""
    known: Mapping[str, str]
    search: ProgramSearch

    @property
    def home(self) -> str:
        return self.known.get("HOME", "")


def _line_of(
    text: str, directory: str, environment: Mapping[str, str], search: ProgramSearch
) -> _CommandLine:
    known = {**environment, "PATH": os.pathsep.join(trusted_directories(search)), "PWD": directory}
    home = {"HOME": environment.get("HOME", "")}
    sure = with_values(text, known, only_sure=True)
    parsed = ParsedLine(sure)
    given = [w for one in parsed.commands for w in (*one.assignments, *one.words[1:]) if w.text is None]
    is_known = not (parsed.runs_unknown or any(commands_in_assignment(one).suspect for one in given))
    streams = {" <\0" for one in parsed.redirections if not one.writes and one.target.text is None}
    is_known &= not any(_KNOWN_LATER.fullmatch(_shape(one) + "".join(streams)) for one in parsed.commands)
    unknown = ["ralph does not understand its syntax"] if parsed.lost else [] if is_known else [_LATER]
    commands, started = list[_Command](), list[str]()
    for command in parsed.commands:
        for one, why in _commands_of(command.words, has_text=command.has_heredoc):
            commands.append(one)
            unknown += filter(None, [why])
            started += [shown(word.known) for word in one.told if one.starts]
            for before, word in pairwise((_NONE, *one.told)) if _FILTER.fullmatch(one.name) else ():
                option = _PROGRAM_FILE.fullmatch(word.known) or _PROGRAM_FILE.fullmatch(before.known)
                started += [shown(option[1] or word.known)] if option else []
    started += [one.program for one in commands if "/" in one.program]
    started += [each for one in started for each in (_GLUED.sub("", one), *paths_in(one, home))]
    words = [*dict.fromkeys(filter(None, (*paths_in(text, known), *paths_in(sure, home))))]
    words += [glued for word in words if (glued := _GLUED.sub("", word)) not in ("", word)]
    places = [directory]
    for place in places:
        for path in (os.path.normpath(os.path.join(place, word)) for word in words):
            if path not in places and len(places) < _MOST_DIRECTORIES and os.path.isdir(path):
                places.append(path)
    # What stands before `)` in a case names no file.
    has_glob = "esac" not in text or any(word.has_glob for one in parsed.commands for word in one.words)
    patterns = product(places, filter(_PATTERN.search, tuple(words) if has_glob else ()))
    words += islice(chain.from_iterable(iglob(one, root_dir=place) for place, one in patterns), _MOST_FITTING)
    named = {*(words if parsed.lost else started)} - {""}
    return _CommandLine(sure, words, commands, named, unknown, places, known, search)


def _shape(command: SimpleCommand) -> str:
    """The words of a command without white space, its assignments last, with NUL for each part that is known only when it runs."""
    words = (plain(command.name or ""), *command.words[1:], *command.assignments)
    texts = ("".join("\0" if part is ANY else part for part in word.parts) for word in words)
    return " ".join(re.sub(r"\s", "_", text) for text in texts) + (" <<" if command.has_heredoc else "")


def _commands_of(words: Sequence[Word], *, has_text: bool) -> Iterator[tuple[_Command, str]]:
    """Yields a command, and those that may begin at a later word of one that can run others in many ways. With each, why what it starts,
    or where, is known only when it runs.
    """
    if not words:
        return
    found, name = inner_commands(words, has_heredoc=has_text), name_of(words) or ""
    options = [*takewhile(lambda one: (one.text or "").startswith("-"), words[1:])]
    has_code = bool(options and (name in SHELLS or found.suspect)) and not found.behind
    is_text = has_code and _BEFORE_TEXT.fullmatch(options[-1].known)
    end = len(options) + 2 if is_text else len(words) - found.behind + 1
    is_split = bool(found.behind or found.not_understood)
    one = _Command(name, shown(words[0].known), words[1:end], is_split)
    values = [word.text for word in one.told if not _ASSIGNMENT.match(word.known)]
    is_bare = all(re.fullmatch(r"-[\w-]*", text or "x") for text in values) and not has_text
    if name in ENTERS and not {None, "-"}.isdisjoint(values):
        yield one, "its directory is known only when it runs"
    elif words[0].text is None or (is_bare and _INTERPRETER.fullmatch(name)):
        yield one, _LATER
    else:
        yield one, _LATER if (is_split or one.starts) and None in values else ""
    for at in range(1, len(words) if found.suspect else 1):
        later = name_of(words[at:]) or ""
        if later in FINDS_BY_ITSELF or _STARTER.fullmatch(later):
            yield from _commands_of(words[at:], has_text=has_text)


def _scripts_of(line: _CommandLine) -> Iterator[_CommandLine]:
    """The first lines of the scripts that a line names, and the texts of those for a shell, such as a wrapper."""
    search, known = line.search, programs_by_name(line.search)
    paths = [*filter(os.path.isfile, (os.path.join(*one) for one in product(line.places, line.words)))]
    texts = [one for path in paths for one in interpreters_of(path, search)]
    first = own_program(line.commands[0].name, search) if line.commands else None
    for path in filter(None, (first, *map(known.get, line.words), *paths)):
        words = interpreter_of(path).split()[:2]  # `env` comes before it
        if not SHELLS.isdisjoint(map(os.path.basename, words)):
            texts.append(os.fsdecode(beginning_of(path)))
    return (_line_of(one, line.places[0], line.known, search) for one in dict.fromkeys(texts))


def _files(line: _CommandLine) -> Iterator[tuple[str, str | None, bool]]:
    """The files that a line names and that are there, each with the place through which it is found, where commands may write, and
    whether a command may take it as its script.
    """
    first = line.commands[0].program if line.commands else ""
    for place, word in product(line.places, dict.fromkeys((*line.words, *line.started))):
        is_script = word in line.started
        if place == line.places[0] and "/" not in word and word == first and not is_script:
            continue
        names = (word, word.replace("::", "/").replace(".", "/")) if is_script else (word,)
        for name, end in product(names, ("", *_ENDS) if is_script else ("",)):
            path = os.path.join(place, name) + end
            root = (
                line.search.root_around(path) if os.path.isfile(path) and not _INPUT.fullmatch(path) else None
            )
            if root:
                yield path, root, is_script


def _why_loaded(line: _CommandLine) -> Iterator[str]:
    for name, found in assigned(line.text):
        value = shown(re.sub(r"(?:^|(?<=:))~(?=[/:]|$)", line.home, found))
        # The entries of PATH count as those of a variable with modules. No shell of a line reads ENV.
        loads = {} if name == "ENV" else {"PYTHONPATH" if name == "PATH" else name: value}
        for entries in filter(None, unsafe_loads(loads, line.search).values()):
            yield f"{name} names {entries[0] or 'the working directory'}, {_THERE}"


def _why_replaced(line: _CommandLine, scripts: Iterable[_CommandLine]) -> Iterator[str]:
    search, known = line.search, programs_by_name(line.search)
    names = (one.program for one in line.commands if "/" not in one.program)
    yield from filter(None, (why_not_used(one, search) for one in names if own_program(one, search) is None))
    for word in dict.fromkeys(chain(line.words, *(one.words for one in scripts))):
        for path in filter(None, (known.get(begin + word) for begin in ("", "git-", "git-credential-"))):
            if why := search.why_unsafe(path):
                yield f"{path} does not count: {why}"


def _why_imported(line: _CommandLine, scripts: Iterable[_CommandLine]) -> Iterator[str]:
    """Why commands can decide what a Python imports that is started by a line, by its scripts for a shell, or by the first line of a
    program: the modules of an editable installation.
    """
    lines, seen = [line, *(one for one in scripts if "\n" in one.text)], set[tuple[str, str]]()
    for one in lines:
        for path, options in _programs_of(one):
            if (path, options) in seen:
                continue
            seen.add((path, options))
            if text := interpreter_of(path):
                lines.append(_line_of(text, line.places[0], line.known, line.search))
            elif any(_PYTHON.fullmatch(os.path.basename(each)) for each in (path, os.path.realpath(path))):
                for place, by in _modules_of(path, options, line.known, line.search):
                    if line.search.root_around(place):
                        way_out = ": install them without --editable" if by else ""
                        yield f"{path} takes modules from {place}{by}, {_THERE}{way_out}"


def _why_required(line: _CommandLine, scripts: Iterable[_CommandLine]) -> Iterator[str]:
    """Why commands can decide which modules a Node.js program takes: those of `npm link`, beside its script and above
    (nodejs.org/api/modules.html#loading-from-node_modules-folders).
    """
    paths = [os.path.join(*one) for each in (line, *scripts) for one in product(each.places, each.words)]
    known = programs_by_name(line.search)
    paths += [found for one in line.commands if (found := known.get(one.program))]
    files = {os.path.realpath(one) for one in paths if os.path.isfile(one)}
    names = {one.name for each in (line, *scripts) for one in each.commands}
    if not any(map(_NODE.search, (*names, *map(interpreter_of, files)))):
        return
    folders = dict.fromkeys(
        f"{above}/node_modules"
        for file in sorted(files)
        if not line.search.root_around(file)  # what is there is judged by itself
        for above in directories_above(file)
        if not above.endswith(
            "/lib"
        )  # there are all programs that were installed for the user, each with its own modules
    )
    for folder in folders:
        scopes = (one.path for one in entries_in(folder) if one.name.startswith("@"))
        links = (one.path for each in (folder, *scopes) for one in entries_in(each, os.DirEntry.is_symlink))
        for place in (folder, *links):
            if os.path.lexists(place) and line.search.root_around(place):
                yield f"{place} leads to modules {_THERE}: install them without a link"


def _programs_of(line: _CommandLine) -> Iterator[tuple[str, str]]:
    """The files that a line may start as programs, each with the options of a Python that stand before what it runs."""
    known, options, told = programs_by_name(line.search), dict[str, set[str]](), set[str]()
    for one in line.commands:
        words = [absolute_path(shown(word.known), "", line.home) for word in one.told]
        before = _FLAGS.match(_WITH_VALUE.sub("", " ".join((*words, ""))))
        options.setdefault(absolute_path(one.program, "", line.home), set()).add(before[0] if before else "")
        # The first line of its script does not count, and its data start nothing.
        told.update(words if _PYTHON.fullmatch(one.name) else ())
    for name in dict.fromkeys((*options, *line.words)):
        is_sought = "/" not in name and (name in options or _PYTHON.fullmatch(name))
        found = own_program(name, line.search) if is_sought else known.get(name)
        paths = dict.fromkeys((found or "", *(os.path.join(place, name) for place in line.places)))
        above, shim, _ = (found or "").rpartition("/shims/")  # of pyenv, asdf or mise
        real = (iglob(f"{above}/{one}/bin/{name}") for one in ("versions/*", "installs/*/*") if shim)
        for path in (_ACTIVATES.sub("/python3", one) for one in chain(paths, *real) if name not in told):
            if os.path.isfile(path) and os.access(path, os.X_OK):
                yield from ((path, before) for before in options.get(name, ("",)))


def _modules_of(
    python: str, options: str, known: Mapping[str, str], search: ProgramSearch
) -> Iterator[tuple[str, str]]:
    """The places from which a Python takes installed modules, each with the file that names it, as a phrase."""
    if "S" in options:
        return
    named = (one for one, *_ in way_to(python) if _PYTHON.fullmatch(os.path.basename(one)))
    bases = [os.path.dirname(os.path.dirname(one)) for one in (os.path.normpath(python), *named)]
    settings = os.fsdecode(beginning_of(f"{bases[0]}/pyvenv.cfg"))
    is_alone = bool(settings) and not _SYSTEM_TOO.search(settings)
    bases = bases[:1] if is_alone else [*dict.fromkeys(bases)]
    is_off = known.get("PYTHONNOUSERSITE") and "E" not in options
    if not (is_alone or is_off or set("Is") & set(options)):
        home, base = known.get("HOME", ""), known.get("PYTHONUSERBASE") or os.sep
        yield f"{home}/.local/lib", ""  # if the home is where commands may write
        bases += (f"{home}/.local", *iglob(f"{home}/Library/Python/*"))
        bases += () if search.root_around(base) else (base,)  # else it is not passed on
    number = (_VERSION.findall(os.path.realpath(python)) or [r"[\d.]+"])[0]
    for library in product(bases, ("lib", "lib64", "local/lib", "local/lib64")):
        for packages in site_packages(os.path.join(*library)):
            if re.search(rf"/[a-z]+(?:3|{number})?t?/[a-z]+-packages", packages):
                links = (one.path for one in entries_in(packages, os.DirEntry.is_symlink))
                yield from ((one, "") for one in (packages, *links))
                yield from ((path, f" by {file}") for file, path in named_in(packages, os.path.realpath))


def _why_taken(
    line: _CommandLine, scripts: Iterable[_CommandLine], names: Mapping[str, bool] | None
) -> Iterator[str]:
    search, directory = line.search, line.places[0]
    is_open = search.root_around(directory) is not None
    begun = {os.path.basename(word) for word in line.words}
    # Programs of asdf on PATH are scripts that start it.
    found = FINDS_BY_ITSELF & begun.union(one.name for script in scripts for one in script.commands)
    if is_open and found:
        yield f"{min(found)} finds what it runs in {directory}, {_THERE}"
    is_interpreted = bool(begun & ENTERS) or any(map(_INTERPRETER.fullmatch, begun))
    held = {one.name: os.path.isfile(one.path) for one in entries_in(directory)} if names is None else names

    def is_there(word: str) -> bool:
        first, slash, _ = os.path.normpath(word).partition("/")
        counts = bool(slash or is_interpreted or _PATTERN.search(first) or "." in word)
        stem = first.partition(".")[0] if is_interpreted else None
        fits = (
            is_file
            for name, is_file in held.items()
            if name == first or fnmatchcase(name, first) or name.partition(".")[0] == stem
        )
        return any(counts or is_file for is_file in fits) or (is_interpreted and first == ".")

    missing, looked_for = _missing(line), {one.program for one in line.commands[:1]} - line.started
    for word in line.words:
        if is_open and not word.startswith(("/", "../")):
            if word not in looked_for and is_there(word):
                yield f"{word} is taken from {directory}, {_THERE}"
            continue
        for path in (os.path.join(place, word) for place in line.places[: 1 if word[:1] == "/" else None]):
            # A value that is nothing but the path of the work runs nothing.
            is_value = shown(line.text.strip()) == path and os.path.realpath(path) in search.roots
            if not is_value and not _INPUT.fullmatch(path):
                if root := search.root_around(path):
                    yield f"{path} is found through {root}, {_THERE}"
                if (path in missing or os.path.lexists(path)) and (why := search.why_unsafe(path)):
                    yield f"{path} does not count: {why}"


def _why_found(line: _CommandLine) -> Iterator[str]:
    """Why commands can decide what a runner such as `npx --prefix DIR` or `cd DIR && make` finds in a directory that it is told."""
    for text in (word.text or "" for one in line.commands for word in one.told):
        if len(text.split()) > 1:  # a line within a word, such as that for a bridge
            yield from _why_found(_line_of(shown(text), line.places[0], line.known, line.search))
    runners = [one for one in line.commands if one.name in _OF_GIT | FINDS_BY_ITSELF]
    moving = [one for one in line.commands if one.name in ENTERS or one.name in FORMS]
    for one in (*moving, *runners) if runners else ():
        for before, word in pairwise((_NONE, *one.told)):
            looks = _LOOKS_IN.match(f"{before.known} ") or _LOOKS_IN.match(word.known)
            if word.text is None and (looks or not word.is_one):
                yield f"{one.name} finds what it runs in a directory that is known only when it runs"
            texts = (_IN_PACKAGE.sub('"', text) for text in {word.known, unquote(word.known)})
            paths = chain.from_iterable(paths_in(text, {"HOME": line.home}) for text in texts)
            for place, path in product(line.places, paths):
                found = os.path.join(place, path)
                is_directory = (looks or one.name not in _OF_GIT) and os.path.isdir(found)
                if (is_directory or path[:1] == "/") and line.search.root_around(found):
                    yield f"{runners[0].name} finds what it runs in {found}, {_THERE}"


def _missing(line: _CommandLine) -> list[str]:
    """The paths where there could be what a line starts, if it is at none of them."""
    named = [one.program for one in line.commands if "/" in one.program and one.program[0] != "@"]
    for one in line.commands:
        is_shell, texts = one.name in SHELLS, [shown(word.known) for word in one.told] if one.starts else []
        files = [
            word for before, word in pairwise(("", *texts)) if is_shell or not _BEFORE_TEXT.fullmatch(before)
        ]
        is_script = one.is_split and (is_shell or one.name not in FINDS_BY_ITSELF)
        last = files[-1:] if is_script and files[-1:] == texts[-1:] != ["-"] else ()
        named += chain(filter(_IS_PATH.fullmatch, files), last)
    found = ([absolute_path(one, place, line.home) for place in line.places] for one in dict.fromkeys(named))
    return [path for paths in found if not any(map(os.path.lexists, paths)) for path in paths]


def module_variables(environment: Mapping[str, str], search: ProgramSearch, text: str) -> dict[str, str]:
    """The variables with which a line, and what it starts, take no Python module from the directory in which they start. Where it
    names a module or a statement, this also holds if it sets PYTHONPATH, and keeps a script from the modules beside it.
    """
    return python_guard(environment, search) | ({"PYTHONSAFEPATH": "1"} if _BY_NAME.search(text) else {})
