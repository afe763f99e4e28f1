"""Decodes the bytes of a prompt. Refuses bytes that are not UTF-8, and NUL bytes, which do not occur in text."""

from __future__ import annotations

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")

_UTF_16 = "this looks like UTF-16, which `iconv -f UTF-16 -t UTF-8` converts"
_BINARY = "this looks like binary data; let the text name the file that holds it"
_OTHER = "for text in Latin-1, `iconv -f LATIN1 -t UTF-8` converts it"


def prompt_text(data: bytes) -> str:
    """The bytes as text, without a byte order mark. Raises ValueError, before whose text the caller puts the source's name."""
    refuse_binary(data)
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(_refusal(data, error.start, _OTHER)) from None


def refuse_binary(data: bytes) -> None:
    """Raises the error of `prompt_text` if the bytes are UTF-16 or contain NUL, so that no part of them is text."""
    if data.startswith(_UTF_16_MARKS):
        raise ValueError(_refusal(data, 0, _UTF_16))
    first_nul = data.find(b"\0")
    if first_nul >= 0:
        raise ValueError(_refusal(data, first_nul, _BINARY))


def argument_text(argument: str) -> str:
    """The prompt in a command-line argument. Raises the errors of `prompt_text`."""
    # Python decodes bytes of an argument that are not UTF-8 as lone surrogates.
    return prompt_text(argument.encode("utf-8", "surrogateescape"))


def _refusal(data: bytes, index: int, advice: str) -> str:
    line = data.count(b"\n", 0, index) + 1
    return f"is not UTF-8 text: byte {index + 1:,} (0x{data[index]:02x}, in line {line:,}); {advice}"
