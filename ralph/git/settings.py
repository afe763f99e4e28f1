"""Decides which programs git may run for ralph: those that the user's configuration names, not those that only the
repository's names. An agent can write `.git/config`, and many git settings are commands. If the repository sets a command,
ralph replaces it by the user's value of this setting, or else by an empty or harmless one. The same holds for a file of the
user's that is where an agent can write it, or is found through a link there, and for a setting whose value leads there.
A filter of the user's own runs only if it is git-lfs, as `git lfs install` sets it up, or if the user's settings for ralph
name it: the agent's attributes choose filters, and many take code or settings from the directory in which they start.
This module runs nothing: it only parses the output of `git config --list`.

These rules are for git calls without a remote, and depend on a list of the settings that name programs. Calls with a
remote use the pinned settings (`Pins`). Two risks remain, because git has no option against them: a helper of the
user's, such as git-lfs, reads some of its settings from the repository, and before version 2.39.4, git may fetch a missing
object with the program in `remote.*.uploadpack`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct, convert, to_builtins

from ralph.git.answer import CheckoutError
from ralph.places.git_config import LFS_STORAGE, STANDARD_LFS
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

ALWAYS = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.pager=cat"),
    *("-c", "commit.gpgSign=false", "-c", "log.showSignature=false", "-c", "submodule.recurse=false"),
    # If this is true, git fetches first, with the program in `remote.*.uploadpack`.
    *("-c", "push.negotiate=false"),
    # Git writes into `rr-cache` before a commit. ralph commits no tree with conflicts.
    *("-c", "rerere.enabled=false", "-c", "rerere.autoUpdate=false"),
    # It names packs by their paths, which may lead elsewhere.
    *("-c", "core.multiPackIndex=false"),
    # If these are on, git leaves a maintenance process behind.
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false"),
)
"""Arguments of every git call. ralph's calls need none of these features, whoever has set them."""
# Each names a program, or where git-lfs writes. If the user names none, the value here replaces the repository's.
_PROGRAMS = {
    "core.sshcommand": "ssh",
    "core.alternaterefscommand": "true",
    "uploadpack.packobjectshook": "env",
    LFS_STORAGE[0]: LFS_STORAGE[1],
}
# Programs that a push runs, if the user names them, and the place of git-lfs.
_OF_REMOTES = ("core.sshcommand", "core.askpass", "core.gitproxy", LFS_STORAGE[0])
# The name between the dots may be empty: `[filter ""]`, chosen by `filter=` in `.gitattributes`.
_FILTER = re.compile(r"filter\.(?P<name>.*)\.(?P<key>clean|smudge|process|required)", re.DOTALL)
_CREDENTIAL_HELPER = re.compile(r"credential\.(?:.*\.)?helper", re.DOTALL)
_HOOK = re.compile(r"(?P<hook>hook\..*)\.command", re.DOTALL)
_LFS_EXTENSION = re.compile(r"lfs\.extension\..*\.(?:clean|smudge)", re.DOTALL)
_NO_FILTER = {"clean": "", "smudge": "", "process": "", "required": "false"}
_LFS = "lfs"
_OBJECT_FORMAT = "extensions.objectformat"
_LOCAL = "local"
_COMMAND = "command"
_OF_AGENTS = "agents"
_OF_THE_REPOSITORY = frozenset({_LOCAL, "worktree", _OF_AGENTS})
LIST = ("config", "--list", "--show-scope", "--show-origin", "-z")
"""The git command that lists the settings, for `settings_from`."""


class Setting(Struct, frozen=True):
    scope: str
    """`system`, `global`, `local`, `worktree` or `command`, or `agents` if its value names what an agent can write."""
    name: str
    """Section and key in lower case, as git prints their names."""
    value: str
    file: str = ""
    """The user's own file, if an agent can decide what it says, so that the setting counts as the repository's."""

    @property
    def is_of_repository(self) -> bool:
        return self.scope in _OF_THE_REPOSITORY


