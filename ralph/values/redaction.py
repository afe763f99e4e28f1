"""Removes secrets from text before ralph shows or stores the text.

`Redactor.redact` removes known secrets, which `credentials.known_secrets` finds. `Redactor.redact_all` also removes
everything that looks like a secret. `shown` and `redacted` remove secrets from a JSON object, one string at a time, so
that the object remains valid JSON.

All of them find a secret in the text as a reader sees it: characters that show nothing (`screen_text.bare`) cannot hide a
secret that would be whole on a screen or a page. So it does not matter whether a text is made visible before or after.
`Redactor.spans` says where known secrets are, for a text that is stored as it is.

`shown` does not change file contents in the calls and results of Read, Edit and Write. Otherwise a later edit might not
match the file. The output of the other tools was redacted earlier.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.values.credentials import credentials_in, known_secrets
from ralph.values.screen_text import bare, bare_parts, in_one_line, without_sequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Span = tuple[int, int]
"""The begin and the end of a part of a text, in code points."""
SpansOf = Callable[[str], Sequence[Span]]

MARK = "[redacted]"
# In an http or https URL, a user name without a password may be a token. In other schemes it is an ordinary name:
# ssh://git@host, postgres://me@localhost.
_USER_IN_URL = r"(?i)\bhttps?://(?!\[redacted\]@)([^\s/?#:@'\"<>]+:?)@"
# RFC 3986, 2.3.
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
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
"""The shortest line of base64 with line breaks: PEM has 64 characters (RFC 7468), MIME and `base64` 76."""
_LEAST_WRAPPED = 24
"""The shortest base64 form that is searched for across line breaks. A shorter one could occur by accident."""
_BREAK = r"(?:\r?\n[ \t]{0,8}|\\r\\n|\\n)?"
_LONGEST_BREAK_BYTES = 10
_SHORTEST_SHAPE = len("://:p@")
"""The length of the shortest text that looks like a credential: a password in a URL without a user."""
_CONTROLS = bytes((*range(33), 127))
_UNPRINTED = bytes((*range(33), *range(127, 256)))


class LookedCommit(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A commit that was searched for the secrets that a run's environment knew. It says where they are, but
    contains neither a secret nor a digest of one.
    """

    id: str
    files: tuple[str, ...] = ()
    """The paths of the files whose diffs hold a secret."""
    is_message_secret: bool = False
    are_names_secret: bool = False
    """True if names of files hold a secret. They are not in `files`."""


