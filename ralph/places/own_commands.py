"""Decides whether commands can change what a command line of the user's runs: a program of git's configuration, of `--notify`, of
keys, a hook outside the sandbox, or an MCP server. It sees the words of the line, and runs nothing.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import iglob
from itertools import chain, islice, product
from shlex import shlex
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.files.repository import beginning_of, git_installation
from ralph.machine.loading import short_digest
from ralph.machine.own_programs import (
    GUARDED_PYTHON,
    interpreter_of,
    interpreters_of,
    own_program,
    programs_by_name,
    trusted_directories,
    unsafe_loads,
    why_not_used,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch

_WORD = re.compile(r"[^\s\"'`;|&()<>$=!]+")
# Of `${NAME...}` the value counts, or what stands there in its place (bash(1), Parameter Expansion).
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*)|(?::?\?|[%#/^,@]|: *\d)[^{}]*)?\})")
_WORKING_DIRECTORY = re.compile(
    r"(?:\$\(|`)(?:pwd|realpath \.|git rev-parse --show-toplevel)(?: 2> ?/dev/null)?[)`]|(?<!\S)~\+(?=/)"
)
_MOST_ROUNDS = 5
_HOME = re.compile(r"(?:^|(?<=:))~(?=[/:]|$)")
_ASSIGNED = re.compile(r"(?<![\w$])(\w+)\+?=([^\s;|&()<>]*)")
_GLUED = re.compile(r"^-[A-Za-z]")
_QUOTES = re.compile(r"[\"'`\\]")
# Where an absolute path or one of a home begins, and where it may end: at white space, at a quote, or with the text.
_PATH_BEGINS = re.compile(r"(?:(?<![^\s\"'`;|&()<>=,:!{])|(?<=\s-[A-Za-z]))[/~]")
_PATH_ENDS = tuple(map(re.compile, (r"[\s;|&()<>:,]", r"[\"'`]", r"\Z")))
# Interpreters, which take a module or a directory by its bare name.
_INTERPRETER = re.compile(
    r"(?:python|pypy|node|nodejs|bun|deno|perl|ruby|php|lua|julia|Rscript|guile|tclsh|expect|tsx|ts-node|java)[0-9.]*"
)
_SHELL = re.compile(r"(?:ba|da|k|z|fi)?sh|source|\.")
# Further programs that take a script by its path, some of them behind `run`. For them a file of the work is also data.
_RUNNER = re.compile(rf"{_INTERPRETER.pattern}|uv|pipx|hatch|poetry|go|swift|pwsh|nu|elixir|bb")
_RUN = "run"
# Programs that take their own program from a file, and the option before it.
_FILTER = re.compile(r"(?:[gm]?awk|g?o?jq|jaq|yq|sed)")
_PROGRAM_FILE = re.compile(r"-(?:[A-Za-z]*f|-(?:from-)?file)(?:=(.+))?")
# Options of runners with a directory or package in which they look, and words that may stand before them.
_LOOKS_IN = re.compile(
    r"(?:-[CpPfd](?=\Z|[=/.~])|--(?:prefix|directory|dir|cd|cwd|chdir|project|from|spec|with|with-editable|package|file"
    r"|(?:project-|package-|manifest-)(?:path|dir|directory)))(?:(?:=|(?<=-[CpPfd]))(.+))?"
)
_WITHOUT_VALUE = frozenset(
    "-y --yes -q --quiet -s --silent -v --verbose --bun --offline --isolated --refresh --no-cache".split()
)
_SUBCOMMANDS = frozenset("run exec x tool dlx start".split())
# Characters of a path that mean something else to a shell. A character for private use stands for each in texts with values.
_SPECIAL = " \t\n'\"`\\;|&()<>$=![]{}*?#~,:%"
_HIDDEN = {ord(char): 0xE000 + ord(char) for char in _SPECIAL}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
# The option behind which a text or a module stands.
_IS_TEXT = re.compile(r"-[A-Za-z]*[cemE]|--(?:eval|print)")
_ENDS = "/__main__.py /__init__.py /index.js /package.json .py .js .pm .rb .lua .class".split()
# Their options that have no value and leave the script to be named.
_PLAIN_OPTION = re.compile(r"-[uBsSOPqvbwT]+|--no-[\w-]+")
_OF_SHELLS = re.compile(r"-[a-bd-np-z]+")
_BY_NAME = re.compile(r"(?<!\S)-(?:[A-Za-z]*[mc]|(?!\S))|<<|python[\d.]*(?: +-[A-Za-z]+)*\s*(?:[|;&)]|\Z)")
_OF_INSTALLATION = "%(prefix)/"
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
_KNOWN_LATER = re.compile(r"[$`]|\{\}")
# Behind these, a word of a shell is the name of a program, or the script of one.
_BEGINS_COMMAND = re.compile(
    r"[();&|]*[(;&|]|[{!]|then|do|else|elif|if|while|until|exec|command|builtin|nohup|time|env|xargs|sudo"
    r"|-(?:exec|ok)(?:dir)?"
)
# These too, where a command may begin: elsewhere they are words of a text.
_WRAPPER = re.compile(rf"doas|eval|timeout|nice|ionice|setsid|stdbuf|{_RUNNER.pattern}")
# Their options with a value, those of shells and Python too, and those that enter a directory.
_TAKES_A_VALUE = re.compile(
    rf"sudo -\w*[CDRTUghprtu]|doas -[Cu]|timeout -[ks]|nice -n|ionice -[cn]|stdbuf -[eio]|env -[Cu]|xargs -\w*[EILPadns]"
    rf"|(?:{_SHELL.pattern}) [-+]\w*[oO]|python[\d.]* -\w*[WX]"
)
_ENTERS_BY_OPTION = re.compile(r"(?:env -C|sudo -D|(?:env|sudo) --chdir)(?:=(.+))?")
_OPTION_OF_CD = re.compile(r"-[-LPe@]+")
_DURATION = re.compile(r"[\d.]+[smhd]?")
_REPLACED = re.compile(r"(?:-I|--replace=)(.+)")
# What stands behind a shell or an interpreter that runs its input.
_TAKES_INPUT = re.compile(rf"{_SHELL.pattern}|{_INTERPRETER.pattern}")
_SEPARATOR = re.compile(r"[();&|]*[;&|)]+")
_PIPE = re.compile(r"[);&]*\|&?")
_NO_SCRIPT = re.compile(r"[;&|)]*|-s?")
_TAKE_A_DIRECTORY = FINDS_BY_ITSELF.union(
    "git gh tig lazygit".split()
)  # which runs what a nested repository names
_OF_ASDF = "asdf exec "
# The input of the line itself.
_INPUT = re.compile(r"/dev/(?:std\w+|fd/\d+)")
# What a shell replaces by the names that are there.
_PATTERN = re.compile(r"[*?\[]")
_MOST_DIRECTORIES = 64
_MOST_FITTING = 64


def why_changeable(
    texts: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    search: ProgramSearch,
    *,
    names: Mapping[str, bool] | None = None,
    programs: Sequence[str] | None = None,
    takes_data: bool = False,
    finds_there: bool = False,
) -> str:
    """Why commands can decide what a command line runs that is started in `directory` with the variables `environment`, for
    people. `texts` are its words, or the text for a shell. Empty if they cannot, as far as the words tell.

    With `takes_data`, only files count that are there, and a directory is data unless an interpreter starts it or another word
    names a file in it: the user may give a directory of the work to a program. Without it, each path counts through which
    commands may write, and in a directory of theirs each word that names an entry, and a program that finds its code there.
    With `finds_there`, runners such as `make` may take what they run from directories of the work: the user is told so.
    `names` are the entries of `directory`, each with whether it is a file (None: those that are there). `programs` are the names
    that are looked for on PATH (None: the first word).
    """
    line = _line_of(texts, directory, environment, search, programs)
    texts, words = line.texts, line.words
    for name, found in (found for text in texts for found in _ASSIGNED.findall(_QUOTES.sub("", text))):
        value = _HOME.sub(environment.get("HOME", ""), found).translate(_SHOWN)
        # The entries of PATH count as those of a variable with modules. No shell of a line reads ENV.
        loads = {} if name == "ENV" else {"PYTHONPATH" if name == "PATH" else name: value}
        for entries in unsafe_loads(loads, search).values():
            if entries:
                return f"{name} names {entries[0] or 'the working directory'}, where commands may write"
    for name in (line.first,) if programs is None else programs:
        if "/" not in name and own_program(name, search) is None and (why := why_not_used(name, search)):
            return why
    known, scripts = programs_by_name(search), tuple(_of_shell_scripts(line))
    for word in dict.fromkeys(chain(words, *(one.words for one in scripts))):
        for path in (known.get(begin + word) for begin in ("", "git-", "git-credential-")):
            if path is not None and (why := search.why_unsafe(path)):
                return f"{path} does not count: {why}"
    why = ("" if takes_data else _why_taken(line, scripts, names)) or (
        "" if finds_there else _why_found(line, is_strict=not takes_data)
    )
    changeable = chain(
        chain.from_iterable(
            map(_changeable_files, [*_of_interpreters(line), *([line] if takes_data else ())])
        ),
        (one for script in scripts for one in _changeable_files(script) if one.is_script),
    )
    return why or next(
        (f"{one.path} is found through {one.root}, where commands may write" for one in changeable), ""
    )


def scripts_of(words: Sequence[str]) -> Iterator[str]:
    """Yields what a command may start: its program by a path, and what a shell or an interpreter may take as its script. Behind
    an option that may have a value, these are all words that look like a file. No name on PATH, text or module.
    """
    plain: re.Pattern[str] | None = None
    is_first = True
    for number, word in enumerate(words):
        starters = ((_SHELL, _OF_SHELLS), (_INTERPRETER, _PLAIN_OPTION))
        found = next(
            (plain for starter, plain in starters if starter.fullmatch(word.rpartition("/")[2])), None
        )
        if number == 0 or (found and plain is None and word != "."):
            plain, is_first = found, True
            yield from [word] if "/" in word else ()
        elif plain is None or plain.fullmatch(word):
            continue
        elif _IS_TEXT.fullmatch(word):
            plain = None
        elif word.startswith("-"):
            is_first = False
        else:
            yield from [word] if is_first or "/" in word or "." in word else ()
            plain = None if is_first else plain


def guarding_files(
    commands: Iterable[str], directory: str, environment: Mapping[str, str], search: ProgramSearch
) -> dict[str, str]:
    """The files that these command lines start, where commands may write them, each with the digest of its content. As far as the
    words tell: their programs, which may be missing, executable files, and what an interpreter or a shell may take as its script.
    """
    paths = dict.fromkeys(
        path for one in commands for path in _started_files(_line_of([one], directory, environment, search))
    )
    return {path: digest_of(path) for path in paths}


def digest_of(path: str) -> str:
    """A digest of a file's content. Empty if it cannot be read."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            return short_digest(file.read(), 64)
    except OSError:
        return ""


