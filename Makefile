# What developers and CI call. Each target works in a fresh clone with nothing but Python >= 3.11.
PYTHON ?= python3

.PHONY: demo test test-busy check format generated constraints bench bench-peers bench-comparison pictures soak nemesis nights seeds machines workloads engine agents

demo:
	$(PYTHON) quickstart.py demo

test:
	$(PYTHON) quickstart.py test

# As on a machine where much else runs. On a slow one: RALPH_TEST_PATIENCE=3.
test-busy:
	$(PYTHON) quickstart.py test-busy

check:
	$(PYTHON) quickstart.py check

format:
	.venv-dev/bin/ruff format .
	.venv-dev/bin/ruff check --fix .

# What is made from the tables of commands, options and settings: the table of the shells' completion, the man page, the
# page of `ralph --help`, and the table in docs/settings.md.
generated:
	.venv-dev/bin/python -m benchmarks.completion_table
	.venv-dev/bin/python -m benchmarks.man_page
	.venv-dev/bin/python -m benchmarks.help_page
	.venv-dev/bin/python -m benchmarks.settings_page

# What an installation brings, with hashes. All versions anew: CONSTRAINTS=--upgrade.
constraints:
	$(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet uv
	.venv-constraints/bin/python benchmarks/constraints.py $(CONSTRAINTS)

# Thousands of broken turns of the real program: about four minutes. SOAK="--seed 7", SOAK="--cuts", ...
soak:
	$(PYTHON) quickstart.py soak $(SOAK)

# Five hundred SIGKILLs, fifty more while one vendor is away and another one answers, and every failing call to the disk: about
# six minutes. NEMESIS="--seed 7", ... Then a fleet of
# three workers that are killed and stopped: about fifteen minutes. FLEET="--jobs 50 --every 1", FLEET="--only killed", ...
nemesis:
	$(PYTHON) quickstart.py nemesis $(NEMESIS)
	$(PYTHON) quickstart.py nemesis --vendors $(NEMESIS) --kills 50
	RALPH_RESUME_TABLE=all $(PYTHON) quickstart.py test tests/recorded/test_resume_table.py
	RALPH_EVERY_CALL=1 $(PYTHON) quickstart.py test tests/program/machine/test_disk.py -k whichever
	.venv-dev/bin/python -m tests.nemesis.fleet $(FLEET)

# For each row of specs/seeds.md: a mistake in its line, which its tests must notice. SEEDS="F1 D8", SEEDS="--workers 4", ...
seeds:
	$(PYTHON) quickstart.py test tests/test_mutants.py tests/test_seeds.py
	.venv-dev/bin/python -m benchmarks.mutants --seeds $(SEEDS)

# The tests on six machines that differ from this one: about an hour. MACHINES="nothing old-bubblewrap", "nothing -- tests/git"
machines:
	$(PYTHON) -m tests.other_machines $(MACHINES)

# A model that this machine runs itself, on an engine that is built from source first: about a quarter of an hour.
engine:
	RALPH_ENGINE=1 $(PYTHON) quickstart.py test tests/program/api/test_real_engine.py

# What people run, at three levels of the sandbox: about ten minutes, and some gigabytes that it installs below /var/tmp.
# WORKLOADS="tmux 'gpg key'"
workloads:
	$(PYTHON) quickstart.py test tests/sandbox/workloads
	.venv-dev/bin/python -m tests.sandbox.workloads $(WORKLOADS)

# Twenty nights with servers whose answers come damaged now and then: about two minutes.
nights:
	RALPH_NIGHTS=20 $(PYTHON) quickstart.py test tests/api/foreign/test_damage.py -k night

bench:
	$(PYTHON) quickstart.py --version >/dev/null
	.venv-run/bin/python benchmarks/all.py

# ralph beside claude, codex and pi, which npm installs into .peers: about four minutes.
bench-peers:
	$(PYTHON) quickstart.py --version >/dev/null
	.venv-run/bin/python -m benchmarks.peers
	.venv-run/bin/python -m benchmarks.job_cost

# What agents do when nobody watches, for docs/comparison.md: about an hour, mostly of waiting.
bench-comparison:
	$(PYTHON) quickstart.py test tests/test_architecture.py
	.venv-dev/bin/python -m benchmarks.comparison

# The pictures of the README and the docs, with asciinema, svg-term-cli and the distribution's Chromium: a minute.
pictures:
	$(PYTHON) quickstart.py test tests/test_architecture.py
	.venv-dev/bin/python -m benchmarks.pictures

agents:
	$(PYTHON) quickstart.py test tests/program/loop/test_loop_agents.py
	.venv-dev/bin/python -m tests.services.real_agents $(AGENTS)
