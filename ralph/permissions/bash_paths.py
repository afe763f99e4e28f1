"""Finds the paths that a shell command names, and judges them by the rules for reading and changing files.

A command is refused if any of its words is a denied path, whatever it does with that path, or if it reads a directory that
contains one. Files that a program opens although the command does not name them, such as the data of a test, are not judged.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import islice, pairwise, product, takewhile
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.permissions.command_table import FORMS, TRAITS
from ralph.permissions.patterns import ANY, NAME, UNKNOWN, Element, Word, plain
from ralph.permissions.shell_syntax import SimpleCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ralph.permissions.judge import Broken, KnownRule, RulePlaces
    from ralph.permissions.shell import ParsedLine


# Options of commands of the table by which they run in another directory.
_IN_DIRECTORY = frozenset("-C --prefix --directory --dir --cwd --chdir --cd".split())
# Directories of package managers. A rule such as `Edit(.env)` is not about what packages have in them.
_OF_PACKAGES = re.compile(r"/(?:node_modules|\.venv|venv|__pycache__|\.tox|\.nox)/")
_MANY = "\0\0"
"""An unknown part of a path that may consist of several names, as the value of a variable may."""
_MOST_NAMED = 50_000
"""The maximum number of paths that a word with unknown parts may name, in each of its directories. With more, it may name any."""
_MOST_ASKED = 20
"""The maximum number of denied files of which each is asked whether git tracks it. With more, one of them counts as tracked."""
_NOTHING = re.compile(r"(?!)")
# `${x#y}` and the like, which make a text of another one, and what makes it the value of a variable.
_COMPUTED = re.compile(r"\$\{\w+(?:\[[^]]*\])?[#%/:^,]")
_SET_TO_COMPUTED = re.compile(rf"\+=|\bprintf\s+-v|=[^\s;&|]{{0,200}}?{_COMPUTED.pattern}")
# A word that may be any name in a directory.
_IS_ANY_NAME = re.compile(r"(?:\.\.?/)*\0+")
_EXECUTES = re.compile(r"-(?:exec|ok)(?:dir)?")
# What these name depends on the shell and the process: `~+`, `~user` and `/proc/self/cwd`.
_ELSEWHERE = re.compile(r"~[^/]|(?:/+\.|/+dev/+\.\.)*/+proc/|/+dev/+(?:fd|std\w+)/")
_IN_WORD = re.compile(r"[=@:,]")
_IN_CODE = re.compile(r"[\w.~/@%+*?{}-]+")
_VALUE_OF_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\}|[@*#?$!-])")
# What code that changes files contains.
_CHANGES_IN_CODE = re.compile(
    r"(?i)write|\bdump\(|unlink|remove|rename|replace\(|truncate|rmtree|\bmove|\bcopy|cpSync|rm(?:Sync)?\(|touch|urlretrieve"
    r"|['\"](?:[wax][bt]*\+?[bt]*|r[bt]*\+[bt]*)['\"]|\bprint\s[^|\n]{0,200}>"
)
# Parts of find's expression with which `-name` limits not all that it finds.
_WIDENS = re.compile(r" (?:,|(?:!|-not) \() ")
# rg(1) and ag(1) read no hidden files without one of these, and git-grep(1) only tracked ones.
_READS_HIDDEN = re.compile(r"(?s)-[a-zA-Z]*[gGu.].*|--(?:hidden|no-ignore|unrestricted|i?glob|type-add).*")
_READS_UNTRACKED = re.compile(r"--(?:no-i|un|no-e).*")
# The options of searches behind which a text stands, and those of archivers that name a list of files.
_IS_TEXT = re.compile(r"-[a-zA-Z]*[ef]|--(?:regexp|file)")
# Options of searches that have no other word as their value.
_HAS_NO_VALUE = re.compile(
    r"(?s)-[acFhHiIlnNopPqsSuUvwWxz0]+|-[ABCm]\d+|--[a-z-]+=.*|--(?:line-number|ignore-case|smart-case|word-regexp|fixed-strings|count|hidden"
    r"|files-with-matches|files-without-match|no-heading|no-line-number|no-filename|only-matching|multiline|json|vimgrep)"
)
# In a group, a command may stand before the pipe with others, so that its own input is another one.
_GROUPS = re.compile(r"[(){};&\n]|<<")
_FOLLOWS_LINKS = re.compile(r"(?s)(?:-[a-zA-Z]*[LRh]|[cru][a-z]*h|--deref|--follow|--copy-l).*")
_TO_DIRECTORY = re.compile(r"(?s)-[a-zA-Z]*t.*|--target.*")
_ARCHIVES = (".tar", ".tgz", ".zip", ".gz", ".bz2", ".xz", ".zst")
_IS_LIST = re.compile(r"(?s)-[a-zA-Z]*T.*|--files-from.*")
# A line that does nothing where it cannot enter a directory.
_ENTERS_FIRST = re.compile(r"\s*cd [^\s;&|()<>`$'\"\\]+ *&&((?:[^;&|\n()`]|&&|\|(?!\|)|>&\d)*)")
_HIDDEN = re.compile(r"/\.")
_MOST_DIRECTORIES = 16
"""The maximum number of directories in which ralph looks for a relative path. If a command changes the directory more
often, ralph compares only the names in the command's words with the rules."""