def _started_files(line: _CommandLine) -> Iterator[str]:
    if line.program and not os.path.lexists(line.program) and line.search.root_around(line.program):
        yield line.program
    for one in (line, *_of_interpreters(line), *_of_shell_scripts(line)):
        for file in _changeable_files(one, _RUNNER):
            if file.is_script or os.access(file.path, os.X_OK):
                yield file.path


def _line_of(
    texts: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    search: ProgramSearch,
    programs: Sequence[str] | None = None,
) -> _CommandLine:
    known = {**environment, "PATH": os.pathsep.join(trusted_directories(search)), "PWD": directory}
    texts = [_with_values(text, known) for text in texts]
    first = next((word for word in texts[0].split() if not _ASSIGNED.match(word)), "").translate(_SHOWN)
    words = list(dict.fromkeys(word for text in texts for word in paths_in(text, known) if word))
    words += [glued for word in words if (glued := _GLUED.sub("", word)) not in ("", word)]
    program = os.path.join(directory, absolute_path(first, "", known.get("HOME", ""))) if "/" in first else ""
    searched = {*words[:1], *(programs or ())}
    places = _directories(words, directory)
    patterns = product(places, filter(_PATTERN.search, tuple(words)))
    words += islice(chain.from_iterable(iglob(one, root_dir=place) for place, one in patterns), _MOST_FITTING)
    return _CommandLine(texts, words, first, program, searched, places, known, search)


