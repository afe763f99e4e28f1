"""Pins the repository's settings that decide where and how a push goes. An agent can write `.git/config`, and one
line there can send the work, or the user's token, elsewhere. To pin settings means to read them once, when the loop
begins, and to use these values for all pushes. Only settings on a list are pinned. No setting on this list names a
program. A push ignores all other settings of the repository. Settings of the user's files, the system's files and the
environment are read at each push. This module runs nothing and reads no file.

The record of the pinned settings contains no credential. If a value may contain a credential, only its digest is
recorded. Such a setting can be restored as long as the repository still has the same value.
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

# git-config(1). Left out on purpose: programs (`core.sshCommand`, `core.gitProxy`, `core.askPass`, credential helpers,
# `remote.*.receivepack`, `.vcs`), `protocol.*`, which may only be widened by the user, and `http.cookieFile` with
# `http.saveCookies`, which writes any file.
_HTTP = (
    "curloptresolve|delegation|emptyauth|extraheader|followredirects|lowspeedlimit|lowspeedtime|maxrequests|minsessions"
    "|noepsv|pinnedpubkey|postbuffer|proxy|proxyauthmethod|proxysslcainfo|proxysslcert|proxysslcertpasswordprotected"
    "|proxysslkey|schannelcheckrevoke|schannelusesslcainfo|sslbackend|sslcainfo|sslcapath|sslcert"
    "|sslcertpasswordprotected|sslcerttype|sslcipherlist|sslkey|sslkeytype|ssltry|sslverify|sslversion|useragent|version"
)
_PINNED = re.compile(
    r"remote\.(?:pushdefault|.+\.(?:url|pushurl|fetch|proxy|proxyauthmethod))"
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
"""The number of digits of a recorded digest. So few digits are enough to notice a change, but not to recover a
password."""


class BrokenPinsError(ValueError):
    """The record of pinned settings cannot be used. The message is a text such as "is damaged: ...". The caller puts
    the subject before it.
    """


class PinnedSetting(Struct, frozen=True):
    name: str
    value: str


class Pins(Struct, frozen=True):
    settings: tuple[PinnedSetting, ...]
    """Pinned settings in the order in which git reads them."""
    places: frozenset[str] = frozenset()
    """The identities (`identity_of`) of remotes that are directories on this machine. A remote is included only if it
    existed when the settings were pinned."""


class RemoteSettings(Struct, frozen=True):
    """All git settings for a call to a remote. Git uses no other settings in this call."""

    entries: tuple[PinnedSetting, ...]

    @property
    def values(self) -> dict[str, str]:
        """The value of each setting by name. If a setting has several values, this is the last one."""
        return {entry.name: entry.value for entry in self.entries}

    @property
    def remotes(self) -> list[str]:
        found = (_REMOTE_URL.fullmatch(entry.name) for entry in self.entries)
        return list(dict.fromkeys(match["remote"] for match in found if match))

    def all_of(self, name: str) -> list[str]:
        return [entry.value for entry in self.entries if entry.name == name]

    def push_urls(self, remote: str) -> list[str]:
        """The addresses that git pushes to, after `insteadOf` and `pushInsteadOf` have been applied. If there is no
        remote called `remote`, `remote` itself is the address.
        """
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
        """The address after rewriting, or None if no rule applies. If several rules apply, the one with the longest
        prefix is used. If two prefixes are equally long, the first rule is used.
        """
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
        """A copy of these settings in which `url` is the only address of the remote. The copy has no settings that
        rewrite addresses.
        """
        dropped = {f"remote.{remote}.url", f"remote.{remote}.pushurl"}
        kept = (
            entry for entry in self.entries if entry.name not in dropped and not entry.name.startswith("url.")
        )
        return RemoteSettings((*kept, PinnedSetting(f"remote.{remote}.url", url)))


def pins_of(settings: GitSettings) -> Pins:
    """Pins the values in the repository's current configuration. `places` of the result is empty."""
    return Pins(
        tuple(
            PinnedSetting(setting.name, setting.value)
            for setting in settings.entries
            if setting.is_of_repository and _PINNED.fullmatch(setting.name)
        )
    )