class GitSettings(Struct, frozen=True):
    values: dict[str, str]
    """The effective value of each setting, which may come from the repository: not for settings that name a program."""
    arguments: tuple[str, ...]
    """Arguments that every git call gets, in front of the git command."""
    left_out: tuple[str, ...] = ()
    """Names of repository settings that ralph's git calls ignore. A push or a commit may fail without them."""
    dropped_filters: frozenset[str] = frozenset()
    """Filters that do not run, because only the repository defines them or the user has not named them: a file that needs one must
    not be committed.
    """
    unnamed_filters: frozenset[str] = frozenset()
    """Those of them that the user's own configuration defines."""
    entries: tuple[Setting, ...] = ()
    """All settings, in the order in which git reads them."""
    files: tuple[str, ...] = ()
    """The files with the repository's settings, as git names them."""

    @property
    def advice(self) -> str:
        files = ", ".join(dict.fromkeys(one.file for one in self.entries if one.file))
        if not files:
            return "set it by git config --global"
        return f"set it in a file elsewhere, as GIT_CONFIG_GLOBAL can name it: {files} leads through a place that commands may write"

    def configured(self, name: str) -> str | None:
        """The value of a setting in git's files, also if ralph's own calls replace it. None if it is not set."""
        found = [one.value for one in self.entries if one.name == name and one.scope != _COMMAND]
        return found[-1] if found else None

    @property
    def object_format(self) -> str:
        """The hash function of the repository, `sha1` or `sha256`."""
        told = [one.value for one in self.entries if one.is_of_repository and one.name == _OBJECT_FORMAT]
        return told[-1].lower() if told else "sha1"


def settings_from(
    listing: bytes,
    is_writable: Callable[[str], bool] = lambda _: False,
    names_writable: Callable[[str], bool] = lambda _: False,
    filters: Collection[str] = (),
    is_elsewhere: Callable[[], bool] = lambda: False,
) -> GitSettings:
    """Makes the settings from `listing`, the output of `LIST`. `is_writable` tells whether an agent can decide what a file says,
    and `names_writable` whether a value names such a file: the user's own settings there count as the repository's. `filters`
    are those that the user has named. git-lfs does not run if `is_elsewhere`: it would write where commands may not. Raises
    CheckoutError.
    """

    def runs_writable(name: str, value: str) -> bool:
        match = _FILTER.fullmatch(name)
        return (match is None or match["name"] in (_LFS, *filters)) and names_writable(value)

    settings = list(_read(listing, is_writable, runs_writable))
    theirs = [setting for setting in settings if setting.is_of_repository]
    trusted = [setting for setting in settings if not setting.is_of_repository]
    known = {setting.name: setting.value for setting in trusted}
    replaced = _filters_to_replace(theirs)
    unnamed = _filters_of(trusted) - {*filters}
    dropped = unnamed.union(name for name, keys in replaced.items() if not _is_defined(name, keys, known))
    if any(setting.name.startswith(f"filter.{_LFS}.") for setting in settings) and is_elsewhere():
        dropped |= {_LFS}
    pairs = [
        _pair("protocol.ext.allow", known.get("protocol.ext.allow", "never")),
        *_replaced_programs(theirs, known),
        *_replaced_helpers(theirs, trusted),
        *_replaced_filters(replaced, dropped, known),
    ]
    return GitSettings(
        {setting.name: setting.value for setting in settings},
        (*ALWAYS, *(word for pair in pairs for word in ("-c", pair))),
        tuple(dict.fromkeys(_missed(theirs, replaced))),
        dropped,
        unnamed,
        tuple(settings),
        _files_of_repository(listing),
    )


def _files_of_repository(listing: bytes) -> tuple[str, ...]:
    parts = listing.decode("utf-8", "surrogateescape").split("\0")
    scopes = zip(parts[0::3], parts[1::3], strict=False)
    files = (origin.removeprefix("file:") for scope, origin in scopes if scope in _OF_THE_REPOSITORY)
    return tuple(dict.fromkeys(files))


def _read(
    listing: bytes, is_writable: Callable[[str], bool], runs_writable: Callable[[str, str], bool]
) -> Iterator[Setting]:
    parts = listing.decode("utf-8", "surrogateescape").split("\0")
    known: dict[str, bool] = {}
    for scope, origin, setting in zip(parts[0::3], parts[1::3], parts[2::3], strict=False):
        name, has_value, value = setting.partition("\n")
        kind, _, file = origin.partition(":")
        if origin not in known:
            known[origin] = scope not in _OF_THE_REPOSITORY and kind == "file" and is_writable(file)
        whose = _OF_AGENTS if runs_writable(name, value) else _LOCAL if known[origin] else scope
        own_file = file if known[origin] else ""
        yield Setting(whose, name, value if has_value else "true", own_file)


