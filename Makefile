# What developers and CI call. Each target works in a fresh clone with nothing but Python >= 3.11.
PYTHON ?= python3

.PHONY: demo test check format bench

demo:
	$(PYTHON) quickstart.py demo

test:
	$(PYTHON) quickstart.py test

check:
	$(PYTHON) quickstart.py check

format:
	.venv-dev/bin/ruff format .
	.venv-dev/bin/ruff check --fix .

bench:
	$(PYTHON) quickstart.py --version >/dev/null
	.venv-run/bin/python benchmarks/all.py
