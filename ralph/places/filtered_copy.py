"""Makes the copy of a configuration file that holds no credentials: what looks like one, by its name or its form, is cut. No
I/O happens here.

TOML, XML and git's configuration are parsed, and a copy of them has no comments. Other formats are judged line by line. What
cannot be understood counts as a file of credentials, and its copy is empty.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

from ralph.places.git_config import UNREADABLE, plain_value, raw_settings, text_of
from ralph.values.credentials import looks_like_credential_name
from ralph.values.redaction import MARK, Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

# npm: `//host/:_authToken`. Git: `http.extraHeader`. Poetry: `http-basic`. SonarQube: `sonar.login`, which may be a token. Many
# tools: `password`, `npmAuthIdent`, `repository-token`.
_SECRET_NAME = re.compile(
    r"auth(?!or(?!i[sz]))|token|pass(?!ive)|pwd?\b|pw$|secret|credential|cookie|extraheader|http-basic|sonar\.login|\botp\b"
    r"|(?:api|access|private)[-_.]?key|personal[-_.]?access",
    re.IGNORECASE,
)
_NAMED = re.compile(r"""([\w$.:/@%+-]{1,200})["']?\s*(?:=|:(?!/))""")
_COMMENT = re.compile(r"(?m)(?:^|\s)[#;!]\s*([\w-]+)\s+\S+[ \t]*$")
# A user with a password, in a URL (git allows quotes there) and without a scheme; tokens in the paths of Anaconda and
# Cloudsmith (their documentation), and in queries; words of Gradle's scripts; passwords for sshpass(1) and curl(1).
_FORM = re.compile(
    r"""://[^\s/:@]+:[^\s/]+@"""
    r"""|(?<![\w./@+-])[^\s:/@'"=]{1,200}:(?!//)[^\s@'"/]{1,200}@[a-z]"""
    r"""|(?<![\w./@+-])[^\s:/@'"=]{8,200}@[\w.-]{1,200}:\d"""
    r"""|://\S{1,200}?/(?:t|auth)/[^/\s'"]{4}|://dl\.cloudsmith\.io/(?!public/|basic/)|[?&](?:sig|signature|key|code)=[^&\s'"]"""
    r"""|(?:pass(?:word|wd|phrase)|token|secret|apikey)[\s(]\s*['"]\S"""
    r"""|--(?:pass(?:word|wd|phrase)?|token|secret|api-?key|auth)["',=\s]+[^\s"',=-]"""
    r"""|\bsshpass\b|--oauth2-bearer\b|(?:^|[\s'"])(?:-u|--user[=\s])[=\s]*[^\s:-][^\s:]*:""",
    re.IGNORECASE,
)
# Names are free in these files, so only known ones are kept. Gradle, Kotlin and Android documentation; MIRRORS of Maven.
_KEPT = {
    "gradle.properties": re.compile(
        r"(?:org\.gradle|kotlin|android|ksp)\.|systemProp\.https?\.(?:proxy(?:Host|Port)|nonProxyHosts)\b"
    )
}
_BY_LINES = re.compile(r".*(?:rc|\.conf|\.properties|\.ya?ml|env)", re.DOTALL)
_YAML = re.compile(r".*(?:\.ya?ml|condarc)", re.DOTALL)
_FIRST = re.compile(
    r"""[#;!\s-]*(?:export\s+)?["']?(?P<key>[^=\s"']+?)["']?(?:\s*=|\s*:(?=\s|$)|\s+(?=\S))\s*(?P<more>\S?)"""
)
_GOES_ON = re.compile(
    r"\\$|<<|[:=]\s*[&*]"
)  # a line joined to the next, a here-document, an anchor or alias of YAML
_SECRET_ELEMENTS = frozenset(("servers", "packagesourcecredentials", "apikeys", "username"))
_NAMES_OF_ELEMENTS = ("name", "key", "id")


def without_credentials(name: str, text: str) -> str:
    """`text` without credentials: as it is if it holds none, and empty if it cannot be understood. `name` says its format."""
    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        return text
    if name.endswith((".xml", ".Config", ".config")) or start.startswith("<"):
        return _without_secret_elements(text)
    if _BY_LINES.fullmatch(name):
        copy = _without_secret_lines(name, text)
    else:
        copy = _without_secret_settings(name, text)
    return "" if _holds_secret(copy) else copy


def _holds_secret(text: str) -> bool:
    return (
        any(map(_is_secret_name, _NAMED.findall(text)))
        or any(map(_SECRET_NAME.match, _COMMENT.findall(text)))
        or _FORM.search(text) is not None
        or MARK in text
        or Redactor().redact_all(text) != text
    )


def _is_secret_name(name: str) -> bool:
    return (
        _SECRET_NAME.search(name) is not None
        or looks_like_credential_name(name)
        or looks_like_credential_name(name.rpartition(".")[2])
    )


# --- TOML and git's configuration


def _without_secret_settings(name: str, text: str) -> str:
    settings = list(raw_settings(text.encode("utf-8", "surrogateescape")))
    if name.endswith(".toml") or any(one == UNREADABLE for one, _ in settings):
        # Git's configuration also names files of other formats, such as lists of patterns.
        is_toml = name.endswith((".toml", "config"))
        return _without_secret_tables(text) if is_toml else _without_secret_lines(name, text)
    kept = [(one, raw) for one, raw in settings if not _is_secret_setting(one, raw)]
    copy = text_of(kept)
    return copy if len(kept) < len(settings) or _holds_secret(text) else text


