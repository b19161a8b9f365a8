# `make demo` and `make test` need only Python 3.10 to 3.14; they create their own environment in .venv.
# `make PYTHON=python3.12` selects the interpreter, `make PIP_ARGS='--extra-index-url URL'` passes options to pip.
FITS := import sys, ensurepip, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
PYTHON ?= $(eval PYTHON := $(shell for p in python3.12 python3.11 python3.13 python3.10 python3.14 python3; do \
	$$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done))$(PYTHON)
BIN := .venv/bin
PIP = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of programs, which would each compile edgevit again
# Modules that are never imported here and need not be compiled.
UNUSED := tests?|testing|_inductor|networkx|mypyc?|setuptools|transformers|backend|lexers|_vendor|physics|distutils|quantization|linear_model|ensemble|metrics|cluster|inference
# True if .venv has the version of $(PYTHON). An explicit PYTHON of another version recreates .venv.
SAME = test "$$($(BIN)/python -c '$(VERSION)' 2>/dev/null)" = "$$("$(PYTHON)" -c '$(VERSION)' 2>/dev/null)"

.PHONY: test test-all pytest lint sshd gpu browser demo demo-real drawings picture benchmark docs constraints clean other
.DEFAULT_GOAL := test

# The pinned versions need Python 3.11; 3.10 gets the newest versions that support it. uv installs three times as fast as
# pip; where it fails, such as with an index that only pip's configuration knows, pip installs.
.venv/ready: pyproject.toml constraints.txt $(if $(filter command,$(origin PYTHON)),$(shell $(SAME) || echo other))
	@test -n "$(PYTHON)" || { echo "edgevit needs Python 3.10 to 3.14 with venv, and none is on the PATH;" \
		"try: sudo apt install python3-venv, or make PYTHON=/path/to/python3.12"; exit 1; } >&2
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "there is no $(PYTHON); try: make PYTHON=/path/to/python3.12"; exit 1; } >&2
	@"$(PYTHON)" -c '$(FITS)' 2>/dev/null || { seen=$$("$(PYTHON)" -c '$(VERSION)' 2>/dev/null); \
		case "$$seen" in 3.1[0-4]) echo "$(PYTHON) has no venv; try: sudo apt install python$$seen-venv" ;; \
		*) echo "edgevit needs Python 3.10 to 3.14, and $(PYTHON) is $${seen:-none};" \
		"try: make PYTHON=/path/to/python3.12" ;; esac; exit 1; } >&2
	@$(SAME) || "$(PYTHON)" -m venv --clear .venv
	@echo "installing into .venv: about 6 GB, because PyPI's torch brings CUDA; a few minutes (README, Install)"
	@case $$($(BIN)/python -c '$(VERSION)') in 3.10) ;; *) pins="-c constraints.txt" ;; esac; set -x; \
		$(PIP) uv && $(BIN)/uv pip install --quiet --python $(BIN)/python --index-strategy unsafe-best-match \
		$$pins $(PIP_ARGS) -e '.[cpu,test]' || $(PIP) $$pins $(PIP_ARGS) -e '.[cpu,test]'
	@$(BIN)/python -m compileall -q -j 0 -x '/($(UNUSED))/' .venv/lib edgevit >/dev/null 2>&1 || true  # in parallel, unlike pip
	@touch $@
	@echo "installed; next: . .venv/bin/activate && edgevit --help"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests over SSH need a server. They are skipped if there is none and none can be installed.
sshd:
	@command -v sshd >/dev/null || test -x /usr/sbin/sshd || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ apt-get -qq install -y openssh-server || { apt-get -qq update && apt-get -qq install -y openssh-server; }; } \
		>/dev/null 2>&1; } || echo "no sshd here: the tests over SSH are skipped; try: sudo apt install openssh-server"

# lint takes one core for half a minute, so the tests start beside it.
test: .venv/ready sshd
	@$(MAKE) --no-print-directory -j 2 lint pytest

pytest: .venv/ready
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile=quick -n 4 --dist worksteal  # more than cores: they wait for programs

# Before a release: the slow tests too (docs/decisions/022-quick-and-slow-tests.md).
test-all: lint sshd .venv/ray
	$(BIN)/python -m pytest -n 4 --dist worksteal

.venv/ray: .venv/ready  # the tests on a cluster are slow ones, and skipped where it cannot be installed
	@$(PIP) $(PIP_ARGS) -e '.[fleet]' && touch $@ || echo "no ray here: the tests on a cluster are skipped"

# With an NVIDIA GPU: the tests that need one, and the derivations by every method on it.
gpu: .venv/ready
	$(BIN)/python -m pytest -m gpu
	EDGEVIT_TEST_DEVICE=cuda $(BIN)/python -m pytest -n 4 --dist worksteal \
		tests/derivation/test_methods.py tests/derivation/test_session.py tests/derivation/test_supernet.py

