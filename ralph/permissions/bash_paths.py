"""Finds the paths that a shell command names, and judges them by the rules for reading and changing files.

A command is refused if any of its words is a denied path, whatever it does with that path, or if it reads a directory that
contains one. Files that a program opens although the command does not name them, such as the data of a test, are not judged.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice, pairwise, product, takewhile
from typing import TYPE_CHECKING

from ralph.permissions.command_table import FORMS
from ralph.permissions.patterns import ANY, NAME, Element
from ralph.permissions.shell import MISREAD
from ralph.permissions.shell_words import UNKNOWN, Word, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ralph.permissions.judge import Broken, KnownRule, RulePlaces
    from ralph.permissions.shell import ParsedLine
    from ralph.permissions.shell_syntax import SimpleCommand


# Commands that only print their words. A path in them is a text.
_PRINTERS = frozenset("echo printf true false : cd pushd popd".split())
# Commands that may change the files that they are given.
_CHANGERS = frozenset(
    """
    rm mv cp tee touch truncate dd ln install chmod chown chgrp rsync shred unlink rmdir mkdir patch ed ex vi vim nvim
    emacs nano split csplit scp tar unzip zip gzip gunzip bzip2 xz sponge setfacl chattr curl wget mkfifo prettier
    black gofmt rename dos2unix unix2dos link mktemp script fallocate objcopy strip
    """.split()
)
# Options of commands of the table by which they run in another directory.
_IN_DIRECTORY = frozenset("-C --prefix --directory --dir --cwd --chdir --cd".split())
_IN_PLACE = re.compile(r"-[a-zA-Z]*i.*|--i.*|--write|--fix|-o.*|--o.*")
_CHANGES_IN_PLACE = frozenset(
    "sed gsed perl ruby sort shuf iconv openssl awk gawk yq clang-format autopep8 ruff".split()
)
_GIT_CHANGES = frozenset("checkout restore rm mv apply reset clean stash am".split())
_GIT_OUTPUT = re.compile(r"-o.*|--output(?:=.*)?")
# Commands that read whole directories, some of them only with an option.
_RECURSIVE = {
    **dict.fromkeys("rg ag ack ugrep tar zip 7z 7za rsync bsdtar cpio pax ln".split(), r""),
    **dict.fromkeys(
        ["grep", "egrep", "fgrep", "zgrep"], r"-[a-zA-Z]*[rRd].*|--(?:dereference-)?recursive|--directories.*"
    ),
    **dict.fromkeys(("cp", "scp"), r"-[a-zA-Z]*[rRa].*|--recursive|--archive"),
    "diff": r"-[a-zA-Z]*r.*|--recursive",
}
# Commands that change, move or replace whole directories, some of them only with an option.
_CHANGES_BELOW = {
    **dict.fromkeys("mv rsync tar unzip".split(), r""),
    **dict.fromkeys("chmod chown chgrp setfacl chattr".split(), r"-[a-zA-Z]*R.*|--recursive"),
    **dict.fromkeys(("rm", "cp", "scp"), r"-[a-zA-Z]*[rRa].*|--recursive|--archive"),
    "find": r"-delete|-fl?s|-fprintf?",
    "git": r"rm",
}
# Directories of package managers. A rule such as `Edit(.env)` is not about what packages have in them.
_OF_PACKAGES = re.compile(r"/(?:node_modules|\.venv|venv|__pycache__|\.tox|\.nox)/")
_MANY = "\0\0"
"""An unknown part of a path that may consist of several names, as the value of a variable may."""
_MOST_NAMED = 50_000
"""The maximum number of paths that a word with unknown parts may name, in each of its directories. With more, it may name any."""
_MOST_ASKED = 20
"""The maximum number of denied files of which each is asked whether git tracks it. With more, one of them counts as tracked."""
_NOTHING = re.compile(r"(?!)")
# Commands that show nothing of the content of the files that they are given.
_BLIND = frozenset(
    """
    rm rmdir unlink mkdir touch chmod chown chgrp ls wc stat du basename dirname realpath readlink echo printf test [
    true mv md5sum sha1sum sha256sum
    """.split()
)
# `${x#y}` and the like, which make a text of another one.
_COMPUTED = re.compile(r"\+=|\bprintf\s+-v|\$\{\w+(?:\[[^]]*\])?[#%/:^,]")
# What these name depends on the shell and the process: `~+`, `~user` and `/proc/self/cwd`.
_ELSEWHERE = re.compile(r"~[^/]|(?:/+\.|/+dev/+\.\.)*/+proc/|/+dev/+(?:fd|std\w+)/")
_IN_WORD = re.compile(r"[=@:,]")
_IN_CODE = re.compile(r"[\w.~/@%+*?{}-]+")
# What code that changes files contains.
_CHANGES_IN_CODE = re.compile(
    r"(?i)write|\bdump\(|unlink|remove|rename|replace\(|truncate|rmtree|\bmove|\bcopy|cpSync|rm(?:Sync)?\(|touch|urlretrieve"
    r"|['\"](?:[wax][bt]*\+?[bt]*|r[bt]*\+[bt]*)['\"]|\bprint\s[^|\n]{0,200}>"
)
_GREPS = frozenset(["grep", "egrep", "fgrep", "zgrep"])
# Commands that give names of files to others, and builtins that take them from a list.
_FINDERS = frozenset(["find", "xargs", "parallel"])
# Commands that hand on the names which they get.
_HAND_ON = frozenset(["xargs", "parallel", "sort", "uniq", "head", "tail", "tr", "wc"])
# Parts of find's expression with which `-name` limits not all that it finds.
_WIDENS = re.compile(r"!|-not|-or?|,|-prune")
# rg(1) and ag(1) read no hidden files without one of these.
_READ_NO_HIDDEN_FILES = frozenset(["rg", "ag"])
_READS_HIDDEN = re.compile(
    r"-[a-zA-Z]*[u.].*|-[a-zA-Z]*[gGt].*|--(?:hidden|no-ignore|unrestricted|i?glob|type).*"
)
# git-grep(1) reads only tracked files without one of these.
_READS_UNTRACKED = re.compile(r"--(?:no-index|untracked|no-exclude-standard)")
# The options of searches behind which a text stands.
_IS_TEXT = re.compile(r"-[a-zA-Z]*[ef]|--(?:regexp|file)")
# A line that does nothing where it cannot enter a directory.
_ENTERS_FIRST = re.compile(r"\s*cd [^\s;&|()<>`$'\"\\]+ *&&((?:[^;&|\n()`]|&&|\|(?!\|)|>&\d)*)")
# The destination of these is not read.
_HAVE_DESTINATION = frozenset(["cp", "scp", "rsync", "ln", "mv", "install"])
_HIDDEN = re.compile(r"/\.")
_LISTERS = frozenset(["read", "mapfile", "readarray"])
# Commands that show the content of the files that they are given, or put it elsewhere.
_SHOW_CONTENT = frozenset(
    """
    cat tac head tail less more nl od xxd hexdump strings base64 base32 tee grep egrep fgrep zgrep rg sed awk gawk cut
    sort uniq paste join comm fold expand fmt pr column rev diff cmp cp mv ln install dd tar zip gzip zcat curl wget
    scp rsync bat jq yq source . vim vi ed ex
    """.split()
)
_MOST_DIRECTORIES = 16
"""The maximum number of directories in which ralph looks for a relative path. If a command changes the directory more
often, ralph compares only the names in the command's words with the rules."""


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
        self._below = cache(places.disk.paths_below)

    def broken(self) -> Broken | None:
        """The first rule that the line breaks, or None if it breaks none."""
        has_rules = self._reading or self._changing
        return next(self._all_broken(), None) if has_rules else None

    def _all_broken(self) -> Iterator[Broken]:
        for one in self._line.redirections:
            if one.is_harmless:
                continue
            rules = self._changing if one.writes else self._reading
            yield from self._in_word(one.target, rules)
            if one.target.text is None and not (one.target.is_glob or one.target.is_stream):
                remark = "Where its output or input leads is known only when it runs: write it out."
                yield from ((rule, remark) for rule in rules if self._may_name(one.target, rule))
        is_printing = all(command.name in _PRINTERS for command in self._line.commands)
        is_clear = not (self._line.not_understood or self._line.suspect or self._line.runs_unknown)
        if is_printing and is_clear:
            return
        # What a command changes may be named by any word, as in `f=x; rm $f` and `echo x | xargs rm`.
        changers = filter(_changes, self._line.commands)
        is_named_elsewhere = any(
            word.text is None and not word.is_glob for one in changers for word in one.words
        )
        elsewhere = self._changing if is_named_elsewhere else ()
        for command in self._line.commands:
            yield from self._in_command(command, elsewhere)
        for (
            word
        ) in self._line.other_words:  # which may hold paths among other text, as the value of a variable
            in_code = (piece for text in word.parts for piece in _IN_CODE.findall(text or ""))
            for piece in (*_pieces(word), *map(_glob_word, in_code)):
                yield from self._in_word(piece, (*self._reading, *elsewhere))
        if not is_clear:
            yield from self._in_code()

    def _in_command(self, command: SimpleCommand, changing: Sequence[KnownRule]) -> Iterator[Broken]:
        """`changing` are the rules about changing paths that count even if the command changes none."""
        words, name = command.words, command.name or ""
        rules = (*self._reading, *(self._changing if _changes(command) else changing))
        for word in words:
            for piece in _pieces(word):
                yield from self._in_word(piece, rules)
        if any(word.is_unknown for word in words[1:]) and self._may_be_found(name):
            yield from self._in_directories(*self._searched(), rules)
        yield from self._below_changed(command, name)
        pattern = _RECURSIVE.get(name)
        if name == "git" and any(word.text == "grep" for word in words[1:]):
            pattern = ""
        options = [word.known for word in words[1:] if word.known.startswith("-")]
        if pattern is not None and (not pattern or any(re.fullmatch(pattern, each) for each in options)):
            is_search = "grep" in name or name in ("git", "rg", "ag", "ack")
            operands = _operands(words)[: -1 if name in _HAVE_DESTINATION else None]
            named = [path for word in operands for path in self._paths(word)]
            # One operand may be the text to search for, and one that is not known may be any directory.
            has_text = is_search and any(map(_IS_TEXT.fullmatch, options))
            is_anywhere = len(operands) < 2 - has_text - (name in _HAVE_DESTINATION)
            is_anywhere |= any(word.text is None for word in operands)
            is_anywhere |= any(re.match(r"-[a-zA-Z]*T|--files-from", one) is not None for one in options)
            if (
                is_search and name not in _GREPS
            ):  # some options have a value, so that the last operand may be the text
                is_anywhere |= not (operands and any(map(self._below, self._paths(operands[-1]))))
            reads_hidden = name not in _READ_NO_HIDDEN_FILES or any(map(_READS_HIDDEN.fullmatch, options))
            directories = [*named, *self._bases] if is_anywhere else named
            included = _included(words) if name in _GREPS else []
            is_tracked = (
                None if any(map(_READS_UNTRACKED.fullmatch, options)) else self._places.disk.may_be_tracked
            )
            yield from self._in_directories(
                *(directories, included, self._reading, _NOTHING if reads_hidden else _HIDDEN),
                is_read=is_tracked if name == "git" else None,
            )

    def _may_name(self, word: Word, rule: KnownRule) -> bool:
        """Whether a path with unknown parts, which need not exist, may be one that the rule is about."""
        if self._is_lost or word.is_unknown:
            return True
        paths = (self._places.joined(_marked(word), base) for base in self._bases)
        return any(rule.path.may_match([NAME if char == "\0" else char for char in path]) for path in paths)

    def _searched(self) -> tuple[Sequence[str], Sequence[str]]:
        """The directories from which the line's searches may take names, and the patterns of names to which all of them are limited."""
        directories: list[str] = []
        names: list[str] = []
        is_limited = True
        for command in self._line.commands:
            words = command.words[1:]
            options = [word.known for word in words if word.known.startswith("-")]
            if command.name == "find":
                starts = [*takewhile(lambda word: not re.match(r"[-(!]", word.known), words)]
                tests = [(word.text, _pattern(after)) for word, after in pairwise(words)]
                only = [pattern for test, pattern in tests if test in ("-name", "-iname")]
                is_limited = is_limited and not any(_WIDENS.fullmatch(word.known) for word in words)
            elif any(word.is_unknown for word in words) or command.name in _HAND_ON:
                continue
            elif command.name in _GREPS:
                has_text = any(map(_IS_TEXT.fullmatch, options))
                starts, only = _operands(command.words)[0 if has_text else 1 :], _included(words)
                if not starts and not any(re.fullmatch(_RECURSIVE["grep"], one) for one in options):
                    continue  # it reads its input
            else:
                return self._bases, ()
            if any(word.text is None for word in starts):
                return self._bases, ()
            directories += [path for word in starts for path in self._paths(word)] if starts else self._bases
            is_limited = is_limited and bool(only)
            names += only
        return directories or self._bases, names if is_limited else ()

    def _below_changed(self, command: SimpleCommand, name: str) -> Iterator[Broken]:
        """The rules about files in directories that the command changes as a whole."""
        known = [word.known for word in command.words[1:]]
        pattern = _CHANGES_BELOW.get(name) if self._changing and _changes(command) else None
        if pattern is None or not (not pattern or any(re.fullmatch(pattern, one) for one in known)):
            return
        if name == "find":
            yield from self._in_directories(*self._searched(), self._changing, _OF_PACKAGES)
            return
        # What is moved into a directory changes nothing else there.
        words = command.words[1 : -1 if name == "mv" and len(command.words) > 2 else None]
        if any(word.text is None and not word.is_glob for word in words):
            words = (*words, *self._line.other_words)  # as in `x=src; rm -r $x`
        words = (*words, *(_glob_word(choice) for word in words for choice in word.choices))
        pieces = (
            piece for word in words for piece in _pieces(word) if piece.is_glob or piece.text is not None
        )
        paths = [
            f"{self._places.joined(_marked(piece), base)}/" for base, piece in product(self._bases, pieces)
        ]
        yield from self._in_directories(
            [path for path in paths if not _OF_PACKAGES.search(path)], (), self._changing, _OF_PACKAGES
        )

    def _in_directories(
        self,
        directories: Iterable[str],
        names: Sequence[str],
        rules: Sequence[KnownRule],
        left_out: re.Pattern[str] = _NOTHING,
        is_read: Callable[[str], bool] | None = None,
    ) -> Iterator[Broken]:
        """The rules that are about files in the directories, whose paths may have unknown names. The rest is as in `_about_files`."""
        for directory in dict.fromkeys(directories):
            path = f"{directory.rstrip('/')}/"
            around = _known_directory(path)
            near = [one for one in rules if one.path.may_be_below(around)]
            for one in self._about_files(path, near, names, left_out, is_read):
                if one in self._reading:
                    yield one, f"It reads {around}, where such files lie: use Grep, Glob and Read."
                else:
                    yield one, f"It changes {around}, where such files lie: name the files."

    def _about_files(
        self,
        path: str,
        rules: Sequence[KnownRule],
        names: Sequence[str] = (),
        left_out: re.Pattern[str] = _NOTHING,
        is_read: Callable[[str], bool] | None = None,
    ) -> Iterator[KnownRule]:
        """Those of the rules that are about a file that exists, if a path with unknown parts may name it or, with a slash at its end,
        a directory above it. The file's name matches one of the patterns `names`, if there are any, and the rest of its path does
        not match `left_out`. `is_read` tells whether the command reads a file, if it does not read all.
        """
        around = _known_directory(path).rstrip("/")
        files = self._named_by(around, path[len(around) + 1 :]) if rules else ()
        for one in rules:
            found = (file for file in files or () if not left_out.search(file[len(around) :]))
            may_be_there = files is None
            if names:
                found = (
                    file
                    for file in found
                    if any(fnmatchcase(file.rpartition("/")[2].lower(), each.lower()) for each in names)
                )
                may_be_there &= any(one.path.may_match_name(_elements(each)) for each in names)
            matching = [*islice(filter(one.path.matches, found), _MOST_ASKED + 1)]
            if may_be_there or len(matching) > _MOST_ASKED or any(map(is_read or bool, matching)):
                yield one

    def _named_by(self, around: str, rest: str) -> Sequence[str] | None:
        """The existing paths in the directory `around` that `rest`, a path with unknown parts, may name. None if there may be too many."""
        if _MANY not in rest and not rest.endswith("/") and rest:
            found = [around]
            for part in rest.split("/"):
                shape = re.compile("[^/]*".join(map(re.escape, part.split("\0"))), re.DOTALL)
                further = (
                    f"{above}/{name}"
                    for above in found
                    for name in self._places.disk.names_in(above or "/")
                    if shape.fullmatch(name)
                )
                found = [*islice(further, _MOST_NAMED + 1)]
                if len(found) > _MOST_NAMED:
                    return None
            return found
        below = self._below(around or "/")
        parts = (
            ".*" if part == _MANY else "[^/]*".join(map(re.escape, re.split("\0+", part)))
            for part in rest.split("/")
        )
        named = re.compile(
            f"{re.escape(around)}/{'/'.join(parts)}{'.*' if rest.endswith('/') or not rest else ''}",
            re.DOTALL,
        )
        return None if below is None else [*filter(named.fullmatch, below)]

    def _may_be_found(self, name: str) -> bool:
        """Whether an unknown word of the command `name` may be any file, because a search or a list makes it."""
        names = {command.name for command in self._line.commands}
        if names & _FINDERS:
            return name not in _BLIND
        has_list = (
            bool(names & _LISTERS)
            or "a substitution" in self._line.not_understood
            or any(map(_COMPUTED.search, self._line.texts))
        )
        return has_list and name in _SHOW_CONTENT

    def _in_word(self, word: Word, rules: Sequence[KnownRule]) -> Iterator[Broken]:
        for choice in word.choices:
            yield from self._in_word(_glob_word(choice), rules)
        if word.choices or word.is_unknown:
            return
        known = word.text
        is_lost = self._is_lost or _ELSEWHERE.match(_marked(word))
        if known is not None and not is_lost:
            for path, one in product(self._paths(word), rules):
                if one.path.holds(path):
                    yield one, f"It names {known}."
            return
        marked = _marked(word)
        if not word.is_glob:
            marked = re.sub(r"(?<![^/])\0+(?![^/])", _MANY, re.sub("\0+", "\0", marked))
        names = [name for name in marked.split("/") if name not in ("", ".", "..")]
        if is_lost or (names[:1] == [_MANY] and not word.is_glob):
            yield from self._by_names(names, word, rules)
        elif word.is_glob or any(name.strip("\0") for name in names):
            yield from self._by_place(marked, word, rules)

    def _by_place(self, marked: str, word: Word, rules: Sequence[KnownRule]) -> Iterator[Broken]:
        """Judges a path with unknown parts in a known directory, by the files that are there."""
        # With these settings of the shell, a pattern matches names that begin with a dot too.
        is_wide = not word.is_glob or {"dotglob", "GLOBIGNORE"} & self._line.everywhere
        for base in self._bases:
            path = self._places.joined(marked, base)
            elements = [(ANY if is_wide else NAME) if char == "\0" else char for char in path]
            near = [one for one in rules if one.path.may_match(elements)]
            for one in self._about_files(path, near):
                yield one, _about_unknown(word)

    def _by_names(self, names: Sequence[str], word: Word, rules: Sequence[KnownRule]) -> Iterator[Broken]:
        """Judges a path whose directory is unknown, by the names in it, and by the files that exist if only a part of a name is known."""
        for name in (name for name in names if name.strip("\0")):
            elements: list[Element] = [ANY if char == "\0" else char for char in name]
            shape = "[^/]*".join(map(re.escape, re.split("\0+", name)))
            named = re.compile(f".*/{shape}(?:/.*)?", re.DOTALL)
            for one in (one for one in rules if one.path.may_match_name(elements)):
                below = map(self._below, self._places.roots)
                if "\0" not in name or any(
                    files is None or any(map(one.path.matches, filter(named.fullmatch, files)))
                    for files in below
                ):
                    yield one, _about_unknown(word)

    def _in_code(self) -> Iterator[Broken]:
        """Judges everything that looks like a path, in what ralph cannot fully parse."""
        texts = {
            piece
            for text in self._line.texts
            for piece in _IN_CODE.findall(re.sub(r"\\\n|[\"'\\]", "", text))
        }
        texts |= {piece for word in self._line.everywhere for piece in (word, *_IN_WORD.split(word))}
        may_change = self._line.runs_unknown or not MISREAD.isdisjoint(self._line.not_understood)
        may_change |= any(map(_CHANGES_IN_CODE.search, self._line.texts))
        rules = (*self._reading, *(self._changing if may_change else ()))
        for text in sorted(texts):
            for piece in (text, *_IN_WORD.split(text)):
                if piece.strip("./*"):
                    yield from self._in_word(plain(piece), rules)

    def _paths(self, word: Word) -> Sequence[str]:
        is_path = word.text and "\0" not in word.text and "\n" not in word.text
        return self._places.named(word.text or "", self._bases) if is_path else ()


def directories_of(line: ParsedLine, places: RulePlaces) -> tuple[list[str], bool]:
    """The directories in which parts of the line may run, and whether there may be unknown directories too."""
    found, is_lost = [places.real_cwd], False
    entered = [one for one in line.commands if one.name == "cd"]
    enters_first = len(entered) == len(line.texts) == 1 and _ENTERS_FIRST.fullmatch(line.texts[0]) is not None
    if enters_first:
        found = [places.joined(entered[0].words[1].known, found[0])]
    for command in line.commands:
        if enters_first and command.name == "cd":
            continue
        words, name = command.words, command.name
        targets = [word for word in words[1:] if not re.fullmatch(r"-[LPe@]+|--", word.known)]
        if name in FORMS or name in ("make", "tar"):
            targets = [after for word, after in pairwise(words) if word.text in _IN_DIRECTORY]
            for word in words[1:]:
                attached = re.match(r"(-C|--[a-z]+(?==))=?(.*)", word.known)
                if attached and attached[1] in _IN_DIRECTORY and word.known != "-C":
                    targets.append(UNKNOWN if word.text is None else plain(attached[2]))
        elif name not in ("cd", "pushd"):
            is_lost = is_lost or name == "popd"
            continue
        if name == "cd" and not targets:
            targets = [plain(places.home or "/")]
        for target in targets:
            if target.text in (None, "-") or "\0" in target.known:
                is_lost = True
                continue
            known = [places.joined(target.known, base) for base in found]
            found = list(dict.fromkeys((*found, *known)))[:_MOST_DIRECTORIES]
            is_lost = is_lost or len(found) == _MOST_DIRECTORIES
    return found, is_lost


def _changes(command: SimpleCommand) -> bool:
    words, name = command.words, command.name
    if name is None or name in _CHANGERS:
        return True
    if name == "git":
        return any(word.text in _GIT_CHANGES or _GIT_OUTPUT.fullmatch(word.known) for word in words[1:])
    if name == "find":
        return any(word.known in ("-delete", "-fprint", "-fprintf", "-fls") for word in words)
    return name in _CHANGES_IN_PLACE and any(_IN_PLACE.fullmatch(word.known) for word in words[1:])


def _pieces(word: Word) -> Iterator[Word]:
    """Yields the word, and the parts of the word that may be paths: `x` in `--file=x`, `@x`, `HEAD:x` and `-fx`."""
    yield word
    marked = _marked(word)
    for piece in _IN_WORD.split(marked):
        if piece not in ("", marked):
            yield _from_marked(piece.removeprefix("//") if marked.startswith("file:") else piece, word)
    if marked.startswith("file:/"):
        yield _from_marked("/" + marked.removeprefix("file:").lstrip("/"), word)
    attached = re.match(r"-[A-Za-z](.+)", marked, re.DOTALL)
    if attached:
        yield _from_marked(attached[1], word)


def _about_unknown(word: Word) -> str:
    shown = _marked(word).replace("\0", "*" if word.is_glob else "...")
    return f"{shown} in it may name such a file: write the whole path out."


def _operands(words: Sequence[Word]) -> list[Word]:
    """The words of a command without its name, its options, and the texts behind the options of a search."""
    pairs = pairwise(words)
    return [
        word for before, word in pairs if not (word.known.startswith("-") or _IS_TEXT.fullmatch(before.known))
    ]


def _included(words: Sequence[Word]) -> list[str]:
    """The patterns of names to which `grep --include` limits a search."""
    attached = (_pattern(word).partition("=")[2] for word in words if word.known.startswith("--include="))
    return [*attached, *(_pattern(after) for word, after in pairwise(words) if word.text == "--include")]


def _pattern(word: Word) -> str:
    """A pattern for names, as `fnmatch` reads it. A backslash may stand for any character, as may what is not known."""
    return re.sub(r"\0|\\.", "*", _marked(word)).replace("[^", "[!")


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
