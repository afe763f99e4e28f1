"""Measures what the fleet costs: `python -m benchmarks.fleet`, with jobs of one turn on the mock API, eight slots and a real
Postgres that syncs its writes. The same jobs, run by a shell loop of `ralph run`, are the base.

Needs the programs of Postgres (`tests/services/postgres.py`). Times of the processor are those of all processes of a kind, so they
hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.harness import MockProcess
from ralph.mock_api import FOREVER, Fault, Scenario, Step, Turn
from tests.services.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 8
SIZES = (100, 1000)
LONG_S = 30.0
_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "128MB",
    "autovacuum_naptime": "1min",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "10000",
}
WHOSE = ("engine", "fleet", "set's lock", "rest")
_TOP = Path(__file__).parents[1]
_SHELL_LOOP = """
clone=$1/work/$2
git clone -q --shared "$1/repository.git" "$clone" && cd "$clone" && exec "$3" -m ralph run "$4" --sandbox off -q >/dev/null
"""


@dataclass
class Measured:
    """The figures of one number of jobs."""

    jobs: int
    wall_s: float = 0.0
    worker_cpu_s: float = 0.0
    """The CPU time of the workers and of all processes that they started."""
    store_cpu_s: float = 0.0
    submit_s: float = 0.0
    calls: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The calls of the store and their time in ms, by schema."""
    rows: dict[str, int] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    """Bytes of tables, indexes and what is stored beside them, by schema and table."""
    connections: int = 0
    longest: list[tuple[float, int, str]] = field(default_factory=list)
    """The statements on which the store spent most time: ms, calls and text."""

    @property
    def total_bytes(self) -> int:
        return sum(self.size.values())


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=SIZES)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--statements", type=int, default=0, help="print so many statements")
    options = parser.parse_args()
    scenario = Scenario([Step(Turn("Done."), repeat=FOREVER)], parse_requests=False)
    with PostgresServer(_SETTINGS) as postgres, MockProcess(scenario) as api:
        # Each size gets a database of its own, so that the figures of two sizes can be compared.
        runs = [measure(postgres, api.base_url, jobs, options.slots) for jobs in options.jobs]
        bare_jobs = min(options.jobs)
        bare = shell_loop(api.base_url, bare_jobs, options.slots)
        long = in_long_jobs(postgres, options.slots)
    tell(runs, (bare_jobs, *bare), options.slots)
    print("\neach second and slot, in a job that waits for an answer:")
    print("  {:.1f} statements, {:.1f} ms CPU of Postgres, {:.1f} ms CPU of the worker".format(*long))
    for run in runs if options.statements else ():
        print(f"\n{run.jobs:,} jobs: ms and calls for each job")
        for ms, calls, query in run.longest[: options.statements]:
            print(f"{ms / run.jobs:10.2f}{calls / run.jobs:8.1f}  {query[:200]}")


