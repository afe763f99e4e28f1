"""The server of the tests itself: nothing of it is left, however the tests end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.patience import wait_until
from tests.processes.children import is_gone

if TYPE_CHECKING:
    from tests.services.postgres import PostgresServer

START = """
import time
from tests.services.postgres import PostgresServer
server = PostgresServer()
print(server.process_id, server.data, flush=True)
time.sleep(600)
"""


def test_a_stopped_server_comes_back_on_its_port_with_its_data(
    postgres: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE kept (one int)")
    postgres.stop()
    with pytest.raises(psycopg.OperationalError, match="connection failed"):
        psycopg.connect(postgres_url)
    postgres.start()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_the_server_ends_with_the_process_that_started_it(postgres: PostgresServer) -> None:
    top = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", START],
        cwd=top,
        env=os.environ | {"PYTHONPATH": str(top)},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        process_id, data = started.stdout.readline().split()
        started.send_signal(signal.SIGKILL)
    assert is_gone(int(process_id))
    wait_until(lambda: not Path(data).parent.exists())