def _replaced_programs(theirs: Sequence[Setting], known: dict[str, str]) -> Iterator[str]:
    for name in dict.fromkeys(setting.name for setting in theirs):
        if name in _PROGRAMS:
            yield _pair(name, known.get(name, _PROGRAMS[name]))
        elif hook := _HOOK.fullmatch(name):
            yield _pair(f"{hook['hook']}.enabled", "false")
        elif _LFS_EXTENSION.fullmatch(name):
            yield _pair(name, known.get(name, ""))


def _replaced_helpers(theirs: Sequence[Setting], trusted: Sequence[Setting]) -> list[str]:
    """Git asks all helpers in its list. An empty entry removes all earlier entries (gitcredentials(7))."""
    if not any(_CREDENTIAL_HELPER.fullmatch(setting.name) for setting in theirs):
        return []
    kept = [setting for setting in trusted if _CREDENTIAL_HELPER.fullmatch(setting.name)]
    return ["credential.helper=", *(_pair(setting.name, setting.value) for setting in kept)]


def _filters_to_replace(theirs: Sequence[Setting]) -> dict[str, set[str]]:
    """For each filter, the keys that the repository sets, without those that `git lfs install --local` writes."""
    found: dict[str, set[str]] = {}
    for setting in theirs:
        match = _FILTER.fullmatch(setting.name)
        is_lfs = match is not None and match["name"] == _LFS and STANDARD_LFS.fullmatch(setting.value)
        if match and not (is_lfs and setting.scope != _OF_AGENTS):
            found.setdefault(match["name"], set()).add(match["key"])
    return found


def _filters_of(trusted: Sequence[Setting]) -> frozenset[str]:
    """The filters that the user's own configuration defines, but for git-lfs as `git lfs install` sets it up."""
    found = set()
    for setting in trusted:
        match = _FILTER.fullmatch(setting.name)
        if match and match["key"] != "required" and setting.value:
            is_lfs = match["name"] == _LFS and STANDARD_LFS.fullmatch(setting.value)
            found |= set() if is_lfs else {match["name"]}
        elif _LFS_EXTENSION.fullmatch(setting.name) and setting.value:
            found.add(_LFS)  # git-lfs would run another program
    return frozenset(found)


def _is_defined(name: str, keys: set[str], known: dict[str, str]) -> bool:
    """Whether the user's own configuration defines a filter of which the repository sets `keys`. Git does not run `clean` if
    `process` is set, even if its value is empty.
    """
    if "process" in keys:
        return bool(known.get(f"filter.{name}.process"))
    return any(known.get(f"filter.{name}.{key}") for key in ("clean", "process"))


def _replaced_filters(
    filters: dict[str, set[str]], dropped: frozenset[str], known: dict[str, str]
) -> Iterator[str]:
    for name in (*filters, *sorted(dropped.difference(filters))):
        for key in _NO_FILTER if name in dropped else sorted(filters[name]):
            setting, nothing = f"filter.{name}.{key}", _NO_FILTER[key]
            yield _pair(setting, nothing if name in dropped else known.get(setting, nothing))


def _missed(theirs: Sequence[Setting], filters: Collection[str]) -> Iterator[str]:
    for setting in theirs:
        match = _FILTER.fullmatch(setting.name)
        is_program = setting.name in _OF_REMOTES or _CREDENTIAL_HELPER.fullmatch(setting.name)
        if is_program or (match and match["name"] in filters):
            yield setting.name


def _pair(name: str, value: str) -> str:
    """A setting as an argument for `-c`, in which git would take what follows an equals sign in the name for the value."""
    if "=" in name:
        raise CheckoutError(
            f"git's configuration names a program by {name!r}, which ralph cannot set aside; rename it"
        )
    return f"{name}={value}"


# `Pins` are the repository's settings that decide where and how a push goes: an agent can write `.git/config`, and one line
# there can send the work, or the user's token, elsewhere. They are read once, when the loop begins, and these values are used
# for all pushes. A list says which are pinned. None of them names a program, and a push ignores all others of the
# repository. Settings of the user, the system and the environment are read at each push. No I/O happens here.
#
# Of a value that may contain a credential, only a digest is recorded. Such a setting can be restored as long as the
# repository still has the same value.