class _Source(Struct, frozen=True):
    """A search or a list that gives names of files to other commands."""

    directories: Sequence[str]
    names: Sequence[str] = ()
    """The patterns of names to which it is limited, if there are any."""
    is_read: Callable[[str], bool] = bool
    """Tells whether it gives the name of a file."""
    is_search: bool = False
    """True if it surely gives names of files. A text may do so too."""


class PathJudge:
    """Judges the paths that one line names."""

    def __init__(
        self,
        line: ParsedLine,
        places: RulePlaces,
        reading: Sequence[KnownRule],
        changing: Sequence[KnownRule],
    ) -> None:
        """`reading` and `changing` are the rules about reading and changing paths."""
        self._line = line
        self._places = places
        self._reading = reading
        self._changing = changing
        self._bases, self._is_lost = directories_of(line, places)
        self._asked = 0
        self._judged: set[tuple[bool, bool, int]] = set()
        """The kinds of commands that have been compared with the sources."""
        self._below, self._names_in = cache(places.disk.paths_below), cache(places.disk.names_in)

    def broken(self) -> Broken | None:
        """The first rule that the line breaks, or None if it breaks none."""
        has_rules = self._reading or self._changing
        return next(self._all_broken(), None) if has_rules else None

    def _all_broken(self) -> Iterator[Broken]:
        line = self._line
        # A redirection reads or changes a file as these commands do.
        redirected = [
            SimpleCommand((plain("tee" if one.writes else "cat"), one.target))
            for one in line.redirections
            if not one.is_harmless
        ]
        is_clear = not (line.not_understood or line.suspect or line.runs_unknown or line.evaluated)
        is_printing = is_clear and all(_has(command, "prints") for command in line.commands)
        commands = redirected if is_printing else [*redirected, *line.commands]
        # What a command changes may be named by any word, as in `f=x; rm $f` and `echo x | xargs rm`.
        changed = (word for one in commands if _has(one, "changes") for word in one.words)
        is_named_elsewhere = any(word.text is None and not word.is_glob for word in changed)
        elsewhere = self._changing if is_named_elsewhere else ()
        for command in commands:
            yield from self._in_command(command, elsewhere)
        # Other words may hold paths among other text, as the value of a variable.
        rules = (*(() if is_printing else self._reading), *elsewhere)
        words = [*line.other_words]
        if any(word.variable for one in commands for word in one.words):  # as in `f=x sh -c 'cat $f'`
            words += [word for one in line.commands for word in one.assignments]
        for word in words if rules else ():
            in_code = (piece for text in word.parts for piece in _IN_CODE.findall(text or ""))
            for piece in (*_pieces(word), *map(_glob_word, in_code)):
                yield from self._in_word(piece, rules)
        if not is_clear:
            yield from self._in_code()
        if line.lost and line.runs_any:
            yield from (
                (one, "It may name such a file: write it plainly.")
                for one in (*self._reading, *self._changing)
            )

    def _in_command(self, command: SimpleCommand, changing: Sequence[KnownRule]) -> Iterator[Broken]:
        """`changing` are the rules about changing paths that count even if the command changes none."""
        rules = (*self._reading, *(self._changing if _has(command, "changes") else changing))
        # Of what is copied, only the last word is changed.
        is_copy = _has(command, "to") and command.name != "mv" and not _has_option(command, _TO_DIRECTORY)
        at = len(command.words) - 1 if is_copy else 0
        for number, word in enumerate(command.words):
            for piece in _pieces(word):
                yield from self._in_word(piece, rules if number >= at else (*self._reading, *changing))
        # What is not known may be any name that a search or a list gives, but for a destination and a text to search for.
        has_text = _has(command, "search") and not _has_option(command, _IS_TEXT)
        words = _operands(command)[1:] if has_text else command.words[1 : -1 if _has(command, "to") else None]
        unknown = [word for word in words if word.is_any and _IS_ANY_NAME.fullmatch(_marked(word))]
        is_shown, is_computed = _has(command, "shows"), any(not word.variable for word in unknown)
        key = (is_shown, is_computed, len(rules))
        is_changed = bool(self._changing) and _has(command, "changes")
        if unknown and (is_shown or is_changed or command.name not in TRAITS) and key not in self._judged:
            self._judged.add(key)
            computed = is_computed and any(map(_COMPUTED.search, self._line.texts))
            for one in (*self._sources, *([_Source(self._bases)] * computed)):
                if one.is_search or is_shown:
                    meant = rules if is_shown or command.name not in TRAITS else self._changing
                    yield from self._in_directories(one.directories, one.names, meant, is_read=one.is_read)
        if self._changing and _has(command, "below") and _has(command, "changes"):
            yield from self._below_changed(command)
        if _has(command, "tree"):
            yield from self._below_read(command)

    @cached_property
    def _sources(self) -> Sequence[_Source]:
        """The searches and lists from which words of the line may come."""
        line = self._line
        read = (one.target for one in line.redirections if not (one.writes or one.target.is_stream))
        commands = [SimpleCommand((plain("cat"), target), output="|") for target in read]
        commands += line.commands
        takers = [at for at, command in enumerate(commands, start=1) if _has(command, "takes")]
        # In a plain line, a command gives names only to those behind it.
        is_plain = not (line.not_understood or line.has_loop or line.pipes_blocks)
        last = (takers[-1] if is_plain else len(commands) + 1) if takers else 0
        found = [_Source(self._bases)] * any(map(_SET_TO_COMPUTED.search, line.texts))
        for at, command in enumerate(commands, start=1):
            is_taken = at < last and (command.output == "|" or line.pipes_blocks)
            if command.name == "find" and (command.output or is_taken or _has_option(command, _EXECUTES)):
                found.append(self._found_by_find(command))
            elif not (command.output == "$" or is_taken) or command.name == "find":
                continue
            elif _has(command, "lists"):
                found += self._listed(command)
            elif command.name not in TRAITS or "shows" in TRAITS[command.name]:
                is_passing = _has(command, "passes") or any(word.is_unknown for word in command.words)
                found += [] if is_passing else [_Source(self._bases)]
        return found

    def _found_by_find(self, command: SimpleCommand) -> _Source:
        starts = [*takewhile(lambda word: not re.match(r"[-(!]", word.known), command.words[1:])]
        if any(word.text is None for word in starts):
            return _Source(self._bases, is_search=True)
        known = [word.known for word in command.words]
        names: list[str] | None = []
        for at in (0, *(at for at, word in enumerate(known) if word in ("-o", "-or"))):
            rest = [*takewhile(lambda at: known[at] not in ("-o", "-or"), range(at + 1, len(known)))]
            only = [
                _pattern(command.words[at])
                for at in rest
                if known[at - 1] in ("-name", "-iname") and known[at - 2] not in ("!", "-not")
            ]
            names = [*names, *only] if only and names is not None else None
        is_wide = names is None or _WIDENS.search(" ".join(known)) is not None
        directories = [path for word in starts for path in self._paths(word)] or self._bases
        return _Source(directories, () if is_wide else names or (), is_search=True)

    def _listed(self, command: SimpleCommand) -> Iterator[_Source]:
        """The names which a command such as `ls` and `grep -l` gives."""
        is_text_first = _has(command, "search") and not _has_option(command, _IS_TEXT)
        operands = _operands(command)[is_text_first + (command.name == "git") :]
        is_read = self._places.disk.may_be_tracked if command.name == "git" else bool
        only = _included(command)
        if (command.name or "").endswith("grep") and not (operands or _has(command, "tree")):
            return  # it reads its input
        for word in operands:
            marked = re.sub(r"[*?[\0]", "\0", _marked(word))
            if "\0" in marked and (word.is_glob or word.text is not None):
                directory = self._places.joined(f"{_known_directory(f'./{marked}')}", self._bases[0])
                yield _Source([directory], [_pattern(word).rpartition("/")[2]], is_read, is_search=True)
            elif word.text is not None:
                yield _Source(self._paths(word), only, is_read, is_search=True)
        if not operands or any(word.text is None and not word.is_glob for word in operands):
            yield _Source(self._bases, only, is_read, is_search=True)

    def _below_changed(self, command: SimpleCommand) -> Iterator[Broken]:
        """The rules about files in directories that the command changes as a whole."""
        if command.name == "find":
            found = self._found_by_find(command)
            yield from self._in_directories(found.directories, found.names, self._changing, _OF_PACKAGES)
            return
        # What is moved into a directory changes nothing else there.
        is_copy = _has(command, "to") and len(command.words) > 2 and not _has_option(command, _TO_DIRECTORY)
        words = command.words[1:-1] if command.name == "mv" else command.words[-1 if is_copy else 1 :]
        if any(word.text is None and not word.is_glob for word in words):
            words = (*words, *self._values())
        words = (*words, *(_glob_word(choice) for word in words for choice in word.choices))
        pieces = (one for word in words for one in _pieces(word) if one.is_glob or one.text is not None)
        joined = (self._places.joined(_marked(one), base) for base, one in product(self._bases, pieces))
        paths = [f"{path}/" for path in joined if not _OF_PACKAGES.search(f"{path}/")]
        yield from self._in_directories(paths, (), self._changing, _OF_PACKAGES)

    def _values(self) -> Sequence[Word]:
        """The words that may be values of variables, as in `x=src; rm -r $x`, for the first command that asks."""
        self._asked += 1
        words = self._line.other_words if self._asked == 1 else ()
        return [piece for word in words for piece in _pieces(word)]

    def _below_read(self, command: SimpleCommand) -> Iterator[Broken]:
        """The rules about files in directories that the command reads as a whole."""
        name = command.name or ""
        is_search, is_grep, is_to = _has(command, "search"), bool(name.endswith("grep")), _has(command, "to")
        operands = _operands(command)[: -1 if is_to else None]
        directories = [path for word in operands for path in self._paths(word)]
        # One operand may be the text to search for, and one that is not known may be any directory.
        has_text = is_search and not _has_option(command, _IS_TEXT)
        if len(operands) <= has_text and self._is_behind_pipe(command):
            return
        needed = 1 + has_text + (name == "git")
        is_anywhere = len(operands) < needed or _has_option(command, _IS_LIST)
        places = operands[has_text and operands[0].is_one :] if operands else []
        globs = [_marked(word) for word in places if word.is_glob]
        directories += [self._places.joined(one, base) for one, base in product(globs, self._bases)]
        if any(
            word.text is None and not word.is_glob and not word.known.endswith(_ARCHIVES) for word in places
        ):
            is_anywhere = True
            directories += [path for word in self._values() for path in self._paths(word)]
        options = (word.known for word in command.words[1:] if word.known[:1] == "-")
        needed += sum(not (_HAS_NO_VALUE.fullmatch(one) or _IS_TEXT.fullmatch(one)) for one in options)
        if is_search and not is_grep and len(operands) < needed:  # the last one may be the text
            is_anywhere |= not (operands and any(map(self._below, self._paths(operands[-1]))))
        if _has_option(command, _FOLLOWS_LINKS):
            below = (path for directory in directories for path in self._below(directory) or ())
            directories += [real for path in below if (real := self._places.disk.real(path)) != path]
        is_hidden_left_out = name in ("rg", "ag") and not _has_option(command, _READS_HIDDEN)
        is_tracked = name == "git" and not _has_option(command, _READS_UNTRACKED)
        yield from self._in_directories(
            [*directories, *self._bases] if is_anywhere else directories,
            _included(command),
            self._reading,
            _HIDDEN if is_hidden_left_out else _NOTHING,
            is_read=self._places.disk.may_be_tracked if is_tracked else bool,
        )

    def _is_behind_pipe(self, command: SimpleCommand) -> bool:
        """Whether a search reads the output of the command before it, in a line that is nothing but one pipeline."""
        commands = self._line.commands
        if command.name not in ("rg", "ag", "ack") or _GROUPS.search("\n".join(self._line.texts)):
            return False
        at = next(at for at, one in enumerate(commands) if one is command)
        return at > 0 and command.is_needed and commands[at - 1].output == "|"

    def _in_directories(
        self,
        directories: Iterable[str],
        names: Sequence[str],
        rules: Sequence[KnownRule],
        left_out: re.Pattern[str] = _NOTHING,
        is_read: Callable[[str], bool] = bool,
    ) -> Iterator[Broken]:
        """The rules that are about files in the directories, whose paths may have unknown names. The rest is as in `_about_files`."""
        for directory in dict.fromkeys(directories):
            path = f"{directory.rstrip('/')}/"
            around = _known_directory(path)
            near = [one for one in rules if one.path.may_be_below(around)]
            for one in self._about_files(path, near, names, left_out, is_read):
                does, instead = (
                    ("reads", "use Grep, Glob and Read")
                    if one in self._reading
                    else ("changes", "name the files")
                )
                yield one, f"It {does} {around}, where such files lie: {instead}."

    def _about_files(
        self,
        path: str,
        rules: Sequence[KnownRule],
        names: Sequence[str] = (),
        left_out: re.Pattern[str] = _NOTHING,
        is_read: Callable[[str], bool] = bool,
    ) -> Iterator[KnownRule]:
        """Those of the rules that are about a file that exists, if a path with unknown parts may name it or, with a slash at its end,
        a directory above it. The file's name matches one of the patterns `names`, if there are any, and the rest of its path does
        not match `left_out`. `is_read` tells whether the command reads a file, if it does not read all.
        """
        around = _known_directory(path).rstrip("/")
        files = self._named_by(around, path[len(around) + 1 :]) if rules else ()
        patterns = [each.lower() for each in names]

        def may_be_meant(file: str) -> bool:
            name = file.rpartition("/")[2].lower()
            is_wanted = not patterns or any(fnmatchcase(name, each) for each in patterns)
            return is_wanted and not left_out.search(file[len(around) :])

        for one in rules:
            if files is None:
                may_be_there = not names or any(one.path.may_match_name(_elements(each)) for each in names)
            else:
                meant = (file for file in files if one.path.matches(file) and may_be_meant(file))
                matching = [*islice(meant, _MOST_ASKED + 1)]
                may_be_there = len(matching) > _MOST_ASKED or any(map(is_read, matching))
            if may_be_there:
                yield one

    def _named_by(self, around: str, rest: str) -> Sequence[str] | None:
        """The existing paths in the directory `around` that `rest`, a path with unknown parts, may name. None if there may be too many."""
        if rest and _MANY not in rest and not rest.endswith("/"):
            found = [around]
            for part in rest.split("/"):
                found = [*map(self._places.disk.real, found)]
                shape = re.compile(_shape(part), re.DOTALL)
                names = ((above, one) for above in found for one in self._names_in(above or "/"))
                further = (f"{above}/{name}" for above, name in names if shape.fullmatch(name))
                found = [*islice(further, _MOST_NAMED + 1)]
                if len(found) > _MOST_NAMED:
                    return None
            return found
        below = self._below(around or "/")
        parts = "/".join(".*" if part == _MANY else _shape(part) for part in rest.split("/"))
        end = ".*" if rest.endswith("/") or not rest else ""
        named = re.compile(f"{re.escape(around)}/{parts}{end}", re.DOTALL)
        return None if below is None else [*filter(named.fullmatch, below)]

    def _in_word(self, word: Word, rules: Sequence[KnownRule]) -> Iterator[Broken]:
        for choice in word.choices:
            yield from self._in_word(_glob_word(choice), rules)
        if word.choices or word.is_unknown or not rules:
            return
        marked = _marked(word)
        is_lost = self._is_lost or _ELSEWHERE.match(marked) is not None
        if word.text is not None and not is_lost:
            for path, one in product(self._paths(word), rules):
                if one.path.holds(path):
                    yield one, f"It names {word.text}."
            return
        if not word.is_glob:
            marked = re.sub(r"(?<![^/])\0+(?![^/])", _MANY, re.sub("\0+", "\0", marked))
        names = [name for name in marked.split("/") if name not in ("", ".", "..")]
        if is_lost or (names[:1] == [_MANY] and not word.is_glob):
            found = self._by_names(names, rules)
        elif word.is_glob or any(name.strip("\0") for name in names):
            found = self._by_place(marked, word, rules)
        else:
            return
        shown = _marked(word).replace("\0", "*" if word.is_glob else "...")
        for one in found:
            yield one, f"{shown} in it may name such a file: write the whole path out."

    def _by_place(self, marked: str, word: Word, rules: Sequence[KnownRule]) -> Iterator[KnownRule]:
        """Judges a path with unknown parts in a known directory, by the files that are there."""
        # With these settings of the shell, a pattern matches names that begin with a dot too.
        is_wide = not word.is_glob or {"dotglob", "GLOBIGNORE"} & self._line.everywhere
        for base in self._bases:
            path = self._places.joined(marked, base)
            around = _known_directory(path)
            real = self._places.disk.real(around)
            # A pattern that stands for directories may name a link.
            is_deep = word.is_glob and "/" in path.partition("\0")[2]
            for each in dict.fromkeys((path, f"{real}{path[len(around) :]}")):
                elements = [(ANY if is_wide else NAME) if char == "\0" else char for char in each]
                near = [one for one in rules if is_deep or one.path.may_match(elements)]
                yield from (
                    one for one in near if not word.is_glob and one.path.holds(_known_directory(each))
                )
                yield from self._about_files(each, near)

    def _by_names(self, names: Sequence[str], rules: Sequence[KnownRule]) -> Iterator[KnownRule]:
        """Judges a path whose directory is unknown, by the names in it, and by the files that exist if only a part of a name is known."""
        for name in (name for name in names if name.strip("\0")):
            elements: list[Element] = [ANY if char == "\0" else char for char in name]
            named = re.compile(rf".*/{_shape(name)}(?:/.*)?", re.DOTALL)
            for one in (one for one in rules if one.path.may_match_name(elements)):
                below = map(self._below, self._places.roots)
                if "\0" not in name or any(
                    files is None or any(map(one.path.matches, filter(named.fullmatch, files)))
                    for files in below
                ):
                    yield one

    def _in_code(self) -> Iterator[Broken]:
        """Judges everything that looks like a path, in what ralph cannot fully parse."""
        line = self._line
        without_quotes = [re.sub(r"\\\n|[\"'\\]", "", text) for text in line.texts]
        without_quotes += [_VALUE_OF_VARIABLE.sub(" ", text) for text in without_quotes] if line.lost else []
        texts = {piece for text in without_quotes for piece in _IN_CODE.findall(text)} | line.everywhere
        may_change = bool(line.runs_unknown or line.lost or line.evaluated)
        may_change |= any(map(_CHANGES_IN_CODE.search, line.texts))
        rules = (*self._reading, *(self._changing if may_change else ()))
        pieces = {piece for text in texts for piece in (text, *_IN_WORD.split(text)) if piece.strip("./*")}
        for piece in sorted(pieces):
            yield from self._in_word(plain(piece), rules)

    def _paths(self, word: Word) -> Sequence[str]:
        is_path = word.text and "\0" not in word.text and "\n" not in word.text
        return self._places.named(word.text or "", self._bases) if is_path else ()


