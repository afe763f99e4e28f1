"""Implements `ralph fleet report`, which writes one HTML page about all jobs of a store, or of some of its sets."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.pages.command import place_of_page, put_page
from ralph.pages.excerpts import Excerpts
from ralph.pages.fleet_story import fleet_content_of
from ralph.pages.page import fleet_html_of, headline_of_fleet
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from ralph.fleet.command import Fleet


class FleetReportRequest(Struct, frozen=True, kw_only=True):
    sets: tuple[str, ...] = ()
    """The names of the sets. Empty for all sets of the store."""
    output: str | None = None
    """The absolute path of the page, `-` for standard output, or None for the default."""
    is_opened: bool = False
    """True if the page is to be shown in a browser."""
    is_store_named: bool = False
    """True if the user named the store on the command line. Then the page says that its commands need the same option."""


def write_fleet_report(request: FleetReportRequest, store: Fleet) -> int:
    """Writes the page, prints where it is and its headline, and returns the exit code. Raises UsageError if there is no
    such set, or if the page must not be written to the requested place.
    """
    directories = (Path.cwd(),)
    path = place_of_page(request.output, directories)
    sets, jobs, attempts = store.rows_for_report(request.sets)
    redactor = Redactor(known_secrets(os.environ))
    content = fleet_content_of(
        sets, jobs, attempts, made_at_s=time.time(), version=__version__, excerpts=Excerpts(redactor)
    )
    if request.is_store_named:
        content = replace(content, notes=("The commands on this page need the same --db.",))
    html = fleet_html_of(content)
    lines = [redactor.redact_all(in_one_line(headline_of_fleet(content)))]
    is_done = put_page(html, path, lines, directories, is_opened=request.is_opened)
    return 0 if is_done else Outcome.IO_ERROR.exit_code()
