"""Makes the copy of a configuration file that holds no credentials: what looks like one, by its name or its form, is cut. No
I/O happens here.

What it does not understand, it cuts. XML is read as a tree, everything else line by line: `key = value`, `key: value` and
`key value`, in sections or without.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.values.credentials import looks_like_credential_name
from ralph.values.redaction import MARK, Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

# npm: `//host/:_authToken`. Git: `http.extraHeader`. Many tools: `password`, `npmAuthIdent`, `repository-token`.
_SECRET_KEY = re.compile(
    r"auth(?!or)|token|pass(?!ive)|pwd?\b|pw$|secret|credential|cookie|extraheader|(?:api|access|private)[-_.]?key",
    re.IGNORECASE,
)
_KEY = re.compile(r"""[#;!\s-]*(?:export\s+)?["']?(?P<key>[^=\s"']+?)["']?\s*(?:[=\s]|:\s|:$|$)""")
_SECTION = re.compile(r"\s*[#;]*\s*\[")
_QUOTES = re.compile(r'"""|\'\'\'')
# Names are free in these files, so only known ones are kept. Gradle, Kotlin and Android documentation; MIRRORS of Maven.
_KEPT = {
    "gradle.properties": re.compile(
        r"(?:org\.gradle|kotlin|android|ksp)\.(?!.*(?:pass|token|key|secret))|systemProp\.https?\.(?:proxy(?:Host|Port)|nonProxyHosts)\b"
    )
}
_SECRET_ELEMENTS = frozenset(("servers", "packagesourcecredentials", "apikeys", "username"))


def without_credentials(name: str, text: str) -> str:
    """The text of a file without credentials. Equal to `text` if it holds none. `name` is the file's name, which says its
    format.
    """
    if name.endswith((".xml", ".Config", ".config")) or text.lstrip("\ufeff \t\r\n").startswith("<"):
        return _without_secret_elements(text)
    # A key in PEM has many lines. Redacted, it is a part of one.
    return "".join(_kept_lines(Redactor().redact_all(text).splitlines(keepends=True), _KEPT.get(name)))


def _kept_lines(lines: list[str], known: re.Pattern[str] | None) -> Iterator[str]:
    cut_indent: int | None = None
    """The indentation of the last line if it was cut: deeper lines belong to it."""
    quotes, is_continued, is_section_cut = "", False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        belongs = is_continued or quotes or (cut_indent is not None and indent > cut_indent and line.strip())
        if _SECTION.match(line) and not belongs:
            # A section with a credential in its name, such as git's `[url "https://TOKEN@host/"]`, goes as a whole.
            is_section_cut = MARK in line
        is_cut = bool(belongs) or is_section_cut or _is_secret(line, known)
        if not is_cut:
            cut_indent = None
            yield line
            continue
        if not belongs:
            cut_indent = indent
        is_continued = line.rstrip("\r\n").endswith("\\")
        for mark in _QUOTES.findall(line):
            quotes = "" if quotes == mark else quotes or mark


def _is_secret(line: str, known: re.Pattern[str] | None) -> bool:
    if not line.strip() or _SECTION.match(line):
        return MARK in line
    found = _KEY.match(line)
    key = "" if found is None else found["key"]
    if known is not None and not line.lstrip().startswith(("#", "!")) and not known.match(key):
        return True
    return (
        _SECRET_KEY.search(key) is not None
        or looks_like_credential_name(key)
        or looks_like_credential_name(key.rpartition(".")[2])
        or MARK in line
    )


def _has_secret_value(text: str) -> bool:
    return Redactor().redact_all(text) != text


def _without_secret_elements(text: str) -> str:
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - few homes have such a file; it is the user's own

    try:
        top = ET.fromstring(text)  # noqa: S314 - the user's own file
    except (ET.ParseError, ValueError):
        return ""
    if not _cut_elements(top) and not ("<!--" in text and _has_secret_comment(text)):
        return text
    return ET.tostring(top, encoding="unicode")


def _has_secret_comment(text: str) -> bool:
    return any(
        _SECRET_KEY.search(comment) or _has_secret_value(comment)
        for comment in re.findall(r"(?s)<!--(.*?)-->", text)
    )


def _cut_elements(above: Element) -> bool:
    """Cuts the secret elements below one, and the names of namespaces, which not each reader understands. Returns whether
    there were any secrets. The parser has left out comments already.
    """
    is_cut = False
    above.tag = _plain(above)
    for element in list(above):
        if _is_secret_element(element) or any(
            _plain(one) == "url" and _is_secret_element(one) for one in element
        ):
            above.remove(element)
            is_cut = True
        else:
            is_cut = _cut_elements(element) or is_cut
    return is_cut


def _is_secret_element(element: Element) -> bool:
    names = (_plain(element), element.get("key", ""))
    return (
        names[0].lower() in _SECRET_ELEMENTS
        or any(_SECRET_KEY.search(one) or looks_like_credential_name(one) for one in names)
        or any(map(_has_secret_value, (element.text or "", element.tail or "", *element.attrib.values())))
    )


def _plain(element: Element) -> str:
    return element.tag.rpartition("}")[2]