# git-config(1), git-lfs-config(5). Left out on purpose: programs (`core.sshCommand`, `core.gitProxy`, `core.askPass`, credential helpers,
# `remote.*.receivepack`, `.vcs`), `protocol.*`, which may only be widened by the user, and `http.cookieFile` with
# `http.saveCookies`, which writes any file.
_HTTP = (
    "curloptresolve|delegation|emptyauth|extraheader|followredirects|lowspeedlimit|lowspeedtime|maxrequests|minsessions"
    "|noepsv|pinnedpubkey|postbuffer|proxy|proxyauthmethod|proxysslcainfo|proxysslcert|proxysslcertpasswordprotected"
    "|proxysslkey|schannelcheckrevoke|schannelusesslcainfo|sslbackend|sslcainfo|sslcapath|sslcert"
    "|sslcertpasswordprotected|sslcerttype|sslcipherlist|sslkey|sslkeytype|ssltry|sslverify|sslversion|useragent|version"
)
_PINNED = re.compile(
    r"remote\.(?:pushdefault|.+\.(?:url|pushurl|fetch|proxy|proxyauthmethod|lfsurl|lfspushurl))"
    r"|lfs\.(?:url|pushurl|concurrenttransfers|basictransfersonly|.+\.access)"
    r"|url\..+\.(?:insteadof|pushinsteadof)"
    rf"|http\.(?:.+\.)?(?:{_HTTP})"
    r"|credential\.(?:.+\.)?(?:username|usehttppath)"
    r"|branch\..+\.(?:remote|pushremote|merge)"
    r"|push\.(?:default|pushoption)|ssh\.variant",
    re.DOTALL,
)
_HAS_CREDENTIALS = re.compile(r"http\.|.*://[^/]*@", re.DOTALL)
_REMOTE_URL = re.compile(r"remote\.(?P<remote>.+)\.(?:url|pushurl)", re.DOTALL)
# Settings that an agent changes in ordinary work. They make git neither run nor send anything.
_OF_NO_CONCERN = re.compile(r"branch\..*|user\.(?:name|email)", re.DOTALL)

_SHORT = 8
"""So few digits of a digest are enough to notice a change, but not to recover a password."""


class BrokenPinsError(ValueError):
    """The record of pinned settings cannot be used. The caller puts the subject before the message."""


class PinnedSetting(Struct, frozen=True):
    name: str
    value: str


class Pins(Struct, frozen=True):
    settings: tuple[PinnedSetting, ...]
    """In the order in which git reads them."""
    places: frozenset[str] = frozenset()
    """The identities (`identity_of`) of remotes on this machine that existed when the settings were pinned."""
    branch: str | None = None
    """The branch then. All pushes go to its remote. None if HEAD was detached, and in records of older ralphs."""


class RemoteSettings(Struct, frozen=True):
    """All git settings for a call to a remote."""

    entries: tuple[PinnedSetting, ...]

    @property
    def values(self) -> dict[str, str]:
        """The last value of each setting."""
        return {entry.name: entry.value for entry in self.entries}

    @property
    def remotes(self) -> list[str]:
        found = (_REMOTE_URL.fullmatch(entry.name) for entry in self.entries)
        return list(dict.fromkeys(match["remote"] for match in found if match))

    def all_of(self, name: str) -> list[str]:
        return [entry.value for entry in self.entries if entry.name == name]

    def push_urls(self, remote: str) -> list[str]:
        """The addresses that git pushes to, after `insteadOf` and `pushInsteadOf`. A name that is not a remote is an address."""
        if remote not in self.remotes:
            return [
                self._rewritten(remote, "pushinsteadof") or self._rewritten(remote, "insteadof") or remote
            ]
        urls, pushed = self.all_of(f"remote.{remote}.url"), self.all_of(f"remote.{remote}.pushurl")
        if pushed:
            return [self._rewritten(url, "insteadof") or url for url in pushed]
        rewritten = [found for url in urls if (found := self._rewritten(url, "pushinsteadof")) is not None]
        return rewritten or [self._rewritten(url, "insteadof") or url for url in urls]

    def _rewritten(self, url: str, key: str) -> str | None:
        """The address by the first of the rules with the longest prefix, or None if no rule applies."""
        by_base: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.name.startswith("url.") and entry.name.endswith(f".{key}"):
                by_base.setdefault(entry.name[len("url.") : -len(f".{key}")], []).append(entry.value)
        fitting = [
            (base, one) for base, beginnings in by_base.items() for one in beginnings if url.startswith(one)
        ]
        if not fitting:
            return None
        base, beginning = max(fitting, key=lambda found: len(found[1]))
        return base + url.removeprefix(beginning)

    def with_only_url(self, remote: str, url: str) -> RemoteSettings:
        """A copy in which `url` is the only address of the remote, and none is rewritten."""
        dropped = {f"remote.{remote}.url", f"remote.{remote}.pushurl"}
        kept = (
            entry for entry in self.entries if entry.name not in dropped and not entry.name.startswith("url.")
        )
        return RemoteSettings((*kept, PinnedSetting(f"remote.{remote}.url", url)))