def measure(postgres: PostgresServer, base_url: str, jobs: int, slots: int) -> Measured:
    found = Measured(jobs)
    with postgres.database() as url, place(base_url) as (folder, environment):
        environment["RALPH_FLEET_DB"] = url
        name = url.rpartition("/")[2]
        postgres.administer("CREATE EXTENSION IF NOT EXISTS pg_stat_statements", database=name)
        write_jobs(folder, "warm", 1)
        write_jobs(folder, "bench", jobs)
        # The first worker makes the tables and the mirror, which is not a part of the figures.
        fleet(environment, folder, "submit", "warm.jsonl")
        fleet(environment, folder, "work", "--until-done")
        before_s = time.monotonic()
        fleet(environment, folder, "submit", "bench.jsonl")
        found.submit_s = time.monotonic() - before_s
        postgres.administer("SELECT pg_stat_statements_reset()", database=name)
        store_s, started_s = cpu_of_server(postgres), time.monotonic()
        used_s = used_by_children()
        process = subprocess.Popen(
            [sys.executable, "-m", "ralph", "fleet", "work", "-j", str(slots), "--until-done"],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        last_end = 0.0
        with psycopg.connect(postgres.url(name), autocommit=True) as watch:
            while process.poll() is None:
                time.sleep(0.5)
                [(connections,)] = rows_of(
                    watch,
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
                )
                found.connections = max(found.connections, connections)
            found.worker_cpu_s = used_by_children() - used_s
            found.store_cpu_s = cpu_of_server(postgres) - store_s
            if process.returncode:
                raise SystemExit(f"the worker ended with {process.returncode}")
            [(wrong, first, last_end)] = rows_of(
                watch,
                "SELECT count(*) FILTER (WHERE exit_code <> 0), min(started_at), max(ended_at) "
                "FROM ralph_fleet.jobs WHERE set_name = 'bench'",
            )
            if wrong:
                raise SystemExit(f"{wrong} jobs did not end with 0")
            found.wall_s = last_end - first
            found.calls, found.longest = calls_of(watch)
            for schema, table, size in rows_of(
                watch,
                "SELECT n.nspname, c.relname, pg_total_relation_size(c.oid) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE c.relkind = 'r' AND n.nspname IN ('dbos', 'ralph_fleet')",
            ):
                found.size[f"{schema}.{table}"] = size
                [(found.rows[f"{schema}.{table}"],)] = rows_of(
                    watch, f'SELECT count(*) FROM "{schema}"."{table}"'
                )
        print(
            f"{jobs} jobs: {time.monotonic() - started_s:.0f} s with start and end of the worker",
            file=sys.stderr,
        )
    return found


def in_long_jobs(postgres: PostgresServer, slots: int) -> tuple[float, float, float]:
    """Each second and slot while all slots wait for long answers: statements, ms of the server's processor, and ms of the
    worker's.
    """
    scenario = Scenario(
        [Step(Turn("Done."), Fault(stall_after_events=2, stall_s=2 * LONG_S), repeat=FOREVER)],
        parse_requests=False,
    )
    with (
        MockProcess(scenario, keep_requests=slots) as api,
        postgres.database() as url,
        place(api.base_url) as (folder, environment),
    ):
        environment["RALPH_FLEET_DB"] = url
        name = url.rpartition("/")[2]
        postgres.administer("CREATE EXTENSION IF NOT EXISTS pg_stat_statements", database=name)
        write_jobs(folder, "long", slots)
        fleet(environment, folder, "submit", "long.jsonl")
        process = subprocess.Popen(
            [sys.executable, "-m", "ralph", "fleet", "work", "-j", str(slots)],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        while len(api.requests()) < slots:
            time.sleep(0.5)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        before = (cpu_of_server(postgres), sum(map(cpu_of, children)))
        postgres.administer("SELECT pg_stat_statements_reset()", database=name)
        time.sleep(LONG_S)
        after = (cpu_of_server(postgres), sum(map(cpu_of, children)))
        [(calls,)] = postgres.administer("SELECT sum(calls) FROM pg_stat_statements", database=name)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait()
    server_s, worker_s = (last - first for first, last in zip(before, after, strict=True))
    per = LONG_S * slots
    return float(calls) / per, server_s / per * 1000, worker_s / per * 1000


def shell_loop(base_url: str, jobs: int, slots: int) -> tuple[float, float]:
    """The wall time and the processor's time, in seconds, of the same jobs in a shell loop, `slots` at a time."""
    with place(base_url) as (folder, environment):
        (folder / "work").mkdir()
        numbers = "\n".join(str(number) for number in range(jobs))
        started_s, used_s = time.monotonic(), used_by_children()
        words = ["xargs", "-P", str(slots), "-I", "{}", "sh", "-c", _SHELL_LOOP, "sh"]
        subprocess.run(
            [*words, str(folder), "{}", sys.executable, "Do it."],
            input=numbers,
            text=True,
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return time.monotonic() - started_s, used_by_children() - used_s


@contextmanager
def place(base_url: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a bare repository, and the environment of the processes in it."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-bench-"))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(_TOP),
        "HOME": str(folder),
        "RALPH_STATE_DIR": str(folder / "state"),
        "ANTHROPIC_API_KEY": "sk-ant-bench-0123456789",
        "ANTHROPIC_BASE_URL": base_url,
    }
    (folder / "state").mkdir()
    (folder / ".gitconfig").write_text("[user]\n\tname = bench\n\temail = bench@example.com\n")
    script = (
        "git init -q -b main first && cd first && echo first >first.txt && git add -A && git commit -qm first"
    )
    subprocess.run(["sh", "-c", script], cwd=folder, env=environment, check=True)
    subprocess.run(
        ["git", "clone", "-q", "--bare", "first", "repository.git"], cwd=folder, env=environment, check=True
    )
    try:
        yield folder, environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_jobs(folder: Path, name: str, count: int) -> None:
    jobs = [
        {
            "id": f"{name}-{number:06}",
            "repository": str(folder / "repository.git"),
            "prompt": "Do it.",
            "sandbox": "off",
        }
        for number in range(count)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))


