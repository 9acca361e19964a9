# Everything that people and CI do here. Needs make and Python 3.11 or newer; `make` alone says what there is.
#
# TORCH_INDEX: one more package index, for a CPU build of torch where the usual index serves the CUDA build
# (about 3 GB with its libraries):
#     make gate TORCH_INDEX=https://download.pytorch.org/whl/cpu
# pip prefers 2.13.0+cpu to 2.13.0, so the pin in constraints.txt holds for both. It counts when .venv is made.

.DELETE_ON_ERROR:
.PHONY: help venv gate test lint bench browser

BIN := .venv/bin
READY := .venv/ready
UNFINISHED := .venv/unfinished
ENOUGH := import sys, venv; sys.exit(sys.version_info < (3, 11))
PIP_OPTIONS := -q --no-input --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PYTHON = $(shell for p in python3.11 python3 python; do \
	$$p -c '$(ENOUGH)' 2>/dev/null && echo $$p && break; done)

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' Makefile | expand -t 14
	@echo 'Variables: GATE="--impl S --budget quick" options of the gate, TEST="-k decode" of pytest,'
	@echo '           BENCH="--seconds 10" of the bench; PYTHON=, TORCH_INDEX= for making .venv.'

venv: $(READY) ## .venv with the pinned versions; made anew where pyproject.toml or constraints.txt changed

# What is half made is marked, and thrown away the next time.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make venv: needs Python 3.11 or newer, with its venv module (or PYTHON=path)"; exit 1; }
	@if test -e $(UNFINISHED); then rm -rf .venv; fi
	@mkdir -p .venv && rm -f $@ && touch $(UNFINISHED)
	@echo "make venv: installing the pinned versions into .venv (torch among them: minutes)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[dev]'
	@mv $(UNFINISHED) $@ && touch $@

gate: venv ## the pre-merge gate: make gate GATE="--impl sglang@0.5.2:paged"
	$(BIN)/kvassay gate $(GATE)

test: venv ## all tests and properties, on all cores
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto $(TEST)

browser: ## Debian's chromium and its driver, for the tests of `kvassay show`; without them those are skipped
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
		command -v apt-get >/dev/null && test "$$(id -u)" = 0 && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core; \
	} >/dev/null 2>&1 || echo "make browser: no chromium here, and it can't be installed: the page's tests are skipped"

lint: venv ## ruff, mypy, and the one way that imports go
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: venv ## checked operations a second, on one core
	$(BIN)/python bench/throughput.py $(BENCH)