def directories_of(line: ParsedLine, places: RulePlaces) -> tuple[list[str], bool]:
    """The directories in which parts of the line may run, and whether there may be unknown directories too."""
    found, is_lost = [places.real_cwd], bool(line.lost)
    entered = [one for one in line.commands if one.name == "cd"]
    enters_first = len(entered) == len(line.texts) == 1 and _ENTERS_FIRST.fullmatch(line.texts[0]) is not None
    if enters_first:
        found = [places.joined(entered[0].words[1].known, found[0])]
    for command in line.commands:
        words, name = command.words, command.name
        if name in ("cd", "pushd"):
            targets = [word for word in words[1:] if not re.fullmatch(r"-[LPe@]+|--", word.known)]
            targets = targets or [plain(places.home or "/")] * (name == "cd")
            targets = [] if enters_first else targets
        elif name in FORMS or name in ("make", "tar"):
            targets = [after for word, after in pairwise(words) if word.text in _IN_DIRECTORY]
            for word in words[1:]:
                attached = re.match(r"(-C|--[a-z]+(?==))=?(.+)", word.known)
                if attached and attached[1] in _IN_DIRECTORY:
                    targets.append(UNKNOWN if word.text is None else plain(attached[2]))
        else:
            is_lost = is_lost or name == "popd"
            continue
        for target in targets:
            if target.text in (None, "-") or "\0" in target.known:
                is_lost = True
                continue
            known = [places.joined(target.known, base) for base in found]
            found = list(dict.fromkeys((*found, *known)))[:_MOST_DIRECTORIES]
            is_lost = is_lost or len(found) == _MOST_DIRECTORIES
    return found, is_lost


