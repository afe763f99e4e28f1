"""Strategies for valid and complete streams, as the API may send them: every kind of block and delta, in every
allowed order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Event = dict[str, Any]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, json_values, max_size=3)


@dataclass
class Piece:
    """One block as it arrives: the content of its start event, and the deltas that follow."""

    opening: dict[str, Any]
    deltas: list[dict[str, Any]] = field(default_factory=list)


def whole(
    kind: str, optional: dict[str, SearchStrategy[Any]] | None = None, **fields: SearchStrategy[Any]
) -> SearchStrategy[Piece]:
    """A block without deltas."""
    required: dict[str, SearchStrategy[Any]] = {"type": st.just(kind), **fields}
    return st.fixed_dictionaries(required, optional=optional or {}).map(Piece)


def _cut(draw: DrawFn, words: str) -> list[str]:
    """Cuts the text into fragments of any length, including empty ones."""
    fragments = []
    while words:
        length = draw(st.integers(0, max(1, len(words))))
        fragments.append(words[:length])
        words = words[length:]
    return fragments


CITATIONS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("char_location"), "cited_text": texts, "document_index": st.integers(0, 3)}
        | {"document_title": st.none() | texts, "start_char_index": st.just(0), "end_char_index": st.just(1)},
        optional={"file_id": st.none() | texts, "future": json_values},
    ),
    st.fixed_dictionaries(
        {"type": st.just("web_search_result_location"), "cited_text": texts, "encrypted_index": texts}
        | {"title": st.none() | texts, "url": texts}
    ),
)


@st.composite
def text_pieces(draw: DrawFn) -> Piece:
    opening: dict[str, Any] = {"type": "text", "text": draw(st.sampled_from(["", "", "in the start"]))}
    opening |= draw(st.sampled_from([{}, {"citations": None}, {"citations": []}, {"future": {"x": [1]}}]))
    parts: list[dict[str, Any]] = [
        {"type": "text_delta", "text": part, **draw(st.sampled_from([{}, {"future": 1}]))}
        for part in _cut(draw, draw(texts))
    ]
    cited = draw(st.lists(CITATIONS, max_size=2))
    for citation in cited:
        place = draw(st.integers(0, len(parts)))
        parts.insert(place, {"type": "citations_delta", "citation": citation})
    return Piece(opening, parts)


@st.composite
def thinking_pieces(draw: DrawFn) -> Piece:
    extra = draw(st.sampled_from([{}, {"estimated_tokens": 3}]))
    parts = [{"type": "thinking_delta", "thinking": part, **extra} for part in _cut(draw, draw(texts))]
    signatures = draw(st.lists(texts, max_size=2))
    parts += [{"type": "signature_delta", "signature": signature} for signature in signatures]
    return Piece({"type": "thinking", "thinking": "", "signature": ""}, parts)


CALLERS = st.sampled_from([{"type": "direct"}, {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}])


@st.composite
def call_pieces(draw: DrawFn, start: dict[str, Any]) -> Piece:
    """A tool call whose input arrives in fragments, or not at all."""
    if start["type"] != "mcp_tool_use":
        start = start | draw(st.fixed_dictionaries({}, optional={"caller": CALLERS}))
    arguments = draw(st.none() | objects)
    raw = (
        ""
        if arguments is None
        else json.dumps(arguments, ensure_ascii=False, indent=draw(st.none() | st.just(1)))
    )
    parts = ["", *_cut(draw, raw)]
    return Piece(
        {**start, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]
    )


SEARCH_RESULTS = st.one_of(
    st.just({"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}),
    st.lists(
        st.fixed_dictionaries(
            {"type": st.just("web_search_result"), "encrypted_content": texts, "title": texts, "url": texts},
            optional={"page_age": st.none() | texts},
        ),
        max_size=2,
    ),
)
RUNS = st.fixed_dictionaries(
    {"type": st.just("code_execution_result"), "return_code": st.integers(0, 2), "stdout": texts}
    | {"stderr": texts, "content": st.just([])}
)
UNKNOWN_DELTAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["future_delta", "text_delta", "signature_delta", "citations_delta"])},
    optional={"text": texts, "signature": texts, "citation": CITATIONS, "future": json_values},
)


def _unknown_pieces() -> SearchStrategy[Piece]:
    """A block of an unknown type. Its deltas are unknown too."""
    opening = st.builds(lambda fields: {**fields, "type": "future_block"}, objects)
    return st.builds(Piece, opening, st.lists(UNKNOWN_DELTAS, max_size=2))


_calls = st.one_of(
    call_pieces({"type": "tool_use", "name": "Read"}),
    call_pieces({"type": "tool_use", "name": "Bash", "toolset_name": "t"}),
    call_pieces({"type": "server_tool_use", "name": "web_search"}),
)
pieces: SearchStrategy[Piece] = st.one_of(
    text_pieces(),
    thinking_pieces(),
    _calls,
    _calls,  # listed twice to be drawn more often, because only calls can do harm
    whole("redacted_thinking", data=texts),
    whole("web_search_tool_result", tool_use_id=texts, content=SEARCH_RESULTS, optional={"caller": CALLERS}),
    whole("code_execution_tool_result", tool_use_id=texts, content=RUNS),
    whole("container_upload", file_id=texts),
    _unknown_pieces(),
)


@st.composite
def _compaction_pieces(draw: DrawFn) -> Piece:
    opening = draw(
        st.fixed_dictionaries(
            {"type": st.just("compaction"), "content": st.none()},
            optional={"signature": texts, "tool_changes": st.just([]), "future": json_values},
        )
    )
    delta = draw(
        st.fixed_dictionaries(
            {"type": st.just("compaction_delta"), "content": st.none() | texts},
            optional={"encrypted_content": texts},
        )
    )
    return Piece(opening, draw(st.sampled_from([[], [delta]])))


# The model that a fallback names is the one that message_start named: ralph asks for no fallback, and the
# official accumulator would rename the message after it.
FALLBACK = {"from": {"model": "m-0"}, "to": {"model": "m"}, "trigger": {"type": "refusal", "category": None}}

beta_pieces: SearchStrategy[Piece] = st.one_of(
    text_pieces(),
    _compaction_pieces(),
    call_pieces({"type": "mcp_tool_use", "name": "search", "server_name": "s"}),
    whole("mcp_tool_result", tool_use_id=texts, is_error=st.booleans(), content=st.just([])),
    st.just(Piece({"type": "fallback", **FALLBACK})),
)


def _noise(draw: DrawFn, index: int | None) -> list[Event]:
    """Sometimes an event that must be ignored: a ping, an event of an unknown type, or a delta of an unknown
    type.
    """
    noise: list[Event] = [{"type": "ping"}, {"type": "future_event", "index": 0, "x": [1, {"y": None}]}]
    if index is not None:
        noise.append(
            {"type": "content_block_delta", "index": index, "delta": {"type": "future_delta", "x": 1}}
        )
    return [draw(st.sampled_from(noise))] if draw(st.integers(0, 5)) == 5 else []


def _with_id(opening: dict[str, Any], index: int) -> dict[str, Any]:
    """Adds an id to a tool call. Ids of calls are unique in an answer."""
    return {**opening, "id": f"toolu_{index}"} if opening["type"].endswith("tool_use") else opening


@st.composite
def block_events(draw: DrawFn, blocks: list[Piece]) -> list[Event]:
    """The events of the blocks, one block after the other or interleaved: block i+1 may start, continue or end
    while block i is open.
    """
    waiting = [
        [
            {"type": "content_block_start", "index": index, "content_block": _with_id(piece.opening, index)},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in piece.deltas),
            {"type": "content_block_stop", "index": index},
        ]
        for index, piece in enumerate(blocks)
    ]
    is_interleaved = draw(st.booleans())
    events: list[Event] = []
    started = 0
    while any(waiting):
        open_now = [index for index in range(started) if waiting[index]]
        startable = [started] if started < len(blocks) else []
        index = draw(st.sampled_from(open_now + startable)) if is_interleaved else (open_now or startable)[0]
        started = max(started, index + 1)
        events.append(waiting[index].pop(0))
        events += _noise(draw, index if waiting[index] else None)
    return events


def counts(least: int) -> dict[str, SearchStrategy[Any]]:
    return {
        "cache_creation_input_tokens": st.none() | st.integers(least, 99),
        "cache_read_input_tokens": st.none() | st.integers(least, 99),
        "server_tool_use": st.fixed_dictionaries(
            {"web_search_requests": st.integers(least, 3), "web_fetch_requests": st.integers(least, 3)}
        ),
        "output_tokens_details": st.fixed_dictionaries({"thinking_tokens": st.integers(least, 9)}),
    }


COUNTS = counts(0)
LATER_COUNTS = counts(1)
"""Without 0, which replaces an earlier count in the official accumulator and none in ralph's."""
CONTAINERS = st.fixed_dictionaries({"id": texts, "expires_at": st.just("2026-11-21T12:00:00Z")})
STARTS = st.fixed_dictionaries(
    {"id": texts, "type": st.just("message"), "role": st.just("assistant"), "model": st.just("m")}
    | {"content": st.just([]), "stop_reason": st.none(), "stop_sequence": st.none()}
    | {
        "usage": st.fixed_dictionaries(
            {"input_tokens": st.integers(0, 99), "output_tokens": st.integers(0, 9)},
            optional={**COUNTS, "service_tier": st.just("standard"), "future_count": json_values},
        )
    },
    optional={"container": CONTAINERS, "diagnostics": st.just({"cache_miss_reason": None})},
)
REASONS = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "a_future_reason"]
STOPS = st.one_of(
    st.fixed_dictionaries(
        {"stop_reason": st.sampled_from(REASONS), "stop_sequence": st.none() | texts},
        optional={"container": st.none() | CONTAINERS},
    ),
    st.fixed_dictionaries(
        {"stop_reason": st.just("refusal"), "stop_sequence": st.none()}
        | {
            "stop_details": st.fixed_dictionaries(
                {
                    "type": st.just("refusal"),
                    "category": st.sampled_from([None, "cyber"]),
                    "explanation": texts,
                }
            )
        }
    ),
)
MESSAGE_DELTAS: SearchStrategy[Event] = st.fixed_dictionaries(
    {
        "type": st.just("message_delta"),
        "delta": STOPS,
        "usage": st.fixed_dictionaries(
            {"output_tokens": st.integers(9, 99)},
            optional={**LATER_COUNTS, "input_tokens": st.none() | st.integers(1, 99)},
        ),
    }
)
BETA_MESSAGE_DELTAS: SearchStrategy[Event] = st.fixed_dictionaries(
    {
        "type": st.just("message_delta"),
        "delta": STOPS,
        "usage": st.fixed_dictionaries(
            {"output_tokens": st.integers(9, 99)},
            optional={"iterations": st.just([{"type": "message", "input_tokens": 1, "output_tokens": 2}])},
        ),
    },
    optional={
        "context_management": st.none() | st.just({"applied_edits": []}),
        "input_transformations": st.none() | st.just([{"type": "thinking_dropped", "path": "messages.1"}]),
    },
)


@st.composite
def streams(draw: DrawFn, *, with_betas: bool = False) -> list[Event]:
    """All events of one answer, including `message_stop`."""
    blocks = draw(st.lists(beta_pieces if with_betas else pieces, max_size=5))
    ends = draw(st.lists(BETA_MESSAGE_DELTAS if with_betas else MESSAGE_DELTAS, min_size=1, max_size=2))
    return [
        *_noise(draw, None),
        {"type": "message_start", "message": draw(STARTS)},
        *draw(block_events(blocks)),
        *ends,
        {"type": "message_stop"},
    ]