def _of_interpreters(line: _CommandLine) -> list[_CommandLine]:
    interpreters = dict.fromkeys(one for path in _files(line) for one in interpreters_of(path, line.search))
    return [replace(line, texts=[one], words=[*paths_in(one, line.known)]) for one in interpreters]


def _of_shell_scripts(line: _CommandLine) -> Iterator[_CommandLine]:
    """The texts of the shell scripts that a line names, such as a wrapper with `exec python3 -m NAME`."""
    named = filter(None, map(programs_by_name(line.search).get, line.words))
    for path in dict.fromkeys((own_program(line.first, line.search) or "", *named, *_files(line))):
        if text := _with_values(_shell_text(path), line.known):
            words = [*dict.fromkeys(filter(None, paths_in(text, line.known)))]
            places = _directories(words, line.places[0])
            yield replace(line, texts=[text], words=words, searched=set[str](), places=places)


def _shell_text(path: str) -> str:
    """The text of a shell script without comments that fill a line. Empty for any other file."""
    words = interpreter_of(path).split()[:2]  # `env` comes before it
    if not any(_SHELL.fullmatch(os.path.basename(word)) for word in words):
        return ""
    lines = os.fsdecode(beginning_of(path)).splitlines()
    return "\n".join(one for one in lines if not one.lstrip().startswith("#"))