def _has(command: SimpleCommand, trait: str) -> bool:
    """Whether a command with its options has a trait of the table. One whose name is not known may change what it is given."""
    if command.name is None:
        return trait == "changes"
    options = TRAITS.get(command.name, {}).get(trait)
    return options is not None and (not options.pattern or _has_option(command, options))


def _has_option(command: SimpleCommand, options: re.Pattern[str]) -> bool:
    return any(options.fullmatch(word.known) for word in command.words[1:])


def _pieces(word: Word) -> Iterator[Word]:
    """Yields the word, and the parts of the word that may be paths: `x` in `--file=x`, `@x`, `HEAD:x` and `-fx`."""
    yield word
    marked = _marked(word)
    for piece in _IN_WORD.split(marked):
        if piece not in ("", marked):
            yield _from_marked(re.sub("^//+", "/", piece) if marked.startswith("file:") else piece, word)
    attached = re.match(r"-[A-Za-z](.+)", marked, re.DOTALL)
    if attached:
        yield _from_marked(attached[1], word)


def _operands(command: SimpleCommand) -> list[Word]:
    """The words of a command without its name, its options, and the texts behind the options of a search."""
    is_text = _IS_TEXT if _has(command, "search") else _NOTHING
    pairs = pairwise(command.words)
    return [one for before, one in pairs if not (one.known[:1] == "-" or is_text.fullmatch(before.known))]


