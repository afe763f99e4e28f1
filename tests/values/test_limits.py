"""Tests how much a budget still allows: never more than the budget, whatever a server bills within the worst
case.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.values.events import AttemptEnded
from ralph.values.limits import Budget
from ralph.values.servers import ModelFacts, Price
from ralph.values.usage import TokenUsage, cost_usd
from tests.rows import every_row

# Every kind of token costs a dollar, so that a budget is a number of tokens.
DOLLARS = Price(1e6, 1e6, 1e6, 1e6, 1e6)
FACTS = ModelFacts(None, None, DOLLARS)


def with_price(**prices: float) -> ModelFacts:
    return replace(FACTS, price=replace(DOLLARS, **prices))


def attempt(tokens: TokenUsage, facts: ModelFacts | None = FACTS) -> AttemptEnded:
    return AttemptEnded(1, 1, "a", "a", 0.1, tokens, facts)


@every_row(
    ("max_usd", "prompt", "requested", "buys"),
    [
        (None, 10**9, 7, 7),
        (100, 40, 59, 59),
        (100, 40, 60, 60),
        (100, 40, 61, 60),
        (100, 99, 5, 1),
        (100, 100, 5, 0),
        (100, 101, 5, 0),
        (0, 0, 5, 0),
    ],
)
def test_what_is_left_after_the_prompt_buys_the_answer(
    max_usd: float | None, prompt: int, requested: int, buys: int
) -> None:
    assert Budget(max_usd).longest_answer(FACTS, prompt, requested) == buys


@every_row(
    ("prices", "prompt_costs"),
    [
        ({"input": 3e6}, 30),
        ({"cache_write": 3e6}, 30),
        ({"cache_read": 3e6}, 30),
        ({"cache_write_1h": 3e6}, 10),  # a cache that no request of ours asks for
    ],
)
def test_a_prompt_counts_at_the_dearest_price_it_can_have(
    prices: dict[str, float], prompt_costs: int
) -> None:
    assert Budget(100).longest_answer(with_price(**prices), 10, 1000) == 100 - prompt_costs


def test_an_answer_that_costs_nothing_is_as_long_as_requested_once_the_prompt_is_paid() -> None:
    free = with_price(output=0)
    assert Budget(100).longest_answer(free, 100, 5000) == 5000
    assert Budget(100).longest_answer(free, 101, 5000) == 0


def test_a_long_prompt_has_the_price_of_long_prompts() -> None:
    facts = replace(FACTS, long_prompt_price=replace(DOLLARS, output=2e6), long_prompt_tokens=50)
    assert Budget(100).longest_answer(facts, 50, 1000) == 50
    assert Budget(100).longest_answer(facts, 51, 1000) == 24


@every_row("facts", [None, replace(FACTS, price=None)])
def test_what_has_no_known_price_is_not_bought(facts: ModelFacts | None) -> None:
    assert (Budget(100).longest_answer(facts, 1, 1), Budget(None).longest_answer(facts, 1, 1)) == (0, 1)


def test_every_attempt_is_paid_for_a_broken_one_too() -> None:
    budget = Budget(100)
    budget.emit(attempt(TokenUsage(input=30, output=10)))
    budget.emit(replace(attempt(TokenUsage(input=5)), error="cut", kind="stream"))
    assert (budget.spent_usd, budget.longest_answer(FACTS, 50, 1000)) == (45, 5)


@every_row(("spent", "is_near"), [(89, False), (90, True), (91, True), (100, True)])
def test_it_is_nearly_spent_from_its_share_on(spent: int, is_near: bool) -> None:
    budget = Budget(100)
    budget.emit(attempt(TokenUsage(input=spent)))
    assert budget.is_nearly_spent(0.9) is is_near
    assert not Budget(None, spent_usd=spent).is_nearly_spent(0.9)


prices = st.floats(0, 1000)
PRICES = st.builds(Price, prices, prices, prices, prices, prices)


@given(
    price=PRICES,
    max_usd=st.floats(0, 50),
    requests=st.lists(
        st.tuples(st.integers(0, 300_000), st.integers(1, 128_000), st.randoms(use_true_random=False)),
        max_size=12,
    ),
)
def test_no_usage_within_what_was_granted_costs_more_than_the_budget(price, max_usd, requests) -> None:
    facts, budget = replace(FACTS, price=price), Budget(max_usd)
    for estimate, requested, random in requests:
        granted = budget.longest_answer(facts, estimate, requested)
        assert granted <= requested
        if granted <= 0:
            continue
        prompt = random.randint(0, estimate)
        written = random.randint(0, prompt)
        usage = TokenUsage(
            input=prompt - written,
            cache_write=written // 2,
            cache_read=written - written // 2,
            output=random.randint(0, granted),
        )
        assert cost_usd(facts, usage) is not None
        budget.emit(attempt(usage, facts))
    assert budget.spent_usd <= max_usd + 1e-9
