"""Removes secrets from text before ralph shows or stores the text.

`Redactor.redact` removes known secrets, which `credentials.known_secrets` finds. `Redactor.redact_all` also removes
everything that looks like a secret. `shown` and `redacted` remove secrets from a JSON object, one string at a time, so
that the object remains valid JSON.

`shown` does not change file contents in the calls and results of Read, Edit and Write. Otherwise a later edit might not
match the file. The output of the other tools was redacted earlier.
"""

from __future__ import annotations

import binascii
import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ralph.values.credentials import credential_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


MARK = "[redacted]"
# In an http or https URL, a user name without a password may be a token. In other schemes it is an ordinary name:
# ssh://git@host, postgres://me@localhost.
_USER_IN_URL = r"(?i)\b(https?://)(?!\[redacted\]@)[^\s/?#:@'\"<>]+:?@"
_UNRESERVED = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
)  # RFC 3986, 2.3
# The characters that URL encoders do not escape, one set per encoder: RFC 3986, Python's `quote`, JavaScript's
# encodeURIComponent, JavaScript's encodeURI, HTML forms.
_KEPT_IN_URLS = (
    _UNRESERVED,
    _UNRESERVED | frozenset(b"/"),
    _UNRESERVED | frozenset(b"!'()*"),
    _UNRESERVED | frozenset(b"!'()*;,/?:@&=+$#"),
    (_UNRESERVED - frozenset(b"~")) | frozenset(b"*"),
)
_PLAIN_EVERYWHERE = r"[A-Za-z0-9._-]+"
"""Characters that stay the same in JSON and in URLs. Most keys consist of these characters only."""
_URL_SAFE = str.maketrans("+/", "-_")
_SHORTEST_BASE64_LINE = 64
"""The shortest line length of base64 text with line breaks. PEM has lines of 64 characters (RFC 7468). MIME and the
`base64` command have lines of 76 characters."""
_LEAST_WRAPPED = 24
"""The minimum length of a base64 form that is searched for across line breaks. A shorter form could occur by
accident."""
_BREAK = r"(?:\r?\n[ \t]{0,8}|\\r\\n|\\n)?"
_LONGEST_BREAK_BYTES = 10


class Redactor:
    """Finds and removes secrets in their plain form and in encoded forms.

    The encoded forms are JSON strings, percent-encoded URLs, and base64 with or without line breaks. Secrets are
    replaced by `[redacted]`. If a secret is itself a part of this text, it is ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secret for secret in secrets if secret and secret not in MARK)

    def redact(self, text: str) -> str:
        """The text with every known secret replaced by `MARK`. A text without secrets is returned unchanged."""
        # A plain search takes a tenth of the time of the regular expression, and most texts contain no secret.
        if ("\n" in text or "\\n" in text) and _holds_any(_joined(text), self._wrapped_forms):
            text = self._wrapped_pattern.sub(MARK, text)
        if not _holds_any(text, self._forms):
            return text
        redacted = self._text_pattern.sub(MARK, text)
        while self._may_rejoin and self._text_pattern.search(redacted):
            # The text becomes shorter each time, so the loop ends.
            redacted = self._text_pattern.sub("", redacted)
        return redacted

    def redact_all(self, text: str) -> str:
        """The text with `MARK` in place of known secrets and of everything that looks like a credential.

        This method is for error messages and similar texts. It sometimes replaces harmless text too, so it is not
        used for tool results.
        """
        redacted = self.redact(text)
        redacted = credential_shapes(redacted).sub(_mark_shape, redacted)
        return re.sub(_USER_IN_URL, rf"\1{MARK}@", redacted)

    @cached_property
    def longest_bytes(self) -> int:
        """The length in UTF-8 bytes of the longest form that a secret may have in a text. 0 if there are no secrets.

        A secret may begin in one piece of a stream and end in the next piece. So if a caller redacts a stream piece
        by piece, it must keep back the end of each piece. The length of this end is `longest_bytes` minus one byte.
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
        """The base64 forms of secrets that are long enough to be searched for across line breaks."""
        forms = {form for secret in self._secrets for form in _base64_forms_of(secret)}
        return sorted(
            (form for form in forms if len(form) >= _LEAST_WRAPPED), key=lambda form: (-len(form), form)
        )

    @cached_property
    def _wrapped_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(_BREAK.join(map(re.escape, form)) for form in self._wrapped_forms))

    @cached_property
    def _may_rejoin(self) -> bool:
        """Whether `MARK` and the text beside it can together form a secret. `MARK` begins and ends with a bracket. So
        this is possible only if a form of a secret contains a bracket.
        """
        return any("[" in form or "]" in form for form in self._forms)


def _joined(text: str) -> str:
    """The text without white space. Line breaks that are written as JSON escapes are removed too."""
    if "\\n" in text:
        text = text.replace("\\r", "").replace("\\n", "")
    return "".join(text.split())


def _holds_any(text: str, forms: Iterable[str]) -> bool:
    for form in forms:  # noqa: SIM110 - a generator would cost more than the search
        if form in text:
            return True
    return False


def _forms_of(secret: str) -> Iterator[str]:
    yield secret
    if not re.fullmatch(_PLAIN_EVERYWHERE, secret):
        yield from _json_forms(secret)
        yield from _url_forms(secret)
    yield from _base64_forms_of(secret)


def _json_forms(secret: str) -> Iterator[str]:
    """Yields the forms that the secret has inside a JSON string, and inside JSON that was encoded twice. Common
    encoders produce different forms: some also escape `/` (PHP) or `<>&` (Go).
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
    """Yields the base64 forms of the secret, both alone and inside a longer text such as `user:secret`.

    Base64 turns three bytes into four characters, so a secret inside a longer text has three possible alignments. If
    the characters at the edges also depend on neighbouring bytes, they are left out. Forms of fewer than 12
    characters are left out, because they could occur by accident.
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
        # Python decodes bytes of environment variables that are not UTF-8 in this way.
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _mark_shape(match: re.Match[str]) -> str:
    if match.groupdict().get("password") is None:
        return MARK
    before = match.start("password") - match.start()
    return f"{match[0][:before]}{MARK}@"


# A tuple, because `list | tuple` would be made anew for each value.
_LISTS = (list, tuple)

_FILE_TOOLS = frozenset({"Read", "Edit", "Write"})

# Keys whose values are ralph's own and are read by programs.
_OWN_KEYS = frozenset({"type", "subtype", "terminal_reason", "uuid", "session_id"})

# No value below these keys is ralph's own, whatever the key is called.
_OTHERS_OBJECTS = frozenset({"input", "structured_output"})


def shown(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value in which `redact` is applied to the strings. Three kinds of strings are not changed:
    values of the keys in `_OWN_KEYS`, arguments of the file tools, and contents of tool results.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _LISTS):
        return [shown(item, redact) for item in value]
    if not isinstance(value, dict):
        return value
    kept = _OWN_KEYS
    if value.get("type") == "tool_use" and value.get("name") in _FILE_TOOLS:
        kept = kept | {"input"}
    elif value.get("type") == "tool_result":
        kept = kept | {"content"}
    return {
        name: item if name in kept else (redacted if name in _OTHERS_OBJECTS else shown)(item, redact)
        for name, item in value.items()
    }


def redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value in which `redact` is applied to every string. The keys of objects are not changed."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _LISTS):
        return [redacted(item, redact) for item in value]
    if isinstance(value, dict):
        return {name: redacted(item, redact) for name, item in value.items()}
    return value
