"""The stored form of a job, and the id of its session. Equal jobs have equal bytes, on every machine and in every
version of ralph that writes the same `FORMAT`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import msgspec

from ralph.fleet.jobs import FORMAT, Job

_SESSIONS = UUID("8f0cbb5e-2d0c-5a52-9a3b-2f9e4f6f2a11")
"""The namespace of all sessions' ids. It was drawn once. Another value would lose the sessions of stored jobs."""
_FORMAT_KEY = "format"


class UnknownFormatError(Exception):
    """A stored job was written by another version of ralph, and this version cannot read it. The message is one line."""


def content_of(job: Job) -> bytes:
    """The job as JSON. Fields that have their default value are left out, so that a later version of ralph may add a
    field and still write the same bytes for an old job.
    """
    values = msgspec.structs.asdict(job)
    defaults = dict(
        zip(Job.__struct_fields__[-len(Job.__struct_defaults__) :], Job.__struct_defaults__, strict=True)
    )
    said = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    return msgspec.json.encode({**said, _FORMAT_KEY: FORMAT}, order="sorted")


def job_from(content: bytes) -> Job:
    """Decodes what `content_of` has written. Raises UnknownFormatError."""
    try:
        values: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise UnknownFormatError(f"the stored job is no JSON object: {error}") from None
    written = values.pop(_FORMAT_KEY, None)
    if written != FORMAT or isinstance(written, bool):
        raise UnknownFormatError(
            f"the stored job has format {written!r}, and this ralph reads format {FORMAT}: use the version of ralph "
            "that submitted it"
        )
    try:
        return msgspec.convert(values, Job)
    except msgspec.ValidationError as error:
        raise UnknownFormatError(f"the stored job does not fit format {FORMAT}: {error}") from None


def priority_of(content: bytes) -> int:
    """The priority of a stored job. 0 if this version cannot read the job: the takeup refuses it with the reason."""
    try:
        return job_from(content).priority
    except UnknownFormatError:
        return 0


def session_id(set_name: str, job_id: str) -> str:
    """The id of the session in which the job's runs work. All attempts of a job have the same session."""
    return str(uuid5(_SESSIONS, f"{set_name}/{job_id}"))