def _files(line: _CommandLine) -> Iterator[str]:
    named = dict.fromkeys(os.path.join(place, word) for place in line.places for word in line.words)
    return filter(os.path.isfile, named)


class _CommandLine(Struct, frozen=True):
    texts: Sequence[str]
    words: Sequence[str]
    first: str
    program: str
    """The path of its program, which may be missing. Empty for a name."""
    searched: set[str]
    """The words that are looked for on PATH, if they are bare."""
    places: Sequence[str]
    """The directories in which the words may be, and first the one in which the line is started."""
    known: Mapping[str, str]
    search: ProgramSearch


class _ChangeableFile(Struct, frozen=True):
    path: str
    root: str
    """Where commands may write."""
    is_script: bool
    """Whether an interpreter or a shell may take it as its script."""


def _changeable_files(
    line: _CommandLine, interpreter: re.Pattern[str] = _INTERPRETER
) -> Iterator[_ChangeableFile]:
    text = " ".join(line.texts)
    started = _started(text, line.known, interpreter)
    named = {*started, *_started(text, line.known, _SHELL), *_program_files(text)}
    absolute = tuple(one for one in started if one.startswith("/"))
    for place, word in product(line.places, line.words):
        is_started = word in started or word.startswith(absolute)
        # Behind a runner or an unknown option, a name may also be that of a script.
        if place == line.places[0] and "/" not in word and word == line.first in line.searched - named:
            continue
        for name in (word, word.replace("::", "/").replace(".", "/"))[: 1 + is_started]:
            for end in ("", *_ENDS)[: 1 + is_started * len(_ENDS)]:
                path = os.path.join(place, name) + end
                if not os.path.isfile(path) or _INPUT.fullmatch(path):
                    continue
                if root := line.search.root_around(path):
                    yield _ChangeableFile(path, root, word in named or word.startswith(absolute))


