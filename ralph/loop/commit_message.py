"""Makes the message of a commit of `ralph loop --commit`. The subject is the first sentence of the model's closing
words. The body and the trailers are ralph's own. No I/O happens here.

The model's words can add no second line, no trailer and no instruction for another program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.values.screen_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.values.outcome import Outcome

LONGEST_SUBJECT = 72  # git's own convention: longer lines are cut by many tools that show a log
_LONGEST_WORDS = 20_000
"""Only this many characters of the closing words are read."""

_FENCE = re.compile(r"^ *(```|~~~).*?(?:^ *\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"[*`~|]+|<[^>\n]*>|(?m:^[ \t]*(?:[#>-]+|\d+[.)])(?=\s))")
_PARAGRAPH_END = re.compile(r"\n(?:[ \t]*\n|(?=[ \t]*(?:[#>*+-]|\d+[.)])))")
# `git rebase --autosquash` and services that build commits follow these.
_INSTRUCTION = re.compile(
    r"(?i)^(?:(?:fixup|squash|amend)!\s*)+|\[[^\]]*\bskip\b[^\]]*\]|\[no[ -]ci\]|\*\*\*no_ci\*\*\*"
)
# No subject begins with a dash, which is an option, nor with a number sign, which is a comment when git's editor opens
# the message.
_BEFORE_WORDS = re.compile(r"^[^\w\"'($./~<@\[]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")


def commit_message(
    number: int,
    session_id: str,
    outcome: Outcome,
    closing_words: str,
    *,
    cost_usd: float | None,
    redact: Callable[[str], str],
) -> str:
    """The message of the commit with what iteration `number` left uncommitted. `cost_usd` is the iteration's cost in
    US dollars; if it is unknown, the message has no trailer with a cost. `redact` replaces credentials.
    """
    name = f"ralph loop: iteration {number}"
    subject = subject_of(closing_words, redact)
    body = f"What the iteration left uncommitted ({outcome.value})."
    trailers = [f"Ralph-Session: {session_id}"]
    if cost_usd is not None:
        trailers.append(f"Ralph-Cost: ${cost_usd:.4f}")
    head = f"{subject}\n\n{name}\n{body}" if subject else f"{name}\n\n{body}"
    return f"{head}\n\n" + "\n".join(trailers)


def subject_of(closing_words: str, redact: Callable[[str], str]) -> str:
    """The first sentence of the closing words with more than two words, as one line of at most `LONGEST_SUBJECT`
    characters without Markdown. Empty if there is none.
    """
    text = closing_words[:_LONGEST_WORDS].encode("utf-8", "replace").decode()
    text = _FENCE.sub("\n\n", redact(visible(text).replace("\t", " ")))
    sentences = (
        one
        for paragraph in _PARAGRAPH_END.split(text)
        for one in _SENTENCE_END.split(" ".join(_INSTRUCTION.sub(" ", _MARKUP.sub("", paragraph)).split()))
    )
    return next(filter(None, (_subject(one, redact) for one in sentences)), "")


def _subject(sentence: str, redact: Callable[[str], str]) -> str:
    """The sentence as a subject. Empty if it is shorter, or if it only introduces what follows."""
    # Only once the markup is gone, a credential may be in one piece, or an instruction at the beginning.
    plain = redact(_BEFORE_WORDS.sub("", sentence))
    plain = _BEFORE_WORDS.sub("", _INSTRUCTION.sub("", plain)).rstrip(" .!;,\u3002\uff01")
    if plain.endswith((":", "\uff1a")) or (plain.isascii() and len(plain.split()) < 3):
        return ""
    return plain if len(plain) <= LONGEST_SUBJECT else plain[: LONGEST_SUBJECT - 1].rstrip(" ,;:.") + "\u2026"
