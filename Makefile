# The few verbs of this project. `make` alone explains them.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MODEL ?= gpt-4o
FILE ?= examples/coding-agent.json

.DEFAULT_GOAL := help
.PHONY: help run test test-all lint format bench clean

help: ## Show this help
	@echo "Refold: keep LLM conversations inside the context window without losing anything."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "The first verb you use creates .venv. Another Python: make test PYTHON=python3.13"

run: $(READY) ## Show the context window of a transcript (FILE=..., MODEL=...)
	@$(BIN)/refold context "$(FILE)" --model "$(MODEL)"

test: lint ## Lint, then run the fast tests on all cores
	@$(BIN)/pytest -n auto -q -m "not slow"

test-all: lint ## Lint, then run every test, the long campaigns too
	@REFOLD_HYPOTHESIS=thorough $(BIN)/pytest -n auto -q

lint: $(READY) ## Check style, types and layers; silent when all is well
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "hint: make format"; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }

format: $(READY) ## Rewrite the code in the house style
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

bench: $(READY) ## Measure the speed promises
	@$(BIN)/python -m benchmarks.run

clean: ## Remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: made once, installed again only when pyproject.toml changes.
$(READY): pyproject.toml
	@$(PYTHON) -c '' 2>/dev/null || { \
	    echo "error: there is no '$(PYTHON)' here"; \
	    echo "hint: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: Refold needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)"; \
	    echo "hint: name a newer one: make PYTHON=python3.13"; exit 1; }
	@if command -v uv >/dev/null; then \
	    $(BIN)/python -c '' 2>/dev/null || uv venv --quiet --clear --python "$(PYTHON)" .venv || exit 1; \
	    uv pip install --quiet --python $(BIN)/python --editable '.[dev]' || exit 1; \
	else \
	    $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
	        rm -rf .venv; echo "hint: on Debian and Ubuntu: apt install python3-venv"; exit 1; }; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' || exit 1; \
	fi
	@touch $@