def remote_settings(settings: GitSettings, pins: Pins) -> RemoteSettings:
    """The settings for a call to a remote. The repository's own settings are replaced by the pinned ones. Pinned
    settings override settings of the user's and the system's files. Settings of git's `command` scope, which come
    from ralph's `-c` options or the environment, override the pinned ones.
    """
    trusted = [setting for setting in settings.entries if not setting.is_of_repository]
    return RemoteSettings(
        (
            *_plain(setting for setting in trusted if setting.scope != "command"),
            *pins.settings,
            *_plain(setting for setting in trusted if setting.scope == "command"),
        )
    )


def _plain(settings: Iterable[Setting]) -> Iterator[PinnedSetting]:
    return (PinnedSetting(setting.name, setting.value) for setting in settings)


def changed_names(before: Pins, now: Pins) -> list[str]:
    """The sorted names of the settings whose values differ between `before` and `now`."""
    then, today = Counter(before.settings), Counter(now.settings)
    return sorted({setting.name for setting in (then - today) + (today - then)})


def guarded_settings(settings: GitSettings) -> dict[str, str]:
    """The repository settings that can make git run a program or send data. Maps the name of each setting to a digest
    of its values. Settings that agents change in ordinary work are left out.
    """
    values: dict[str, list[str]] = {}
    for setting in settings.entries:
        if setting.is_of_repository and not _OF_NO_CONCERN.fullmatch(setting.name):
            values.setdefault(setting.name, []).append(setting.value)
    return {name: _digest("", name, "\0".join(each))[:_SHORT] for name, each in values.items()}


# --- its record


class _KeptSetting(Struct, frozen=True, omit_defaults=True):
    """A recorded setting. It has a name and a value. If the value may contain a credential, it has only a digest."""

    name: str | None = None
    value: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        if self.digest is None and (self.name is None or self.value is None):
            raise ValueError("a setting has a name and a value, or a digest")

    def restored(self, known: Mapping[str, PinnedSetting]) -> PinnedSetting | None:
        """The setting with its value. If only a digest was recorded, the value comes from `known`, which maps digests
        to the current settings. Returns None if `known` lacks the digest.
        """
        if self.name is None or self.value is None:
            return known.get(self.digest or "")
        return PinnedSetting(self.name, self.value)


class _KeptPins(Struct, frozen=True):
    salt: str
    settings: tuple[_KeptSetting, ...]
    places: tuple[str, ...]


def pins_text(pins: Pins, salt: str) -> str:
    """The pinned settings as JSON without credentials. `salt` is 32 hexadecimal digits. The caller makes a new salt
    for each record.
    """
    settings = tuple(
        _KeptSetting(digest=_digest(salt, setting.name, setting.value))
        if _may_hold_credentials(setting)
        else _KeptSetting(setting.name, setting.value)
        for setting in pins.settings
    )
    kept = _KeptPins(salt, settings, tuple(sorted(pins.places)))
    return json.dumps(to_builtins(kept), indent=2) + "\n"


def read_pins(text: str, now: Pins) -> tuple[Pins, bool]:
    """Reads recorded pins from `text`. Also returns whether a pin could not be restored. `now` are the repository's
    current settings. If only the digest of a value was recorded, the value can be restored only from `now`. Raises
    BrokenPinsError.
    """
    try:
        kept = convert(json.loads(text), _KeptPins)
    except (ValueError, RecursionError) as error:
        raise BrokenPinsError(f"is damaged: {error}") from None
    known = {_digest(kept.salt, setting.name, setting.value): setting for setting in now.settings}
    found = [setting.restored(known) for setting in kept.settings]
    return Pins(tuple(each for each in found if each is not None), frozenset(kept.places)), None in found


def _may_hold_credentials(setting: PinnedSetting) -> bool:
    both = (setting.name, setting.value)
    return any(_HAS_CREDENTIALS.match(text) or Redactor().redact_all(text) != text for text in both)


def _digest(salt: str, name: str, value: str) -> str:
    said = f"{salt}\0{name}\0{value}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(said).hexdigest()