def fleet(environment: dict[str, str], folder: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ralph", "fleet", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )


def calls_of(
    connection: psycopg.Connection[Any],
) -> tuple[dict[str, tuple[int, float]], list[tuple[float, int, str]]]:
    """The calls and their time in ms: those of the engine's tables, those of the fleet's, waits for the lock of a set, and
    the rest, such as the beginning and the end of transactions. Then all statements, the longest first.
    """
    found = dict.fromkeys(WHOSE, (0, 0.0))
    statements = []
    for query, calls, ms in rows_of(
        connection,
        "SELECT query, calls, total_exec_time FROM pg_stat_statements "
        "WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "ORDER BY total_exec_time DESC",
    ):
        if "pg_stat" in query or "pg_total_relation_size" in query:
            continue
        names = {"pg_advisory_xact_lock": "set's lock", "ralph_fleet": "fleet", "dbos": "engine"}
        whose = next((whose for name, whose in names.items() if name in query), "rest")
        found[whose] = found[whose][0] + calls, found[whose][1] + ms
        statements.append((ms, calls, " ".join(query.split())))
    return found, statements


def rows_of(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


def used_by_children() -> float:
    """The processor's time, in seconds, of all processes that this one and its children have waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_of_server(postgres: PostgresServer) -> float:
    """The processor's time of the server, in seconds, with its sessions that have ended."""
    assert postgres.process_id is not None
    main = postgres.process_id
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    # What has ended meanwhile is among the children that the main process has waited for.
    return cpu_of(str(main), with_children=True) + sum(map(cpu_of, children))


def cpu_of(pid: str, *, with_children: bool = False) -> float:
    """The processor's time of a process in seconds, with that of its children that it has waited for if asked. 0 if it
    has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11 : 15 if with_children else 13]) * _TICKS_S


def tell(runs: list[Measured], bare: tuple[int, float, float], slots: int) -> None:
    bare_jobs, bare_wall_s, bare_cpu_s = bare
    head = "".join(f"{f'{run.jobs:,} jobs':>16}" for run in runs)
    print(
        f"\n{slots} slots; a shell loop of {bare_jobs:,} runs took {bare_wall_s / bare_jobs * 1000:.0f} ms a job"
    )
    print(f"{'for each job':40}{head}")

    def line(name: str, values: list[str]) -> None:
        print(f"{name:40}" + "".join(f"{value:>16}" for value in values))

    line("jobs per second", [f"{run.jobs / run.wall_s:.2f}" for run in runs])
    line("submitted, ms", [f"{run.submit_s / run.jobs * 1000:.1f}" for run in runs])
    line("CPU of the workers and runs, ms", [f"{run.worker_cpu_s / run.jobs * 1000:.0f}" for run in runs])
    line(
        "... beyond the shell loop, ms",
        [f"{(run.worker_cpu_s / run.jobs - bare_cpu_s / bare_jobs) * 1000:.0f}" for run in runs],
    )
    line("CPU of Postgres, ms", [f"{run.store_cpu_s / run.jobs * 1000:.1f}" for run in runs])
    for whose in WHOSE:
        line(f"calls of the store, {whose}", [f"{run.calls[whose][0] / run.jobs:.1f}" for run in runs])
        line("... their time, ms", [f"{run.calls[whose][1] / run.jobs:.2f}" for run in runs])
    line("rows", [f"{sum(run.rows.values()) / run.jobs:.2f}" for run in runs])
    line("bytes", [f"{run.total_bytes / run.jobs:,.0f}" for run in runs])
    line("connections for each slot", [f"{run.connections / slots:.1f}" for run in runs])
    if len(runs) > 1:
        first, last = runs[0], runs[-1]
        more = last.jobs - first.jobs
        print(f"\nfor each job more than {first.jobs:,}:")
        for table in sorted(last.size):
            rows = (last.rows[table] - first.rows[table]) / more
            size = (last.size[table] - first.size[table]) / more
            if rows or size:
                print(f"  {table:36}{rows:>8.2f} rows{size:>10,.0f} bytes")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
