"""Removes known secrets, and on request everything that looks like one, from text before it is shown or kept.

It does not know the sources of secrets: `credentials.known_secrets` finds them.
"""

from __future__ import annotations

import binascii
import json
import re
from functools import cached_property
from typing import TYPE_CHECKING

from ralph.values.credentials import credential_shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "[redacted]"
# A token may stand there alone. Of other schemes a user is ordinary: ssh://git@host, postgres://me@localhost.
_USER_IN_URL = re.compile(r"(?i)\b(https?://)(?!\[redacted\]@)[^\s/?#:@'\"<>]+:?@")
_UNRESERVED = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
)  # RFC 3986, 2.3
# Characters that encoders leave as they are: the RFC's, Python's `quote`, JavaScript's encodeURIComponent,
# encodeURI and forms.
_KEPT_IN_URLS = (
    _UNRESERVED,
    _UNRESERVED | frozenset(b"/"),
    _UNRESERVED | frozenset(b"!'()*"),
    _UNRESERVED | frozenset(b"!'()*;,/?:@&=+$#"),
    (_UNRESERVED - frozenset(b"~")) | frozenset(b"*"),
)
_PLAIN_EVERYWHERE = re.compile(r"[A-Za-z0-9._-]+")
"""Characters that no encoder of JSON or URLs changes: those of most keys."""
_URL_SAFE = str.maketrans("+/", "-_")
_SHORTEST_BASE64_LINE = 64
"""The shortest line of wrapped base64: PEM has 64 characters (RFC 7468), MIME and the `base64` command have 76."""
_LEAST_WRAPPED = 24
"""The least length of a form that is searched for across line breaks. Parts of shorter forms could occur by accident.
"""
_BREAK = r"(?:\r?\n[ \t]{0,8}|\\r\\n|\\n)?"
_LONGEST_BREAK_BYTES = 10


class Redactor:
    """Finds and removes secrets in the forms in which they occur: plain, JSON-escaped, URL-quoted and base64, wrapped
    or not.

    A "secret" that is part of the mark itself ("redacted") does not count: it was redacted before.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secret for secret in secrets if secret and secret not in MARK)

    def redact(self, text: str) -> str:
        """The text without any known secret; a text that has none comes back unchanged.

        A plain search comes first: it costs a tenth of the regular expression, which few texts need.
        """
        if ("\n" in text or "\\n" in text) and _holds_any(_joined(text), self._wrapped_forms):
            text = self._wrapped_pattern.sub(MARK, text)
        if not _holds_any(text, self._forms):
            return text
        redacted = self._text_pattern.sub(MARK, text)
        while self._may_rejoin and self._text_pattern.search(redacted):
            redacted = self._text_pattern.sub("", redacted)  # shorter each time, so this ends
        return redacted

    def redact_all(self, text: str) -> str:
        """The text without known secrets and without anything in the shape of a credential, used in error bodies and
        complaints.

        Now and then it removes a harmless text too, so it is not used on text that the model reads.
        """
        redacted = credential_shapes().sub(_mark_shape, self.redact(text))
        return _USER_IN_URL.sub(rf"\1{MARK}@", redacted)

    @cached_property
    def longest_bytes(self) -> int:
        """The length in UTF-8 of the longest form of any secret; 0: there are no secrets.

        A caller that redacts a stream piece by piece holds back one byte less than this.
        """
        plain = max((len(_utf8(form)) for form in self._forms), default=0)
        breaks = _LONGEST_BREAK_BYTES * (1 + plain // _SHORTEST_BASE64_LINE) if self._wrapped_forms else 0
        return plain + breaks

    @cached_property
    def _forms(self) -> list[str]:
        forms = {form for secret in self._secrets for form in _forms_of(secret) if form not in MARK}
        return sorted(forms, key=lambda form: (-len(form), form))

    @cached_property
    def _text_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._forms)))

    @cached_property
    def _wrapped_forms(self) -> list[str]:
        """The base64 forms that are long enough to be searched for across line breaks."""
        forms = {form for secret in self._secrets for form in _base64_forms_of(secret)}
        return sorted(
            (form for form in forms if len(form) >= _LEAST_WRAPPED), key=lambda form: (-len(form), form)
        )

    @cached_property
    def _wrapped_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(_BREAK.join(map(re.escape, form)) for form in self._wrapped_forms))

    @cached_property
    def _may_rejoin(self) -> bool:
        """Whether redaction can create a new secret at the edge of a mark. That takes a form that holds one of the
        mark's brackets.
        """
        return any("[" in form or "]" in form for form in self._forms)


def _joined(text: str) -> str:
    """The text without white space, and without line breaks that are escaped as in JSON."""
    if "\\n" in text:
        text = text.replace("\\r", "").replace("\\n", "")
    return "".join(text.split())


def _holds_any(text: str, forms: Iterable[str]) -> bool:
    for form in forms:  # noqa: SIM110 - a generator would cost more than what it asks
        if form in text:
            return True
    return False


def _forms_of(secret: str) -> Iterator[str]:
    yield secret
    if not _PLAIN_EVERYWHERE.fullmatch(secret):
        yield from _json_forms(secret)
        yield from _url_forms(secret)
    yield from _base64_forms_of(secret)


def _json_forms(secret: str) -> Iterator[str]:
    """The secret as the usual JSON encoders write it, and also encoded twice, as JSON inside a JSON text.

    Some encoders escape `/` (PHP) or `<>&` (Go).
    """
    for is_ascii in (True, False):
        form = json.dumps(secret, ensure_ascii=is_ascii)[1:-1]
        yield form
        yield form.replace("/", "\\/")
        yield re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", form)
        yield re.sub(r"\\u[0-9a-f]{4}", lambda escape: "\\u" + escape[0][2:].upper(), form)
        yield json.dumps(form, ensure_ascii=is_ascii)[1:-1]


def _url_forms(secret: str) -> Iterator[str]:
    raw = _utf8(secret)
    for kept in _KEPT_IN_URLS:
        quoted = "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in raw)
        for form in (quoted, re.sub("%..", lambda escape: escape[0].lower(), quoted)):
            yield form
            yield form.replace("%20", "+")


def _base64_forms_of(secret: str) -> Iterator[str]:
    for form in _base64_forms(_utf8(secret)):
        yield form
        yield form.translate(_URL_SAFE)


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Base64 of the secret alone, and inside a longer text (`user:secret`).

    Three bytes make four characters, so there are three alignments; characters that also depend on a neighbour
    are left out. Only 12 characters and more are kept: fewer occur by accident.
    """
    whole = binascii.b2a_base64(raw, newline=False).decode()
    yield whole
    yield whole.rstrip("=")
    for before in range(3):
        text = binascii.b2a_base64(bytes(before) + raw, newline=False).decode()
        inside = text[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        if len(inside) >= 12:
            yield inside


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as the environment spells bytes that are no UTF-8
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _mark_shape(match: re.Match[str]) -> str:
    if match["password"] is None:
        return MARK
    before = match.start("password") - match.start()
    return f"{match[0][:before]}{MARK}@"
