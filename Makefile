# What developers and CI call. Each target works in a fresh clone with nothing but Python >= 3.11.
PYTHON ?= python3

.PHONY: demo test check format bench soak

demo:
	$(PYTHON) quickstart.py demo

test:
	$(PYTHON) quickstart.py test

check:
	$(PYTHON) quickstart.py check

format:
	.venv-dev/bin/ruff format .
	.venv-dev/bin/ruff check --fix .

# Thousands of broken turns of the real program: about four minutes. SOAK="--seed 7", SOAK="--cuts", ...
soak:
	$(PYTHON) quickstart.py soak $(SOAK)

bench:
	$(PYTHON) quickstart.py --version >/dev/null
	.venv-run/bin/python benchmarks/all.py