class Redactor:
    """Finds and removes secrets in their plain form and in encoded forms.

    The encoded forms are JSON strings, percent-encoded URLs, and base64 with or without line breaks. Secrets are
    replaced by `[redacted]`. If a secret is itself a part of this text, it is ignored.
    """

    def __init__(
        self, secrets: Iterable[str] = (), tell: Callable[[frozenset[str]], None] | None = None
    ) -> None:
        """`tell` gets all secrets, now and whenever more of them are learned."""
        self._secrets: frozenset[str] = frozenset()
        self._tell = tell
        self.learn(secrets)

    @property
    def secrets(self) -> frozenset[str]:
        return self._secrets

    def learn(self, secrets: Iterable[str]) -> None:
        """Finds these secrets too, from now on."""
        known = self._secrets.union(secret for secret in secrets if secret and secret not in MARK)
        # Without the forms of the secrets until now. In one step, because threads redact meanwhile.
        self.__dict__ = {"_secrets": known, "_tell": self._tell}
        if self._tell is not None:
            self._tell(known)

    def redact(self, text: str) -> str:
        """The text with every known secret replaced by `MARK`. A text without secrets is returned unchanged."""
        if not self._may_hold(text):
            return text
        redacted = self._redact_plain(text)
        seen = bare(redacted)
        if seen == redacted or self._redact_plain(seen) == seen:
            return redacted
        return cut_at(redacted, self.spans(redacted))

    def redact_all(self, text: str) -> str:
        """The text with `MARK` in place of known secrets and of everything that looks like a credential.

        For texts that are shown and for error messages. It sometimes replaces harmless text too, so it is not used
        for tool results.
        """
        redacted = self.redact(text)
        shapes = _shapes_in(redacted)
        seen = bare(redacted)
        if seen != redacted:
            shapes += _behind_hidden(redacted, _shapes_in(seen))
        return cut_at(redacted, _merged(shapes)) if shapes else redacted

    def spans(self, text: str) -> list[Span]:
        """The places of the known secrets in a text, in order and without overlaps. A text from which they are cut
        contains no known secret.
        """
        if not self._may_hold(text):
            return []
        spans = self._plain_spans(text)
        seen = bare(text)
        if seen != text:
            spans += _behind_hidden(text, self._plain_spans(seen))
        merged = _merged(spans)
        if not merged:
            return []
        rest = cut_at(text, merged)
        seen = bare(rest)
        # If `MARK` and the text around it form a secret, the whole text is one place.
        if self._redact_plain(rest) != rest or self._redact_plain(seen) != seen:
            return [(0, len(text))]
        return merged

    def secrets_in(self, text: str) -> frozenset[str]:
        """The forms of known secrets in a text, without characters that hide them. Takes less time than `spans`."""
        texts = {text, bare(text)} if self._may_hold(text) else ()
        return frozenset(one[slice(*span)] for one in texts for span in self._plain_spans(one))

    def _plain_spans(self, text: str) -> list[Span]:
        patterns = [self._text_pattern, *([self._wrapped_pattern] if self._wrapped_forms else [])]
        return [found.span() for pattern in patterns for found in pattern.finditer(text)]

    def _redact_plain(self, text: str) -> str:
        if ("\n" in text or "\\n" in text) and self._wrapped_forms:
            text = self._wrapped_pattern.sub(MARK, text)
        redacted = self._text_pattern.sub(MARK, text)
        while self._may_rejoin and self._text_pattern.search(redacted):
            # The text becomes shorter each time, so the loop ends.
            redacted = self._text_pattern.sub("", redacted)
        return redacted

    def _may_hold(self, text: str) -> bool:
        """Whether a secret may be in the text. Nearly all texts contain none, and to search them without their white
        space and control characters takes a tenth of the time of the regular expressions.
        """
        if not self._forms or len(text) < len(self._forms[-1]):
            return False
        if _holds_any(_joined(text), self._joined_forms):
            return True
        if "\\n" in text and _holds_any(
            _joined(text.replace("\\r", "").replace("\\n", "")), self._joined_forms
        ):
            return True
        if text.isascii() and "\x1b" not in text:
            return False
        seen = without_sequences(text).encode("utf-8", "surrogatepass").translate(None, _UNPRINTED)
        unbroken = seen.replace(b"\\r", b"").replace(b"\\n", b"")
        return _holds_any(seen, self._printed_forms) or (
            unbroken != seen and _holds_any(unbroken, self._printed_forms)
        )

    @cached_property
    def longest_bytes(self) -> int:
        """The length in UTF-8 bytes of the longest form that a secret may have in a text. 0 if there are no
        secrets.

        A secret may begin in one piece of a stream and end in the next. So a caller that redacts a stream in pieces
        must keep back the last `longest_bytes` - 1 bytes of each piece.
        """
        plain = max((len(_utf8(form)) for form in self._forms), default=0)
        breaks = _LONGEST_BREAK_BYTES * (1 + plain // _SHORTEST_BASE64_LINE) if self._wrapped_forms else 0
        return plain + breaks

    @cached_property
    def _forms(self) -> list[str]:
        forms = {form for secret in self._secrets for form in _forms_of(secret) if form not in MARK}
        return sorted(forms, key=lambda form: (-len(form), form))

    @cached_property
    def _joined_forms(self) -> list[bytes]:
        return [joined for form in self._forms if (joined := _joined(form))]

    @cached_property
    def _printed_forms(self) -> list[bytes]:
        return [form.translate(None, _UNPRINTED) for form in self._joined_forms]

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
        """Whether `MARK` and the text beside it can together form a secret. `MARK` begins and ends with a bracket,
        so only a secret with a bracket can.
        """
        return any("[" in form or "]" in form for form in self._forms)


def _joined(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").translate(None, _CONTROLS)


def _holds_any(text: bytes, forms: Iterable[bytes]) -> bool:
    for form in forms:  # noqa: SIM110 - a generator would cost more than the search
        if form in text:
            return True
    return False


def cut_at(text: str, spans: Iterable[Span]) -> str:
    """The text with `MARK` in place of each span. The spans are in order and do not overlap."""
    pieces, at = [], 0
    for begin, end in spans:
        pieces += [text[at:begin], MARK]
        at = end
    return "".join([*pieces, text[at:]])


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _behind_hidden(text: str, spans: Iterable[Span]) -> list[Span]:
    """The spans in the text that belong to `spans` in `bare(text)`."""
    ends = [(begin, end - 1) for begin, end in spans if begin < end]
    parts, places = bare_parts(text), dict[int, int]()
    part, length = (0, 0), 0
    for at in sorted({at for both in ends for at in both}):
        while at >= length + part[1] - part[0]:
            length += part[1] - part[0]
            part = next(parts)
        places[at] = part[0] + at - length
    return [(places[first], places[last] + 1) for first, last in ends]


def _shapes_in(text: str) -> list[Span]:
    if len(text) < _SHORTEST_SHAPE:
        return []
    spans = []
    for found in credentials_in(text):
        password = found.groupdict().get("password")
        spans.append(found.span() if password is None else found.span("password"))
    if "@" in text:
        spans += [found.span(1) for found in re.finditer(_USER_IN_URL, text)]
    return [span for span in spans if text[slice(*span)] != MARK]


def _forms_of(secret: str) -> Iterator[str]:
    yield secret
    if not re.fullmatch(_PLAIN_EVERYWHERE, secret):
        yield from _json_forms(secret)
        yield from _url_forms(secret)
    yield from _base64_forms_of(secret)


def _json_forms(secret: str) -> Iterator[str]:
    """Yields the forms that the secret has inside a JSON string, and inside JSON that was encoded twice. Common
    encoders produce different forms: some also escape `/` (PHP), `<>&` (Go), or all that HTML may read (.NET).
    """
    for is_ascii in (True, False):
        form = json.dumps(secret, ensure_ascii=is_ascii)[1:-1]
        yield form
        yield form.replace("/", "\\/")
        yield re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", form)
        upper = re.sub(r"\\u[0-9a-f]{4}", lambda escape: "\\u" + escape[0][2:].upper(), form)
        yield upper
        yield re.sub("[<>&+'`]", lambda found: f"\\u{ord(found[0]):04X}", upper.replace('\\"', "\\u0022"))
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


# A tuple, because `list | tuple` would be made anew for each value.
_LISTS = (list, tuple)

_FILE_TOOLS = frozenset({"Read", "Edit", "Write"})

# Keys whose values are ralph's own and are read by programs.
OWN_KEYS = frozenset({"type", "subtype", "terminal_reason", "uuid", "session_id"})

# No value below these keys is ralph's own, whatever the key is called.
_OTHERS_OBJECTS = frozenset({"input", "structured_output"})


def shown(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value in which `redact` is applied to the strings, and to the names of members. Three kinds of
    strings are not changed: values of the keys in `OWN_KEYS`, arguments of the file tools, and contents of tool results
    that are not errors.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _LISTS):
        return [shown(item, redact) for item in value]
    if not isinstance(value, dict):
        return value
    kept = OWN_KEYS
    if value.get("type") == "tool_use" and value.get("name") in _FILE_TOOLS:
        kept = kept | {"input"}
    elif value.get("type") == "tool_result" and not value.get("is_error"):
        kept = kept | {"content"}
    return {
        redact(name): item if name in kept else (redacted if name in _OTHERS_OBJECTS else shown)(item, redact)
        for name, item in value.items()
    }


def redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value in which `redact` is applied to every string, and to the names of members."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, _LISTS):
        return [redacted(item, redact) for item in value]
    if isinstance(value, dict):
        return {redact(name): redacted(item, redact) for name, item in value.items()}
    return value


def line_without_secrets(message: str, environment: Mapping[str, str]) -> str:
    """A message as one line, without the credentials in the environment."""
    return Redactor(known_secrets(environment)).redact_all(" ".join(in_one_line(message).split()))