def _without_secret_tables(text: str) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ""
    kept = _kept_values(found)
    copy = "".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in kept.items())
    return copy if kept != found or _holds_secret(text) else text


def _is_secret_setting(name: str, raw: str) -> bool:
    section, _, key = name.rpartition(".")
    part = section.partition(".")[2]
    return _is_secret_name(key) or _holds_secret(part) or _holds_secret(plain_value(raw))


def _kept_values(value: Any) -> Any:
    """The tables and arrays of a TOML file without secret ones and without secret strings."""
    if isinstance(value, dict) and value.get("redact") is True:  # mise
        return None
    if isinstance(value, dict):
        kept = {key: _kept_values(one) for key, one in value.items() if not _is_secret_name(key)}
        return {key: one for key, one in kept.items() if one is not None and not _holds_secret(key)}
    if isinstance(value, list):
        return [one for one in map(_kept_values, value) if one is not None]
    return None if isinstance(value, str) and _holds_secret(value) else value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml(key)} = {_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool | float) else str(value)


# --- Lines: `key = value`, `key: value` and `key value`, in sections or without


def _without_secret_lines(name: str, text: str) -> str:
    # A key in PEM has many lines. Redacted, it is a part of one.
    lines = Redactor().redact_all(text).splitlines(keepends=True)
    copy = "".join(_kept_lines(lines, _KEPT.get(name)))
    # What a bracket of YAML opens may continue on any line.
    is_open = _YAML.fullmatch(name) and any(
        line.count(opening) != line.count(closing) for line in lines for opening, closing in ("{}", "[]")
    )
    return "" if is_open and _holds_secret(text) else copy


def _kept_lines(lines: list[str], known: re.Pattern[str] | None) -> Iterator[str]:
    cut_indent: int | None = None
    """The indentation of the last line if it was cut: deeper lines belong to it."""
    is_continued, is_section_cut = False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        belongs = is_continued or (cut_indent is not None and indent > cut_indent and line.strip())
        if line.lstrip("#; \t").startswith("[") and not belongs:
            is_section_cut = _holds_secret(line)
        if not (belongs or is_section_cut or _is_secret_line(line, known)):
            cut_indent = None if line.strip() else cut_indent
            yield line
            continue
        if not belongs:
            cut_indent = indent
        if _GOES_ON.search(line) or any(line.count(quote) % 2 for quote in "\"'"):
            return  # nobody knows where its value ends
        found = _FIRST.match(line)
        is_continued = not belongs and found is not None and not found["more"]


def _is_secret_line(line: str, known: re.Pattern[str] | None) -> bool:
    found = _FIRST.match(line)
    key = "" if found is None else found["key"]
    is_setting = key and not line.lstrip().startswith(("#", ";", "!"))
    if known is not None and not line.lstrip().startswith(("#", "!")) and not known.match(line.strip()):
        return bool(line.strip())
    return (bool(is_setting) and _is_secret_name(key)) or _holds_secret(line)


# --- XML


def _without_secret_elements(text: str) -> str:
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - few homes have such a file; it is the user's own

    if re.search(r"<!(?:DOCTYPE|ENTITY)|<\?(?!xml\s)", text):
        return ""
    try:
        top = ET.fromstring(text)  # noqa: S314 - without a document type, nothing can be expanded
    except (ET.ParseError, ValueError):
        return ""
    if not _cut_elements(top) and not any(map(_is_secret_comment, re.findall(r"(?s)<!--(.*?)-->", text))):
        return text
    return ET.tostring(top, encoding="unicode")


def _is_secret_comment(comment: str) -> bool:
    return _SECRET_NAME.search(comment) is not None or _holds_secret(comment)


def _cut_elements(above: Element) -> bool:
    """Cuts the secret elements below one, and names of namespaces, which not each reader understands. Returns whether there were
    secrets. The parser has left out comments already.
    """
    is_cut = False
    above.tag = _plain(above)
    for element in list(above):
        if _is_secret_element(element) or any(map(_is_secret_part, element)):
            above.remove(element)
            is_cut = True
        else:
            is_cut = _cut_elements(element) or is_cut
    return is_cut


def _is_secret_element(element: Element) -> bool:
    names = (_plain(element), *(element.get(name, "") for name in _NAMES_OF_ELEMENTS))
    return (
        names[0].lower() in _SECRET_ELEMENTS
        or any(map(_is_secret_name, (*names, *element.attrib)))
        or any(map(_holds_secret, (element.text or "", element.tail or "", *element.attrib.values())))
    )


def _is_secret_part(element: Element) -> bool:
    """Whether an element makes the one around it a secret, as a URL does, or the name beside a value."""
    name = _plain(element)
    return (name == "url" and _is_secret_element(element)) or (
        name in _NAMES_OF_ELEMENTS and _is_secret_name((element.text or "").strip())
    )


def _plain(element: Element) -> str:
    return element.tag.rpartition("}")[2]
