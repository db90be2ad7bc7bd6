# Every target works alone from a fresh clone: it makes .venv and installs what it needs.
PYTHON ?= python3
JOBS ?= 2
OUT ?= certificates

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install test test-fast lint format certify bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with the tested set of packages

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "specverify needs Python 3.11 or newer, and '$(PYTHON)' is not: $$($(PYTHON) --version 2>&1)." \
			"Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[hf,dev]'
	@touch $@

test: $(INSTALLED) ## run specverify's own tests
	$(BIN)/python -m pytest -n $(JOBS) tests

test-fast: $(INSTALLED) ## the same without the slow ones
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" tests

lint: $(INSTALLED) ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@rm -rf build/typing && mkdir -p build/typing/specverify
	@cp -R specverify/__init__.py properties fixtures build/typing/specverify/
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED) ## rewrite files the way lint wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The transformers loop is slow, so 2 (inconclusive) is the honest outcome of its run; a violation
# or an error still fails the target.
certify: $(INSTALLED) ## certify the reference decoder and transformers' assisted generation
	$(BIN)/specverify certify reference --pair toy --out $(OUT)
	$(BIN)/specverify certify reference --pair trained --settings filtered --tokens 210000 --out $(OUT)
	$(BIN)/specverify certify transformers --pair trained --settings filtered --tokens 9000 \
		--out $(OUT) || [ $$? -eq 2 ]

bench: $(INSTALLED) ## print the speed ratios of this machine
	@set -e; for script in $(filter-out %/common.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

clean: ## remove what the targets above made
	rm -rf .venv build $(OUT) *.egg-info
