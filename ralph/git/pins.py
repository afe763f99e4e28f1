"""Pins the repository's settings that decide where and how a push goes: an agent can write `.git/config`, and one line
there can send the work, or the user's token, elsewhere. They are read once, when the loop begins, and these values are used
for all pushes. A list says which are pinned. None of them names a program, and a push ignores all others of the
repository. Settings of the user, the system and the environment are read at each push. No I/O happens here.

Of a value that may contain a credential, only a digest is recorded. Such a setting can be restored as long as the
repository still has the same value.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct, convert, to_builtins

from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.git.settings import GitSettings, Setting

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