def _why_taken(line: _CommandLine, scripts: Iterable[_CommandLine], names: Mapping[str, bool] | None) -> str:
    search, directory = line.search, line.places[0]
    is_open = search.root_around(directory) is not None
    begun = {os.path.basename(word) for word in line.words}
    # The programs of asdf on PATH are shell scripts, and `.tool-versions` may name one of the work.
    begun |= {"asdf" for one in scripts if _OF_ASDF in one.texts[0]}
    if is_open and (found := begun & FINDS_BY_ITSELF):
        return f"{min(found)} finds what it runs in {directory}, where commands may write"
    is_interpreted = bool(begun & ENTERS) or any(map(_INTERPRETER.fullmatch, begun))
    held = (names_in(directory) if names is None else names) if is_open else {}
    modules = {name.partition(".")[0] for name in held} if is_interpreted else set[str]()

    def is_there(word: str) -> bool:
        first, slash, _ = os.path.normpath(word).partition("/")
        if _PATTERN.search(first):
            return any(fnmatchcase(name, first) for name in held)
        if slash or "." in word or is_interpreted:
            is_itself = is_interpreted and first == "."
            return is_itself or first in held or first.partition(".")[0] in modules
        return held.get(word, False)

    for word in line.words:
        if is_open and not word.startswith(("/", "../")):
            if (word not in line.searched or "/" in word) and is_there(word):
                return f"{word} is taken from {directory}, where commands may write"
            continue
        for path in (
            os.path.join(place, word) for place in line.places[: 1 if word.startswith("/") else None]
        ):
            # A value that is nothing but the path of the work runs nothing.
            is_value = (
                any(text.strip().translate(_SHOWN) == path for text in line.texts)
                and os.path.realpath(path) in search.roots
            )
            if is_value or _INPUT.fullmatch(path):
                continue
            if root := search.root_around(path):
                return f"{path} is found through {root}, where commands may write"
            if (path == line.program or os.path.lexists(path)) and (why := search.why_unsafe(path)):
                return f"{path} does not count: {why}"
    return ""


def _why_found(line: _CommandLine, *, is_strict: bool) -> str:
    """Why commands can decide what a runner such as `npx --prefix DIR` or `cd DIR && make` finds in a directory that it is told. With
    `is_strict`, also why what is started is not known.
    """
    # Of several texts each is a word, and one of them may be a text for a shell.
    lines = [[*_unquoted(text)] for text in line.texts] if len(line.texts) == 1 else [line.texts]
    lines += [[*_unquoted(text)] for text in line.texts[1:] if " " in text]
    if is_strict:
        lines = [[*_with_operands_of_xargs(words)] for words in lines]
    why = filter(None, (_why_found_by(words, line) for words in lines))
    return next(why, "") or (next(filter(None, map(_why_unknown, lines)), "") if is_strict else "")


def _why_found_by(words: Sequence[str], line: _CommandLine) -> str:
    names = [os.path.basename(word) for word in words]
    runner, is_value = "", False
    for number, (word, name) in enumerate(zip(words, names, strict=True)):
        option = _LOOKS_IN.fullmatch(word)
        is_operand = not (
            word.startswith("-") or is_value or word in _SUBCOMMANDS or name in _TAKE_A_DIRECTORY
        )
        if option or word in ENTERS or (runner and is_operand):
            told = (
                word
                if is_operand and word not in ENTERS
                else (option and option[1]) or next(iter(words[number + 1 :]), "")
            )
            found = runner or next((one for one in names[number:] if one in _TAKE_A_DIRECTORY), "")
            for one in _directories_told(told) if found else ():
                path = os.path.join(line.places[0], absolute_path(one, "", line.known.get("HOME", "")))
                if os.path.isdir(path) and line.search.root_around(path):
                    return f"{found} finds what it runs in {path}, where commands may write"
            if found and not is_operand and _KNOWN_LATER.search(told):
                return f"{found} finds what it runs in a directory that is known only then"
        if name in _TAKE_A_DIRECTORY:
            runner = name
        elif is_operand:
            runner = ""
        is_value = word.startswith("-") and "=" not in word and word not in _WITHOUT_VALUE
    return ""


