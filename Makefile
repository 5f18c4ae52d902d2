# Everything a developer types. Needs Python 3.11 or newer, make and a POSIX shell.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q
INSTALLED := $(VENV)/.installed
PYTHON ?= python3
COMPILE = $(BIN)/uv pip compile pyproject.toml --all-extras --universal --quiet --python-version 3.11 \
	--generate-hashes --no-header --no-emit-index-url

.DEFAULT_GOAL := help
.PHONY: help setup up test lint format demo openapi lock bench bench-chunking bench-dense bench-http bench-ingest bench-lexical bench-metrics bench-neighbours bench-quality bench-reindex check-deploy emulate-image faults faults-indexing load clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## Create .venv with everything pinned by requirements.lock

up: $(INSTALLED)  ## Start Braid: embedded PostgreSQL, local model, API on port 8000 (ARGS="--port 9000")
	@$(BIN)/braid up $(ARGS)

test: $(INSTALLED)  ## Run the tests (ARGS="tests/unit -k fusion" runs some)
	@$(BIN)/pytest $(ARGS)

lint: $(INSTALLED)  ## Check style, formatting, types and import direction
	@status=0; \
	for check in "ruff check" "ruff format --check" mypy lint-imports; do \
		$(BIN)/$$check || status=1; \
	done; \
	exit $$status

check-deploy:  ## Hold manifests and Dockerfile against Kubernetes' schemas, checkov and hadolint
	@deploy/check

format: $(INSTALLED)  ## Format the code and sort its imports
	@$(BIN)/ruff check --select I --fix
	@$(BIN)/ruff format

demo: $(INSTALLED)  ## Index this repository's documentation and run five queries against it
	@$(BIN)/python bench/demo.py

openapi: $(INSTALLED)  ## Write the API description to openapi/openapi.json
	@$(BIN)/braid openapi --write

lock: $(BIN)/uv  ## Resolve the dependencies again and write both lock files
	@$(COMPILE) --group dev -o requirements.lock
	@$(COMPILE) --group build --constraint requirements.lock --no-annotate -o deploy/requirements.lock

bench: $(INSTALLED)  ## Measure what a search costs beyond its SQL
	@$(BIN)/python bench/search_overhead.py $(ARGS)

bench-chunking: $(INSTALLED)  ## Compare chunks of our chunker with given ones by passages (ARGS="FOLDER --cache DIR")
	@$(BIN)/python bench/chunking.py $(ARGS)

bench-dense: $(INSTALLED)  ## Recall, filters and cost of the dense leg on 100,000 vectors (minutes)
	@$(BIN)/python bench/dense.py $(ARGS)

bench-http: $(INSTALLED)  ## Compare hybrid search over HTTP with the least it can be, on 150,000 chunks (many minutes)
	@$(BIN)/python bench/search_http.py $(ARGS)

bench-ingest: $(INSTALLED)  ## Compare indexing client vectors with a bare COPY and INSERT of the same rows (minutes)
	@PYTHONPATH=tests $(BIN)/python bench/ingest.py $(ARGS)

bench-metrics: $(INSTALLED)  ## Measure what the metrics of a search cost it
	@$(BIN)/python bench/metrics_cost.py

bench-quality: $(INSTALLED)  ## Search quality on evaluation sets in BEIR layout (ARGS="FOLDER --cache DIR")
	@$(BIN)/python bench/quality.py $(ARGS)

bench-lexical: $(INSTALLED)  ## Compare the lexical leg with stock Postgres rankings on 150,000 chunks (minutes)
	@$(BIN)/python bench/lexical.py $(ARGS)

bench-reindex: $(INSTALLED)  ## Measure what clients notice of a re-index and of a large deletion (minutes)
	@$(BIN)/python bench/reindex.py $(ARGS)

bench-neighbours: $(INSTALLED)  ## What 64 clients of one team cost the searches of another
	@$(BIN)/python bench/neighbours.py $(ARGS)

faults: $(INSTALLED)  ## Search while database and processes restart, replicas die or lag and clients are slow (minutes)
	@PYTHONPATH=tests $(BIN)/python bench/faults.py $(ARGS)

load: $(INSTALLED)  ## Send four times the searches that a process can answer, for a minute (2 minutes)
	@$(BIN)/python bench/load.py $(ARGS)

emulate-image:  ## Do what the Dockerfile says without a container runtime, then start it (minutes)
	@$(PYTHON) bench/emulate_image.py

faults-indexing: $(INSTALLED)  ## Load 2,000 documents while worker, database and providers fail (minutes)
	@PYTHONPATH=tests $(BIN)/python bench/load_faults.py $(ARGS)

clean:  ## Remove the environment and everything that was built or cached
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find service migrations tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements.lock pyproject.toml
	@found=; for python in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11 python; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "make: Python 3.11 or newer is needed: install it or say where it is (make PYTHON=/path/to/python3)" >&2; \
		exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "make: $$found has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)" >&2; \
		exit 1; \
	fi; \
	[ -x $(BIN)/python ] || "$$found" -m venv $(VENV)
	@echo "installing into $(VENV), a few minutes the first time"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(INSTALLED)

$(BIN)/uv: $(INSTALLED)
	@$(PIP) install uv
