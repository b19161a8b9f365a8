# `make demo`, `make test`: both start from nothing but a Python >= 3.10 and make their own environment in .venv.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3.10 python3; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# The pinned versions need Python 3.11; 3.10 takes the newest that still know it.
PINS = $(shell $(PYTHON) -c 'import sys; print("" if sys.version_info < (3, 11) else "-c constraints.txt")')

.PHONY: test lint sshd demo benchmark constraints clean
.DEFAULT_GOAL := test

.venv/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "edgevit needs Python 3.10 or newer with venv; try: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINS) -e '.[test]'
	touch $@

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests over SSH need a server; where there is none and none can be installed, they are skipped and say so.
sshd:
	@command -v sshd >/dev/null || test -x /usr/sbin/sshd || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ apt-get -qq install -y openssh-server || { apt-get -qq update && apt-get -qq install -y openssh-server; }; } \
		>/dev/null 2>&1; } || echo "no sshd here: the tests over SSH are skipped; try: sudo apt install openssh-server"

test: lint sshd
	$(BIN)/python -m pytest -n 2

demo: .venv/ready
	$(BIN)/python benchmarks/demo.py

benchmark: .venv/ready
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/shapes.py
	$(BIN)/python benchmarks/allocation.py
	$(BIN)/python benchmarks/least_squares.py
	$(BIN)/python benchmarks/supernet.py
	$(BIN)/python benchmarks/forge.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/results.py

constraints: .venv/ready  # after raising versions: pin what the tests have just run with
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf .venv runs demo
