"""`ralph --complete SHELL ...` answers the scripts of `ralph completion`, while a person waits.

The first line of the answer is `words`, `files` or `directories`. With the latter two, the shell adds names of files.
Each further line is a value, for zsh and fish with a tab and a description. All texts are single lines without control
characters. In case of any error the answer is empty, so that no message gets into the user's prompt.
"""

from __future__ import annotations

import os

from ralph.cli.shell.words import BashLine, Completion, TableRow, quoted, rows_of, wanted

TYPE_CHECKING = False  # `typing` takes longer to load than this module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Values = Iterable[tuple[str, str]]

_SHELLS = ("bash", "zsh", "fish")
_MOST_SESSIONS = 50
"""Nobody reads a longer list. The newest sessions are listed."""
_HEAD_BYTES = 64 * 1024
"""The title of a session is looked for in this many bytes at the beginning of its journal."""
_TITLE_CHARS = 60
_HEX = frozenset("0123456789abcdef-")


def answer_shell(arguments: list[str]) -> int:
    """Prints what the shell may offer. Returns the exit code: 0, or 1 if there is no answer."""
    try:
        lines = _answer(arguments)
        os.write(1, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except Exception:  # noqa: BLE001 - whatever it is, a message in the middle of a command line would not help
        return 1
    return 0


def _answer(arguments: list[str]) -> list[str]:
    shell, *words = arguments
    if shell not in _SHELLS:
        raise ValueError(shell)
    line = BashLine("")
    if shell == "bash":
        line = BashLine(words[0])
        words, current = _behind_program(line.words), line.current
    elif shell == "fish":  # it passes the word at the cursor as it was typed
        *words, raw = words
        current = BashLine(raw).current
    else:
        *words, current = words
    one = wanted(table(), words, current)
    found = [
        (word, says) for word, says in _found(one, with_titles=shell != "bash") if word.isprintable() and word
    ]
    kind = next((source for source in one.sources if source in {"files", "directories"}), "words")
    if shell == "bash":
        begins = f"{one.option}{one.listed}"
        known = len(BashLine(_before(line.raw, arguments[2])).current)
        found = [(f"{begins}{word}"[known:], "") for word, _ in found if word.startswith(one.typed)]
        return [kind, *(quoted(word, line.quote) for word, _ in found)]
    begins = one.listed if shell == "zsh" else f"{one.option}{one.listed}"
    return [kind, *(f"{begins}{word}\t{_one_line(says)}" for word, says in found)]


def _before(raw: str, piece: str) -> str:
    """The beginning of the word that bash does not replace. bash replaces only `piece`, the part behind the last
    character that it takes for the end of a word (COMP_WORDBREAKS).
    """
    return raw[: len(raw) - len(piece)] if raw.endswith(piece) else raw[:0]


def _behind_program(words: list[str]) -> list[str]:
    at = next((at for at, word in enumerate(words) if "=" not in word), len(words))
    return words[at + 1 :]


def table() -> list[TableRow]:
    path = os.path.join(os.path.dirname(__file__), "table.tsv")  # noqa: PTH118, PTH120 - `pathlib` takes longer to load than all of this
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - `pathlib` takes longer to load than all of this
        return rows_of(file.read())


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _found(one: Completion, *, with_titles: bool) -> Values:
    yield from one.choices
    for source in one.sources:
        find = _SOURCES.get(source)
        if find is not None:
            yield from find(one, with_titles)


# --- What depends on the user's files


def _sessions(one: Completion, with_titles: bool) -> Values:
    import time  # noqa: PLC0415 - few completions need it

    from ralph.sessions.naming import age_text  # noqa: PLC0415 - few completions need it
    from ralph.sessions.places import (  # noqa: PLC0415 - few completions need it
        SHORT_ID_CHARS,
        directory_name,
        journals_in,
        listed,
        written_at,
    )

    places, typed = _places(one), one.typed.lower()
    everything = [path for place in places for folder in listed(place) for path in journals_in(folder)]
    everything = [path for path in everything if _HEX.issuperset(path.stem)]
    folder = directory_name(_directory(one))
    here = [path for path in everything if path.parent.name == folder and path.stem.startswith(typed)]
    dated = sorted(((written_at(path), path) for path in here or everything), reverse=True)[:_MOST_SESSIONS]
    counts: dict[str, int] = {}
    for path in everything:
        short = path.stem[:SHORT_ID_CHARS]
        counts[short] = counts.get(short, 0) + 1
    now_s = time.time()
    for written_s, path in dated:
        short = path.stem[:SHORT_ID_CHARS]
        is_short = len(typed) <= SHORT_ID_CHARS and counts[short] == 1
        says = f"{age_text(now_s - written_s)}: {_title(path)}" if with_titles else ""
        yield short if is_short else path.stem, says


def _title(path: Path) -> str:
    import json  # noqa: PLC0415 - few completions need it

    from ralph.machine.files.opened_file import open_regular_file  # noqa: PLC0415 - few completions need it
    from ralph.sessions.naming import shortened, title_from  # noqa: PLC0415 - few completions need it

    title = ""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            lines = file.read(_HEAD_BYTES).split(b"\n")[:-1]
        for line in lines:
            kind = line[:60].partition(b',"kind":"')[2].partition(b'"')[0]
            if kind == b"run":
                title = title or str(json.loads(line).get("title") or "")
            elif kind == b"user":
                content = json.loads(line)["content"]
                text = content if isinstance(content, str) else content[0].get("text", "")
                return shortened(_one_line(title or title_from(text)), _TITLE_CHARS)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # Damaged; the id is offered all the same.
        pass
    return shortened(_one_line(title), _TITLE_CHARS)


def _loops(one: Completion, _with_titles: bool) -> Values:
    from ralph.sessions.places import directory_name, listed, state_directory  # noqa: PLC0415 - few completions need it

    folder = directory_name(_directory(one))
    numbers = {
        int(path.name)
        for place in _places(one)
        for path in listed(state_directory(place) / "loops" / folder)
        if path.name.isdecimal()
    }
    return [(str(number), "loop of this directory") for number in sorted(numbers, reverse=True)]


def _places(one: Completion) -> tuple[Path, ...]:
    from ralph.sessions.places import places_to_read  # noqa: PLC0415 - few completions need it

    named = one.given.get("--session-dir")
    return places_to_read(os.environ, _path(named) if named else None)


def _directory(one: Completion) -> Path:
    return _path(one.given.get("--cd", "")).resolve()


def _path(typed: str) -> Path:
    from pathlib import Path  # noqa: PLC0415 - few completions need it

    return Path.cwd() / Path(typed).expanduser()


def _models(one: Completion, _with_titles: bool) -> Values:
    from ralph.settings.toml_file import (  # noqa: PLC0415 - few completions need it
        SettingsFileError,
        parsed,
        read_settings_file,
        user_settings_path,
    )

    named = one.given.get("--config")
    for path in (user_settings_path(os.environ), _path(named) if named else None):
        try:
            data = None if path is None else read_settings_file(path)
            targets = parsed(path, data).get("targets", []) if path is not None and data else []
        except SettingsFileError:  # `ralph doctor` reports it
            continue
        for target in targets if isinstance(targets, list) else []:
            if isinstance(target, dict) and isinstance(target.get("name"), str):
                yield target["name"], f"target: {target.get('model', '')}"


def _variables(_one: Completion, _with_titles: bool) -> Values:
    return [(name, "") for name in sorted(os.environ) if name.isidentifier()]


_SOURCES: dict[str, Callable[[Completion, bool], Values]] = {
    "sessions": _sessions,
    "loops": _loops,
    "models": _models,
    "variables": _variables,
}
"""For each source of values that depends on the user's machine, the function that finds them."""
