# make shards   an image tree -> verified shards (SRC=tree OUT=folder ARGS="more options"); a demo tree without SRC
# make serve    serve shards over HTTP, on this machine (OUT=folder PORT=8000; the demo's shards without OUT)
# make test     pass the tests        make lint    style and types
# make bench    measure               make docs    write docs/cli.md from the commands' help
# make notebooks   run the notebooks on the demo's shards (ARGS=02 runs one, ARGS=--write keeps outputs)
# make clean    remove what was built
# shards, serve, test and notebooks set up what is missing; they need Python and make only.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
OUT    ?= build/shards
PORT   ?= 0
ARGS   ?=
# Tests side by side; each has servers of its own, so more of them ask for memory as well.
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help shards serve test lint bench docs notebooks clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -7

$(BIN)/python:
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or later is needed; name one with 'make PYTHON=python3.11 …'" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python cannot make virtual environments here; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.installed: setup.cfg setup.py pyproject.toml constraints.txt $(wildcard wds_tools/image/kernel/*) | $(BIN)/python
	@echo "installing wds_tools and what it needs"
	@$(PIP) --config-settings editable_mode=compat -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) --config-settings editable_mode=compat -e '.[dev]'
	@$(BIN)/python tests/support/install_peers.py
	@touch $@

shards: $(VENV)/.installed
ifdef SRC
	@$(BIN)/wds-tools convert "$(SRC)" "$(OUT)" $(ARGS)
else
	@test -d build/demo || { rm -rf build/demo.part && $(BIN)/wds-tools demo build/demo.part && mv build/demo.part build/demo; }
	@$(BIN)/wds-tools convert build/demo "$(OUT)" $(ARGS)
endif
	@$(BIN)/wds-tools verify "$(OUT)"
	@$(BIN)/wds-tools info "$(OUT)"

# aiohttp alone: the extra explore, which has it, brings notebooks along.
$(VENV)/.installed-serve: $(VENV)/.installed
	@$(BIN)/python -c 'import aiohttp' 2>/dev/null || { echo "installing what serving needs"; $(PIP) aiohttp; }
	@touch $@

serve: $(VENV)/.installed-serve
	@test "$(OUT)" != build/shards || test -e build/shards || $(MAKE) --no-print-directory shards ARGS=
	@$(BIN)/wds-tools serve "$(OUT)" --port "$(PORT)" $(ARGS) || test $$? -eq 130

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.installed-dev
	@$(BIN)/python benchmarks/convert.py
	@$(BIN)/python benchmarks/read.py
	@$(BIN)/python benchmarks/decode.py
	@$(BIN)/python benchmarks/scale.py --most 10000000
	@command -v nginx >/dev/null && $(BIN)/python benchmarks/remote.py || echo "benchmarks/remote.py needs nginx and curl"

docs: $(VENV)/.installed
	@$(BIN)/python docs/generate_cli.py

# The extra explore without jupyter, which is for people: running a notebook takes a kernel and nbclient.
$(VENV)/.installed-notebooks: $(VENV)/.installed
	@echo "installing what the notebooks need"
	@$(PIP) aiohttp ipykernel jinja2 matplotlib nbclient
	@touch $@

notebooks: $(VENV)/.installed-notebooks
	@test -d build/demo && test -e build/shards/info.json || $(MAKE) --no-print-directory shards OUT=build/shards SRC= ARGS=
	@$(BIN)/python notebooks/run.py $(ARGS)

clean:
	rm -rf build dist $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
