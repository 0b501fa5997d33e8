# The few verbs of this project. `make` alone explains them.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SERVING := .venv/.serving
DOCS := .venv-docs/.ready
SERVED_WITH := cli,server,sqlite,tokens

# The tests start the program hundreds of times: compile it once. `make clean` removes what is written.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test test-all prove smoke-clients test-integrations campaign lint style types format package docs bench clean

help: ## Show this help
	@echo "Refold: keep LLM conversations inside the context window without losing anything."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "The first verb you use creates .venv. Another Python: make test PYTHON=python3.13"

run: $(SERVING) ## Serve the gateway, with a small model on this machine (ARGS="--upstream URL")
	@$(BIN)/refold local install >/dev/null || true
	@$(BIN)/refold serve $(ARGS)

demo: $(SERVING) ## Watch a long agent session stay inside a small window
	@$(BIN)/refold demo $(ARGS)

test: style ## Lint, and run the fast tests on all cores
	@$(call beside-types,$(BIN)/pytest -n auto --dist worksteal -q -m "not slow")

test-all: style ## Lint, and run every test, the long campaigns too
	@$(call beside-types,REFOLD_HYPOTHESIS=thorough $(BIN)/pytest -n auto --dist worksteal -q)

prove: $(READY) ## Take out one behaviour per feature; its tests must fail (ARGS="L7 C5")
	@$(BIN)/python -m scripts.prove $(ARGS)

smoke-clients: $(READY) ## Run installed clients through the gateway, without a network (ARGS="--clients DIR")
	@$(BIN)/python -m scripts.smoke_clients $(ARGS)

test-integrations: $(READY) ## Run the adapters with the real frameworks, each in its own environment (ARGS="langchain")
	@$(BIN)/python -m scripts.test_integrations $(ARGS)

campaign: $(READY) ## Run the long campaigns of durability, for hours; goes on where it was stopped (ARGS="power owners")
	@$(BIN)/python -m scripts.campaign $(ARGS)

lint: style types ## Check style, types and layers; silent when all is well

style: $(READY)
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "hint: make format"; exit 1; }

types: $(READY)
	@$(BIN)/mypy --no-error-summary
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }

# mypy has one core's work for a minute or two where it has not run before: the tests need not wait for it.
define beside-types
$(MAKE) --no-print-directory types & types=$$!; $(1); tests=$$?; \
wait $$types || { echo "error: types or layers are wrong: see above, or run make lint"; exit 1; }; exit $$tests
endef

format: $(READY) ## Rewrite the code in the house style
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

package: $(READY) ## Build the wheel and the sdist, and try each in a bare environment
	@$(BIN)/python -m scripts.package

docs: $(DOCS) ## Write the documentation site into site/; a broken link is an error
	@# With --quiet it would not count the warnings that --strict is about.
	@out=$$(NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict 2>&1) || { echo "$$out" | grep -v '^INFO'; exit 1; }
	@echo "site/index.html"

bench: $(READY) ## Measure the speed promises
	@$(BIN)/python -m benchmarks.run

clean: ## Remove the environment and every cache
	rm -rf .venv .venv-integrations .venv-docs site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: made once, installed again only when pyproject.toml changes. What `make run` needs is little and soon there;
# the small model needs a package that is not built for every machine, and can be done without.
$(READY): pyproject.toml
	@$(check-python)
	@$(call install,dev)
	@touch $@

$(SERVING): pyproject.toml
	@$(check-python)
	@echo "Installing into .venv; this is done once, and takes about a minute."
	@echo "  1 of 2: the gateway ..."
	@$(call install,$(SERVED_WITH))
	@echo "  2 of 2: the engine of the local model ..."
	@$(call install,local,--only-binary xllamacpp) || echo "hint: going on without the local model"
	@touch $@

$(DOCS): pyproject.toml
	@$(check-python)
	@$(PYTHON) -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

define check-python
$(PYTHON) -c '' 2>/dev/null || { \
    echo "error: there is no '$(PYTHON)' here"; \
    echo "hint: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "error: Refold needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)"; \
    echo "hint: name a newer one: make PYTHON=python3.13"; exit 1; }
endef

# $(1): extras, $(2): options of pip.
define install
if command -v uv >/dev/null; then \
    { $(BIN)/python -c '' 2>/dev/null || uv venv --quiet --seed --clear --python "$(PYTHON)" .venv; } && \
    uv pip install --quiet --python $(BIN)/python $(2) --editable '.[$(1)]'; \
else \
    { $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
        rm -rf .venv; echo "hint: on Debian and Ubuntu: apt install python3-venv"; exit 1; }; } && \
    $(BIN)/python -m pip install --quiet --disable-pip-version-check $(2) --editable '.[$(1)]'; \
fi
endef