def _directories_told(told: str) -> Iterator[str]:
    """Yields what may be a directory in what a runner is told: a path, the packages of a list with commas, and what stands before
    extras, a revision, a marker or the name of an output, also in a URL (PEP 508; the documentation of npm and Nix).
    """
    for one in dict.fromkeys((told, *told.split(","))):
        yield one
        url = re.sub(r"^(?://(?:localhost(?=/))?)?", "", one.rpartition("file:")[2])
        for path in (url, unquote(url)):
            yield path
            yield from (path[: end.start()] for end in re.finditer(r"\s*[\[#;?@]", path) if end.start())


def _why_unknown(words: Sequence[str]) -> str:
    """Why what a line starts, or where, is known only when it runs."""
    is_begun, starter = True, ""
    for number, word in enumerate(words):
        before, after = ("".join(words[at : at + 1]) for at in (number - 1, number + 1))
        name = os.path.basename(word)
        runs = _TAKES_INPUT.fullmatch(name) or (is_begun and _WRAPPER.fullmatch(name))
        option = _ENTERS_BY_OPTION.fullmatch(f"{starter} {word}") if is_begun else None
        entered = (option[1] or after) if option else ""
        if is_begun and word in ENTERS:
            entered = next((one for one in words[number + 1 :] if not _OPTION_OF_CD.fullmatch(one)), "")
        if entered == "-" or _KNOWN_LATER.search(entered):
            return "it starts something in a directory that is known only then"
        text = (
            [*_unquoted(word)] if re.fullmatch(r"-[a-z]*c", before) or (is_begun and before == "eval") else ()
        )
        if why := _why_unknown([*_with_operands_of_xargs(text)]):
            return why
        if is_begun and _TAKES_A_VALUE.fullmatch(f"{starter} {before}"):
            continue
        is_input = is_begun and _TAKES_INPUT.fullmatch(starter) and word.startswith("<")
        is_piped = runs and _PIPE.fullmatch(before) and _NO_SCRIPT.fullmatch(after)
        if (is_begun and _KNOWN_LATER.match(word)) or (is_input and word == "<(") or is_piped:
            return "what it starts is known only then"
        if runs or _BEGINS_COMMAND.fullmatch(word) or (word == ")" and "case" in words[:number]):
            is_begun, starter = True, name
        else:
            is_begun = is_begun and (
                bool(is_input or _ASSIGNED.match(word) or _DURATION.fullmatch(word))
                or word.startswith("-")
                or word == _RUN
            )
    return ""


def _with_operands_of_xargs(words: Sequence[str]) -> Iterator[str]:
    """Yields the words of a line, with `{}` where xargs puts what it reads."""
    is_open, has_command, replaced = False, False, ""
    for before, word in zip(("", *words), (*words, ""), strict=True):
        if is_open and (not word or _SEPARATOR.fullmatch(word)):
            if has_command and not replaced:
                yield "{}"
            is_open, replaced = False, ""
        elif is_open and not replaced and (found := _REPLACED.fullmatch(word)):
            replaced = found[1]
        elif is_open and before == "-I":
            replaced = word
        elif is_open:
            has_command = has_command or not (word.startswith("-") or word.isdecimal())
        elif os.path.basename(word) == "xargs":
            is_open, has_command = True, False
        if word:
            yield word.replace(replaced, "{}") if replaced and before != "-I" else word


def _program_files(text: str) -> Iterator[str]:
    """Yields the files with the programs of filters, such as `x` in `jq -f x`."""
    words = [*_unquoted(text)]
    is_filter = False
    for word, after in zip(words, (*words[1:], ""), strict=True):
        option = _PROGRAM_FILE.fullmatch(word)
        if _FILTER.fullmatch(os.path.basename(word)):
            is_filter = True
        elif is_filter and option:
            yield option[1] or after
        elif is_filter and word.startswith("-f"):
            yield word[2:]


def _directories(words: Iterable[str], directory: str) -> list[str]:
    """The directories that words may mean: the first, and those that they name in it or in each other."""
    found = [directory]
    for place in found:
        for path in (os.path.normpath(os.path.join(place, word)) for word in words):
            if path not in found and len(found) < _MOST_DIRECTORIES and os.path.isdir(path):
                found.append(path)
    return found