# Tests the page of `edgevit report` in a browser, which this installs if needed.
browser: .venv/ready
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ test "$$(id -u)" = 0 && apt-get -qq update && apt-get -qq install -y chromium; } || \
		{ echo "no Chromium here, and none could be installed; try: sudo apt install chromium" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[browser]'
	$(BIN)/python -m pytest -q tests/reporting/test_page_in_a_browser.py

demo: .venv/ready
	$(BIN)/python -m benchmarks.product.demo

demo-real: .venv/ready  # on DINOv2 ViT-S/14 and drawings, which it downloads
	$(BIN)/python -m benchmarks.product.demo_real

drawings: .venv/ready  # of some of the demo's models: training curves and remaining blocks
	$(BIN)/python -m benchmarks.product.drawings demo/sweep/r0.8 demo/sweep/*-distilled --out demo/drawings

picture: browser  # of the page of demo-real, for README
	$(BIN)/python -m benchmarks.product.picture

# All records but those of a GPU, quick ones first: minutes, then hours, then days on one core. `-`: needs Fashion-MNIST.
benchmark: .venv/ready
	$(BIN)/python -m benchmarks.product.turns
	$(BIN)/python -m benchmarks.product.suite
	$(BIN)/python -m benchmarks.product.budgets emulated
	$(BIN)/python -m benchmarks.product.budgets emulated_narrower
	$(BIN)/python -m benchmarks.product.budgets emulated --held-out --draws 1000
	$(BIN)/python -m benchmarks.product.budgets emulated_narrower --held-out --draws 1000
	$(BIN)/python -m benchmarks.product.budgets energy
	$(BIN)/python -m benchmarks.product.derivation_cost
	$(BIN)/python -m benchmarks.product.hostile
	$(BIN)/python -m benchmarks.product.int8 --cases rendered rendered-0.5 rendered-0.8
	$(BIN)/python -m benchmarks.product.load
	$(BIN)/python -m benchmarks.product.detection
	$(BIN)/python -m benchmarks.product.swin
	$(BIN)/python -m benchmarks.product.cost_tables --plans 30
	$(BIN)/python -m benchmarks.papers.vulcan_drawings
	$(BIN)/python -m benchmarks.product.budgets here
	$(BIN)/python -m benchmarks.product.budgets here --model deit_small
	$(BIN)/python -m benchmarks.product.budgets here --model demo --repeats 2
	$(BIN)/python -m benchmarks.product.shapes
	$(BIN)/python -m benchmarks.papers.efficiency methods
	$(BIN)/python -m benchmarks.papers.efficiency ratios
	$(BIN)/python -m benchmarks.papers.efficiency depth
	$(BIN)/python -m benchmarks.papers.efficiency compressed
	$(BIN)/python -m benchmarks.papers.efficiency heads
	$(BIN)/python -m benchmarks.papers.attention
	-$(BIN)/python -m benchmarks.papers.attention --base fashion
	$(BIN)/python -m benchmarks.papers.attention criteria
	-$(BIN)/python -m benchmarks.papers.wpac
	$(BIN)/python -m benchmarks.papers.wpac --base fine
	-for part in random metrics batch calibration; do $(BIN)/python -m benchmarks.papers.nuwa_figures $$part --seeds 1; done
	-for part in normalisations collapse scratch cost; do $(BIN)/python -m benchmarks.papers.vulcan_figures $$part --seeds 1; done
	-$(BIN)/python -m benchmarks.papers.depth --base fashion --seeds 1
	$(BIN)/python -m benchmarks.papers.text
	$(BIN)/python -m benchmarks.papers.large
	$(BIN)/python -m benchmarks.papers.neurons
	$(BIN)/python -m benchmarks.papers.agnostic
	$(BIN)/python -m benchmarks.product.axes
	$(BIN)/python -m benchmarks.papers.heart --cost
	$(BIN)/python -m benchmarks.papers.heart
	$(BIN)/python -m benchmarks.papers.heart --part composed
	$(BIN)/python -m benchmarks.papers.heart --base fine
	$(BIN)/python -m benchmarks.papers.heart --base fine --part composed
	-$(BIN)/python -m benchmarks.papers.heart --base fashion
	-$(BIN)/python -m benchmarks.papers.heart --base fashion --part composed
	-$(BIN)/python -m benchmarks.papers.heart --base fashion --part oracle
	-$(BIN)/python -m benchmarks.product.equal_latency --base fashion --shares 0.15
	$(BIN)/python -m benchmarks.product.transfer
	$(BIN)/python -m benchmarks.product.rivals
	$(BIN)/python -m benchmarks.product.rivals --base fine
	-$(BIN)/python -m benchmarks.product.rivals --base fashion
	-$(BIN)/python -m benchmarks.papers.ablations
	$(BIN)/python -m benchmarks.papers.ablations --base fine
	$(BIN)/python -m benchmarks.papers.lora_memory
	$(BIN)/python -m benchmarks.papers.slices
	$(BIN)/python -m benchmarks.papers.dropout
	$(BIN)/python -m benchmarks.papers.dropout --base fine
	-$(BIN)/python -m benchmarks.papers.dropout --base fashion
	$(BIN)/python -m benchmarks.papers.published --base demo
	$(BIN)/python -m benchmarks.papers.published
	$(BIN)/python -m benchmarks.papers.published --base fine
	-$(BIN)/python -m benchmarks.papers.published --base fashion
	$(BIN)/python -m benchmarks.product.accuracy
	$(BIN)/python -m benchmarks.product.accuracy --base fine
	-$(BIN)/python -m benchmarks.product.accuracy --base fashion
	$(BIN)/python -m benchmarks.product.results
	$(BIN)/python -m benchmarks.papers.tables

docs: .venv/ready  # the site, in docs/site/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[docs]'
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/site
	@echo "docs/site/index.html"

constraints: .venv/ready  # after raising versions: pin what the tests ran with
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf .venv runs demo demo-real
