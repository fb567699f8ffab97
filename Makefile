# Everything starts here: `make up` runs the product, `make test` proves it. Neither needs anything but Python 3.11+.
# The virtual environment builds itself from the pinned files, once, and again only when the pins change.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GENERATORS := .venv-generators
NODE_GENERATORS := .node-generators
# An image may switch byte code off for everybody; each of our many processes would then compile all code again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up test check unit docs pins bench soak test-interop clean help

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(VENV)/.synced: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Handbill needs Python 3.11 or newer; set PYTHON=/path/to/it"; exit 1; }
	@echo "1/3 Making the virtual environment in $(VENV) (once; again only when the pins change)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "2/3 Installing $$(grep -c == requirements/dev.txt) packages, the engines among them (about 1.2 GB)" >&2
	@$(BIN)/uv pip sync --quiet --require-hashes requirements/dev.txt
	@echo "3/3 Installing Handbill" >&2
	@$(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

$(GENERATORS)/.synced: requirements/generators.txt $(VENV)/.synced
	@test -x $(GENERATORS)/bin/python || $(PYTHON) -m venv --without-pip $(GENERATORS)
	@$(BIN)/uv pip sync --quiet --require-hashes --python $(GENERATORS)/bin/python requirements/generators.txt
	@touch $@

# Where Node is not there, this makes nothing, and the test of the TypeScript client is left out.
$(NODE_GENERATORS)/.synced: tests/typescript_client/package-lock.json
	@if command -v npm >/dev/null; then \
		rm -rf $(NODE_GENERATORS) && mkdir $(NODE_GENERATORS) && \
		cp tests/typescript_client/package.json tests/typescript_client/package-lock.json $(NODE_GENERATORS) && \
		cd $(NODE_GENERATORS) && npm ci --silent --no-audit --no-fund --ignore-scripts && touch .synced; \
	fi

up: $(VENV)/.synced ## start everything and print where to look
	@$(BIN)/handbill up

check: $(VENV)/.synced ## lint, types of code, tests and benches, imports, our own lints: under a minute
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.architecture.lints

unit: $(VENV)/.synced ## the tests that need no engine
	@$(BIN)/pytest -q tests/unit

test: check $(GENERATORS)/.synced $(NODE_GENERATORS)/.synced ## everything that proves the laws, in short form
	@$(BIN)/pytest -q -n 3 --dist worksteal tests

docs: $(VENV)/.synced ## write the generated pages anew
	@$(BIN)/python -m tests.architecture.pages

pins: ## resolve the pinned files anew from pyproject.toml
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	@for set in run dev; do \
		group=$$( [ $$set = dev ] && echo "--group dev" ); \
		$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
			--override requirements/slim.override --extra telemetry $$group pyproject.toml -o requirements/$$set.txt || exit 1; \
	done
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--group generators -o requirements/generators.txt

test-interop: $(VENV)/.synced ## Node producers, Bull Board, clients in Node and Chromium against us (needs both)
	@$(BIN)/python -m tests.interop

bench: $(VENV)/.synced ## every bench, and a table at the end
	@$(BIN)/python -m benches

bench-%: $(VENV)/.synced
	@$(BIN)/python -m benches.$(subst -,_,$*) $(if $(QUICK),--quick)

soak: $(VENV)/.synced ## the long forms, seeded; evidence goes to docs/evidence
	@$(BIN)/python -m tests.soak

soak-%: $(VENV)/.synced
	@$(BIN)/python -m tests.soak $(subst -,_,$*)

clean: ## delete what was built, never data: `handbill reset` removes that, and asks first
	rm -rf $(VENV) $(GENERATORS) $(NODE_GENERATORS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