def _started(text: str, known: Mapping[str, str], interpreter: re.Pattern[str]) -> set[str]:
    """The words that an interpreter may start, as a file, a module or a directory: those from its name to its script."""
    found = set[str]()
    for words in (_WORD.findall(text), _unquoted(text)):
        is_open, is_plain = False, True
        for raw in words:
            word = absolute_path(raw, "", known.get("HOME", "")).translate(_SHOWN)
            if interpreter.fullmatch(os.path.basename(word)):
                is_open, is_plain = True, True
            elif is_open:
                found |= {word, _GLUED.sub("", word)}
                is_open = not is_plain or word.startswith("-") or word == _RUN
                is_plain = is_plain and (word == _RUN or _PLAIN_OPTION.fullmatch(word) is not None)
    return found - {""}


def _with_values(text: str, known: Mapping[str, str]) -> str:
    """A text with the values of variables, also of those that it sets."""

    def value(found: re.Match[str], values: Mapping[str, str]) -> str:
        known = values.get(found[1] or found[2])
        if known:
            return known.translate(_HIDDEN) if known.startswith("/") and os.path.exists(known) else known
        return found[0] if found[3] is None else found[3]

    def replaced(text: str, values: Mapping[str, str]) -> str:
        return _VARIABLE.sub(lambda found: value(found, values), text)

    text = _WORKING_DIRECTORY.sub("$PWD", text)
    for _ in range(_MOST_ROUNDS):
        text = replaced(text, known)
        text = replaced(text, dict(_ASSIGNED.findall(_QUOTES.sub("", text))))
    return text


def paths_in(text: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yields what may be a path in a command or another value: absolute paths, with `~` and variables replaced, and every word
    that could be a relative one. A path may have spaces or be quoted, so there are several for each place where one begins, of
    which the longest may have more behind it.
    """
    home, text = variables.get("HOME", ""), _with_values(text, variables)
    for form in dict.fromkeys((text, _QUOTES.sub("", text))):
        for begin in _PATH_BEGINS.finditer(form):
            ends = (one.search(form, begin.start()) for one in _PATH_ENDS)
            found = (absolute_path(form[begin.start() : end.start()], "/", home) for end in ends if end)
            yield from (one.translate(_SHOWN) for one in found)
        yield from (word.translate(_SHOWN) for word in _WORD.findall(form) if word[0] not in "/~")
        yield from (absolute_path(word, "", home) for word in _unquoted(form))


def _unquoted(text: str) -> Iterator[str]:
    """Yields the words of a text for a shell, which may have spaces and other characters in quotes."""
    words = shlex(text, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    with suppress(ValueError):  # a quote without its end
        yield from (word.translate(_SHOWN) for word in words if word)


def absolute_path(value: str, directory: str, home: str) -> str:
    """An absolute path as git reads it (git-config(1), pathname). `%(prefix)` is the directory in which git is installed."""
    if value.startswith(_OF_INSTALLATION):
        return os.path.normpath(f"{git_installation()}/{value.removeprefix(_OF_INSTALLATION)}")
    if value == "~" or value.startswith("~/"):
        return f"{home}{value[1:]}"
    return os.path.join(directory, os.path.expanduser(value) if value.startswith("~") else value)


def names_in(directory: str) -> dict[str, bool]:
    """The names in a directory, each with whether it is a file. Empty if the directory cannot be listed."""
    with suppress(OSError), os.scandir(directory) as listing:
        return {entry.name: entry.is_file() for entry in listing}
    return {}


def module_variables(environment: Mapping[str, str], search: ProgramSearch, text: str) -> dict[str, str]:
    """The variables with which a line, and what it starts, take no Python module from the directory in which they start. Where it
    names a module or a statement, this also holds if it sets PYTHONPATH, and keeps a script from the modules beside it.
    """
    places = filter(None, (GUARDED_PYTHON, environment.get("PYTHONPATH")))
    kept = {"PYTHONPATH": os.pathsep.join(places)} if search.is_safe(GUARDED_PYTHON) else {}
    return kept | ({"PYTHONSAFEPATH": "1"} if _BY_NAME.search(text) else {})
