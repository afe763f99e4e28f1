"""A worker asks for the key of the vendor that a job's model names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.fleet.job_process import fingerprint, why_not_here
from ralph.fleet.jobs import Job
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-0123456789", "OPENAI_API_KEY": "sk-proj-0123456789"}


@every_row(
    ("model", "variable"),
    [
        (None, "ANTHROPIC_API_KEY"),
        ("opus", "ANTHROPIC_API_KEY"),
        ("gpt-6-sol", "OPENAI_API_KEY"),
    ],
)
def test_a_job_begins_where_the_key_of_its_models_vendor_is_and_that_key_counts(
    tmp_path: Path, model: str | None, variable: str
) -> None:
    job = Job(id="j", repository="r", prompt="p", model=model)
    home = {"HOME": str(tmp_path)}
    assert why_not_here(job, {**home, variable: KEYS[variable]}, tmp_path) is None
    others = {name: key for name, key in KEYS.items() if name != variable}
    assert f"set {variable}" in (why_not_here(job, {**home, **others}, tmp_path) or "")
    assert fingerprint(KEYS, None, model) == fingerprint({variable: KEYS[variable]}, None, model)
    assert fingerprint(KEYS, None, model) != fingerprint({**KEYS, variable: "another"}, None, model)