def pins_of(settings: GitSettings) -> Pins:
    """Pins the values in the repository's current configuration. `places` and `branch` of the result are empty."""
    own = (one for one in settings.entries if one.is_of_repository and _PINNED.fullmatch(one.name))
    return Pins(tuple(_plain(own)))


def remote_settings(settings: GitSettings, pins: Pins) -> RemoteSettings:
    """The settings for a call to a remote: the pinned ones instead of the repository's own. They override those of the user's
    and the system's files, and settings of git's `command` scope (ralph's options and the environment) override them.
    """
    trusted = [setting for setting in settings.entries if not setting.is_of_repository]
    of_files = _plain(setting for setting in trusted if setting.scope != "command")
    of_command = _plain(setting for setting in trusted if setting.scope == "command")
    return RemoteSettings((*of_files, *pins.settings, *of_command))


def _plain(settings: Iterable[Setting]) -> Iterator[PinnedSetting]:
    return (PinnedSetting(setting.name, setting.value) for setting in settings)


def changed_names(before: Pins, now: Pins) -> list[str]:
    """The sorted names of the settings whose values differ between `before` and `now`."""
    then, today = Counter(before.settings), Counter(now.settings)
    return sorted({setting.name for setting in (then - today) + (today - then)})


def guarded_settings(settings: GitSettings) -> dict[str, str]:
    """A digest of each repository setting that can run a program or send data, but for those that ordinary work changes."""
    values: dict[str, list[str]] = {}
    for setting in settings.entries:
        if setting.is_of_repository and not _OF_NO_CONCERN.fullmatch(setting.name):
            values.setdefault(setting.name, []).append(setting.value)
    return {name: _digest("", name, "\0".join(each))[:_SHORT] for name, each in values.items()}


# --- its record


class _KeptSetting(Struct, frozen=True, omit_defaults=True):
    """Has a name and a value, or only a digest if the value may contain a credential."""

    name: str | None = None
    value: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        if self.digest is None and (self.name is None or self.value is None):
            raise ValueError("a setting has a name and a value, or a digest")

    def restored(self, known: Mapping[str, PinnedSetting]) -> PinnedSetting | None:
        """The setting with its value, or what `known` has for its digest."""
        if self.name is None or self.value is None:
            return known.get(self.digest or "")
        return PinnedSetting(self.name, self.value)


class _KeptPins(Struct, frozen=True):
    salt: str
    settings: tuple[_KeptSetting, ...]
    places: tuple[str, ...]
    branch: str | None = None


def pins_text(pins: Pins, salt: str) -> str:
    """The pinned settings as JSON without credentials. `salt` is 32 hexadecimal digits, new for each record."""
    settings = []
    for one in pins.settings:
        both = one.name, one.value
        is_secret = any(_HAS_CREDENTIALS.match(text) or Redactor().redact_all(text) != text for text in both)
        settings.append(_KeptSetting(digest=_digest(salt, *both)) if is_secret else _KeptSetting(*both))
    kept = _KeptPins(salt, tuple(settings), tuple(sorted(pins.places)), pins.branch)
    return json.dumps(to_builtins(kept), indent=2) + "\n"


def read_pins(text: str, now: Pins) -> tuple[Pins, bool]:
    """Reads recorded pins, and whether one could not be restored. Values of which only the digest was recorded come from the
    repository's current settings `now`. Raises BrokenPinsError.
    """
    try:
        kept = convert(json.loads(text), _KeptPins)
    except (ValueError, RecursionError) as error:
        raise BrokenPinsError(f"is damaged: {error}") from None
    known = {_digest(kept.salt, setting.name, setting.value): setting for setting in now.settings}
    found = [setting.restored(known) for setting in kept.settings]
    settings = tuple(each for each in found if each is not None)
    return Pins(settings, frozenset(kept.places), kept.branch), None in found


def _digest(salt: str, name: str, value: str) -> str:
    said = f"{salt}\0{name}\0{value}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(said).hexdigest()
