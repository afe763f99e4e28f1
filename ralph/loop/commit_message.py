"""Makes the message of a commit of `ralph loop --commit`. The subject is the first sentence of the model's closing
words. The body and the trailers are ralph's own. No I/O happens here.

The model's words can add no second line, no trailer and no instruction for another program.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from ralph.values.screen_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.values.outcome import Outcome

LONGEST_SUBJECT = 72  # git's own convention: longer lines are cut by many tools that show a log
_LONGEST_WORDS = 20_000
_LONGEST_LINE = 1000
"""Only this many characters of the closing words, and of each line and sentence in them, are read."""

_FENCE = re.compile(r"^ *(```|~~~).*?(?:^ *\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_HTML_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r"#{1,6}\s(?P<text>.*)")
_ONLY_BOLD = re.compile(r"(\*\*|__)[^*_]+\1:?")
_ITEM = re.compile(r"(?:>\s*)*(?:[-*+\u2022]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_QUOTE = re.compile(r"(?:>\s*)+")
_RULE_OR_TABLE = re.compile(r"[-=*_~ ]{3,}|\|.*")
_JSON = re.compile(r"\s*(?:\{|\[\s*[\[{\"])")
_INLINE = re.compile(
    r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)"
    r"|!?\[(?P<label>[^\]\[]*)\]\([^()\s]*(?:\s[^()]*)?\)"
    r"|(?P<strong>\*\*\*?|~~)(?P<loud>\S(?:.*?\S)?)(?P=strong)"
    # One star between letters is a product, and stars beside a slash or before a dot with a letter are patterns of
    # file names. Underscores around one word in lower case are a name, such as __init__.
    r"|(?<![\w/*.])\*(?P<starred>[^\s*](?:[^*]*[^\s*])?)\*(?![\w*/]|\.\w)"
    r"|(?<!\w)(?P<under>__(?![a-z0-9_]+__)|_)(?P<lined>[^\s_](?:.*?[^\s_])?)(?P=under)(?!\w)"
)
_HTML_TAG = re.compile(
    r"</?(?:b|i|u|em|strong|code|br|p|div|span|h[1-6]|summary|details|sub|sup|kbd)\s*/?>", re.IGNORECASE
)
# `git rebase --autosquash` and services that build commits follow these.
_INSTRUCTION = re.compile(
    r"(?i)^(?:(?:fixup|squash|amend)!\s*)+|\[[^\]]*\bskip\b[^\]]*\]|\[no[ -]ci\]|\*\*\*no_ci\*\*\*"
)
# No subject begins with a dash, which is an option, nor with a number sign, which is a comment when git's editor opens
# the message.
_BEFORE_WORDS = re.compile(r"^[^\w\"'($./~<@\[]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+|(?<=[\u3002\uff01\uff1f])")
_ABBREVIATION = re.compile(r"(?i)(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|incl|resp|no)|^\d+|\b[A-Z])\.$")
# Sentences that say only that the work is over.
_IT = r"(?:it|this|that|everything|all|the (?:task|work|job|iteration|change|changes|implementation|fix))"
_DONE = r"(?:done|complete|completed|finished|ready|set|good|implemented|in place|committed)"
_SAYS_NOTHING = re.compile(
    rf"(?i)(?:(?:and |now |ok(?:ay)?,? |great,? |perfect,? )*)(?:"
    rf"(?:that's|it's|{_IT})(?:(?: is| are| has been| have been|'s)?(?: now| all| fully| successfully)* {_DONE})"
    rf"|(?:all|now|successfully) {_DONE}"
    r"|(?:i|i've|i have|we|we've)(?: have)?(?: now| successfully)* (?:completed|finished|done|implemented) "
    r"(?:the|this|your|all(?: of)?(?: the)?) (?:task|tasks|work|job|iteration|request|changes|steps)s?"
    r"|(?:here(?:'s| is| are)|below is) (?:a|the|my|what)\b.*"
    r"|(?:in )?(?:short|summary|conclusion|brief)|(?:final )?(?:summary|result|results|report|status|changes)"
    r"|no further (?:work|changes|action)(?: is| are)?(?: needed| required)?|let me know.*"
    rf"|mission accomplished|task {_DONE}|status: {_DONE}"
    r")(?: successfully| now| here)?"
)


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
    """The first sentence of the closing words that says something, as one line of at most `LONGEST_SUBJECT`
    characters without Markdown. Headings count only if no other text says something. Empty if nothing is left.
    """
    text = closing_words[:_LONGEST_WORDS].encode("utf-8", "replace").decode()
    if _JSON.match(text):
        return ""
    text = redact(visible(text).replace("\t", " "))
    text = _FENCE.sub("\n", _HTML_COMMENT.sub(" ", text))
    paragraphs, headings = _paragraphs(text)
    sentences = (sentence for paragraph in paragraphs for sentence in _sentences(paragraph))
    return next(filter(None, (_subject(one, redact) for one in chain(sentences, headings))), "")


def _paragraphs(text: str) -> tuple[list[str], list[str]]:
    """The paragraphs and list items of a Markdown text, each as one line, and its headings. Both are without their marks."""
    paragraphs: list[list[str]] = [[]]
    headings: list[str] = []
    for line in (line[:_LONGEST_LINE].strip() for line in text.split("\n")):
        heading, item = _HEADING.fullmatch(line), _ITEM.match(line)
        is_title = heading is not None or _ONLY_BOLD.fullmatch(line) is not None
        is_words = bool(line) and not is_title and not _RULE_OR_TABLE.fullmatch(line)
        if is_title:
            headings.append(heading["text"].strip("# ") if heading else line)
        if item or not is_words:
            paragraphs.append([])
        if is_words:
            mark = item or _QUOTE.match(line)
            paragraphs[-1].append(line[mark.end() if mark else 0 :])
    return [" ".join(lines) for lines in paragraphs if lines], headings


def _sentences(paragraph: str) -> Iterator[str]:
    begin = 0
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[begin : end.start()].rstrip("\"')]")):
            yield paragraph[begin : end.start()]
            begin = end.end()
    yield paragraph[begin:]


def _subject(sentence: str, redact: Callable[[str], str]) -> str:
    """The sentence as a subject. Empty if it says nothing, or if it only introduces what follows."""
    plain = " ".join(
        _INSTRUCTION.sub(" ", _HTML_TAG.sub(" ", _without_markup(sentence[:_LONGEST_LINE].strip()))).split()
    )
    # Only once the markup is gone, a credential may be in one piece, or an instruction at the beginning.
    plain = redact(_BEFORE_WORDS.sub("", plain))
    plain = _BEFORE_WORDS.sub("", _INSTRUCTION.sub("", plain)).rstrip(" .!;,\u3002\uff01")
    is_too_short = plain.isascii() and len(plain.split()) < 2
    if plain.endswith((":", "\uff1a")) or is_too_short or _SAYS_NOTHING.fullmatch(plain):
        return ""
    line = plain[:1].upper() + plain[1:] if plain[:1].islower() and plain.split()[0].isalpha() else plain
    if len(line) <= LONGEST_SUBJECT:
        return line
    cut = line[: LONGEST_SUBJECT - 1]
    at_word = cut.rpartition(" ")[0] if line[LONGEST_SUBJECT - 1] != " " else cut
    return (at_word if 2 * len(at_word) > LONGEST_SUBJECT else cut).rstrip(" ,;:.") + "\u2026"


def _without_markup(text: str) -> str:
    def inner(found: re.Match[str]) -> str:
        if found["code"] is not None:
            return found["code"].strip()
        return _without_markup(found["label"] or found["loud"] or found["starred"] or found["lined"] or "")

    return _INLINE.sub(inner, text)