def _included(command: SimpleCommand) -> list[str]:
    """The patterns of names to which options such as `--include` limit a search."""
    option = re.compile("-g|--i?glob" if command.name == "rg" else "--include")
    attached = (_pattern(word).partition("=") for word in command.words[1:])
    found = [value for name, equals, value in attached if equals and option.fullmatch(name)]
    found += [_pattern(after) for word, after in pairwise(command.words) if option.fullmatch(word.known)]
    return [] if any(one.startswith("!") or "/" in one for one in found) else found


def _pattern(word: Word) -> str:
    """A pattern for names, as `fnmatch` reads it. A backslash may stand for any character, as may what is not known."""
    return re.sub(r"\0|\\.", "*", _marked(word)).replace("[^", "[!")


def _shape(name: str) -> str:
    """A regular expression for the names that a name with unknown parts may be."""
    return "[^/]*".join(map(re.escape, re.split("\0+", name)))


def _known_directory(path: str) -> str:
    """The directory of a path up to its first unknown part."""
    return path.partition("\0")[0].rpartition("/")[0] or "/"


def _elements(name: str) -> list[Element]:
    return [ANY if char in "*?[" else char for char in name]


def _marked(word: Word) -> str:
    return "".join("\0" if part is ANY else part for part in word.parts)


def _from_marked(text: str, word: Word) -> Word:
    parts = tuple(ANY if piece == "\0" else piece for piece in re.split("(\0)", text) if piece)
    return Word(parts, is_glob=word.is_glob and ANY in parts)


def _glob_word(text: str) -> Word:
    """Makes a word from a text without quotes. `*`, `?` and brackets become unknown parts."""
    marked = re.sub(r"[*?]|\[[^\]]*\]|\{[^{}]*\.\.[^{}]*\}", "\0", text)
    return _from_marked(marked, Word((), is_glob=True))
