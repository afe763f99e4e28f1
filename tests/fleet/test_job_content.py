"""The stored form of a job is the same everywhere, and only its own format is read."""

from __future__ import annotations

import pytest

from ralph.fleet.jobs import Job, UnknownFormatError, content_of, job_from, session_id
from tests.rows import every_row

JOB = Job(id="a", repository="/srv/a", prompt='Ünï "x"\n\u2028', max_budget_usd=2.5, env=("X",), after=("b",))


def test_a_job_is_read_as_it_was_stored() -> None:
    """The bytes are promised: another ralph compares them."""
    assert content_of(JOB) == (
        '{"after":["b"],"env":["X"],"format":1,"id":"a","max_budget_usd":2.5,'
        '"prompt":"Ünï \\"x\\"\\n\u2028","repository":"/srv/a"}'.encode()
    )
    assert job_from(content_of(JOB)) == JOB


@every_row(
    ("content", "says"),
    [
        (b'{"format":2,"id":"a"}', "has format 2, and this ralph reads format 1"),
        (b'{"format":true,"id":"a"}', "has format True"),
        (b'{"id":"a"}', "has format None"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not a JSON object"),
        (b'{"format":1,"id":"a","repository":"/x","prompt":"x","new":1}', "does not fit format 1"),
        (b'{"format":1,"id":"../a","repository":"/x","prompt":"x"}', "cannot be done: id must have"),
        (
            b'{"format":1,"id":"a","repository":"ext::x","prompt":"x"}',
            "cannot be done: repository names a transport",
        ),
    ],
)
def test_another_format_is_refused_and_not_guessed(content: bytes, says: str) -> None:
    with pytest.raises(UnknownFormatError, match=says):
        job_from(content)


def test_a_session_belongs_to_one_job_of_one_set() -> None:
    """The id is promised: a worker of another version continues the session."""
    assert session_id("night", "a") == "12775cda-f071-56b8-bb9c-4c32c25ace2a"
    assert len({session_id("night", "a"), session_id("night", "b"), session_id("day", "a")}) == 3
