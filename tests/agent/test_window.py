"""The context window in the real agent loop: which source of its size counts, when a server is asked for it, and
that results are cut to fit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.agent.compaction import LEAST_BYTES, MOST_FILLED_PERCENT
from ralph.values.outcome import Outcome
from tests.agent.small_windows import SmallServer, World, target, works
from tests.fakes import answer, call, text
from tests.fakes.played import DONE
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.conversation.target import Target

READ = answer(call("a"))
HELLO = answer(text("Hello."))


def local(**more: Any) -> Target:
    return target(**{"window": None, "model": "local", **more})


@every_row(
    ("asked", "script", "result_bytes", "questions"),
    [
        pytest.param(target(window=None), [HELLO], 0, 0, id="a hello"),
        pytest.param(target(window=None), [READ, HELLO], 9_000, 0, id="a short run on a known model"),
        pytest.param(target(window=None), [READ, HELLO], 190_000, 0, id="under a tenth of its window"),
        pytest.param(target(window=None), [READ, HELLO], 210_000, 1, id="over it"),
        pytest.param(local(), [HELLO], 0, 0, id="a hello to an unknown model"),
        pytest.param(local(), [READ, HELLO], 10, 1, id="a result for an unknown model"),
        pytest.param(
            local(), [READ, answer(call("b")), HELLO], 9_000, 1, id="once, also where it says nothing"
        ),
        pytest.param(local(window=8_000), [HELLO], 0, 0, id="the user has said it"),
    ],
)
def test_a_server_is_asked_about_its_model_when_that_begins_to_matter(
    asked, script, result_bytes, questions
) -> None:
    server = SmallServer(script)
    assert World(server, asked, result_bytes=result_bytes).ended.outcome is Outcome.COMPLETED
    assert server.described == ["main"] * questions


def tokens_of(request: Any) -> int:
    """An upper estimate of the tokens, like the program's own estimate before the server has counted any."""
    return len(request.body) // 2


@every_row("window", [8_000])
@every_row("size", [500, 70_000, 140_000])
@every_row("calls", [1, 8])
def test_results_are_cut_before_they_are_added_and_share_the_room(window, size, calls) -> None:
    server = SmallServer(
        [answer(*[call(f"r{number}", text=f"part {number}") for number in range(calls)]), DONE],
        bytes_per_token=2,
    )
    world = World(server, target(window=window), result_bytes=size)
    assert world.ended.outcome is Outcome.COMPLETED
    results = [record.content for record in world.journal.records if record.kind == "tool_result"]
    sizes = list(map(len, results))
    assert len(sizes) == calls
    room = window * MOST_FILLED_PERCENT // 100 - tokens_of(server.requests[0])
    if size * calls / 2 + 200 * calls < room:
        assert sizes == [size] * calls, "small ones stay whole"
    else:
        assert max(sizes) - min(sizes) <= 10, "an equal share"
        assert sum(sizes) / 2 <= max(room, calls * (LEAST_BYTES + 100) / 2)
        assert all("left out" in result for result in results)


@settings(max_examples=10)
@example(window=8_000, sizes=[0, 0, 0, 2_967, 7_648], bytes_per_token=2.1)
@given(
    window=st.sampled_from([8_000, 16_000, 32_000]),
    sizes=st.lists(st.integers(0, 100_000), min_size=1, max_size=8),
    bytes_per_token=st.sampled_from([2.1, 3.0, 4.0, 6.0]),
)
def test_a_server_that_keeps_its_word_on_the_window_is_never_sent_too_much(
    window, sizes, bytes_per_token
) -> None:
    """The server refuses a prompt that leaves no room for the answer, as some servers do."""

    class Strict(SmallServer):
        def send_message(self, target: Target, key: int, body: Any, events: Any, **how: Any) -> Any:
            made = super().send_message(target, key, body, events, **how)
            tokens = int(len(self.requests[-1].body) / bytes_per_token)  # as the server counts them
            fields = self.requests[-1].fields
            # The size of each message is rounded up to a whole token, here and where it was counted. After a compaction,
            # that was a longer request.
            most_messages = max(len(each.messages) for each in self.requests)
            assert tokens + fields["max_tokens"] <= window + most_messages
            return made

    server = Strict([works(number) for number in range(len(sizes))] + [DONE], bytes_per_token=bytes_per_token)

    def sized(world: World) -> None:
        run = world.toolbox.run

        def in_turn(calls: Any) -> Any:
            world.toolbox.size = sizes[len(world.toolbox.ran) // 2 % len(sizes)]
            return run(calls)

        world.toolbox.run = in_turn  # type: ignore[method-assign]

    world = World(server, target(window=window), change=sized)
    assert world.ended.outcome is Outcome.COMPLETED
    assert all(replace(event, trigger="threshold") == event for event in world.compactions)
