# Python 3.11 or newer and make are all that has to be there: every target sets up what it needs. `make help` lists them.

VENV   := .venv
RUN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BROKEN := $(VENV)/.installing
LOCK   := requirements.lock
# the service alone, for the container image: the same versions without the extras
SLIM   := requirements-service.lock
# what the image's wheel is built with, at the same versions
BUILD  := requirements-build.lock

# a Python of your choice: make venv PYTHON=/opt/python3.12/bin/python3
PYTHON ?=
# passed on: make test ARGS="tests/subject -x", make demo ARGS="--scale 3"
ARGS   ?=
# tests wait for Kafka more than for the processor: four processes, each with a broker of its own, keep two cores busy.
# In the order of their folders: by the number of tests, long files with a single one would come last, to one process alone
# A process that crashes ends the run: it would be started again, and crash again
SIDE_BY_SIDE ?= -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
NAME   ?=

# kernels that check every index, in a cache of their own
CHECKED := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.kernels-checked
KERNEL_TESTS := $(addprefix tests/,consumer dispatch index match output replies scan stress subject worker/dispatch_io)

.DEFAULT_GOAL := help
.PHONY: help venv demo kernels test test-long test-bounds lint format bench docs lock jars sbom audit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## set up .venv with the locked versions; at once when nothing has changed

demo: $(STAMP) ## filter real flight records out of a real Kafka topic, and check the result
	@$(RUN)/overlay demo $(ARGS)

# once for all: several processes that compile at the same time take so long that tests give up waiting
kernels: $(STAMP) ## compile the numeric code ahead of its first use
	@echo "compiling kernels"
	@$(RUN)/python -m overlay.worker.warmup

test: $(STAMP) ## lint, then every test but the long ones
	@$(MAKE) --no-print-directory -j 2 lint kernels
	@echo "pytest"
	@$(RUN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE) $(ARGS)

test-long: $(STAMP) ## every test, with other examples each time and many more rounds: fuzzing, kill -9, checked kernels
	@$(MAKE) --no-print-directory -j 2 lint kernels
	@echo "pytest, long"
	@OVERLAY_EXAMPLES=new OVERLAY_FUZZ=100000 OVERLAY_KILLS=30 OVERLAY_SCRIPTS=1000 OVERLAY_FILTER_PAIRS=20000 OVERLAY_PLANS=2000 OVERLAY_COMINGS=40 OVERLAY_STRESS_S=600 OVERLAY_STORM_S=240 OVERLAY_SIM_SEEDS=20000 $(RUN)/python -m pytest --timeout 3000 $(ARGS)
	@$(if $(strip $(ARGS)),,$(MAKE) --no-print-directory test-bounds)

test-bounds: $(STAMP) ## the tests of kernels, and chaos, with kernels that check every index
	@echo "compiling kernels with bounds checks"
	@$(CHECKED) $(RUN)/python -m overlay.worker.warmup
	@echo "pytest, kernels with bounds checks"
	@$(CHECKED) $(RUN)/python -m pytest -m "not kafka" --timeout 3000 $(or $(ARGS),$(KERNEL_TESTS))
	@$(if $(strip $(ARGS)),,$(CHECKED) $(RUN)/python -m pytest --timeout 3000 tests/chaos)

lint: $(STAMP) ## ruff and mypy
	@echo "ruff check"
	@$(RUN)/ruff check --quiet .
	@echo "ruff format --check"
	@$(RUN)/ruff format --quiet --check . || { echo "some files are not formatted (above). Run: make format" >&2; exit 1; }
	@echo "mypy"
	@$(RUN)/mypy

format: $(STAMP) ## write the code as ruff formats it
	@$(RUN)/ruff check --quiet --fix-only .
	@$(RUN)/ruff format .

bench: $(STAMP) ## measure beside what you would use instead: make bench NAME=scan
	@if [ -z "$(NAME)" ]; then echo "which bench? For example: make bench NAME=scan" >&2; exit 2; fi
	@$(RUN)/python -m bench $(NAME) $(ARGS)

docs: $(STAMP) ## build the site of the documents, build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs build --quiet --config-file docsite/mkdocs.yml $(ARGS)
	@echo "build/site/index.html is the site"

# `fewest`: one version of a package for every Python, so that what passes on one passes on the others
lock: $(STAMP) ## resolve the dependencies anew; ARGS=--upgrade takes newer versions
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(RUN)/uv pip compile pyproject.toml --quiet --all-extras --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --output-file $(LOCK) $(ARGS)
	@$(RUN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --constraints $(LOCK) \
	  --output-file $(SLIM)
	@sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(RUN)/uv pip compile - --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --constraints $(LOCK) \
	  --output-file $(BUILD)
	@echo "$(LOCK), $(SLIM) and $(BUILD) are up to date"

jars: $(STAMP) ## write the checksums of the broker's and Spark's jars anew, after a change of ivy.xml
	@$(RUN)/python -m overlay.local.jar_sums

sbom: $(STAMP) ## write the bills of materials, build/sbom*.cdx.json
	@$(RUN)/python -m supply.sbom

audit: $(STAMP) ## look for known vulnerabilities of the locked versions
	@$(RUN)/python -m supply.audit

clean: ## remove .venv, caches and builds
	@rm -rf $(VENV) .kernels-checked .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An install that was broken off leaves $(BROKEN) behind: half a package can look like a whole one to pip, so the next
# run begins with an empty folder. The stamp is written last. venv refuses a link, so a linked .venv is followed first.
$(STAMP): $(LOCK) pyproject.toml
	@python=; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "no Python 3.11 or newer among: $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)." \
	    "Install one, or name it: make venv PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$python cannot make virtual environments: its modules venv and ensurepip are missing." \
	    "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi; \
	clear=; if [ -e $(BROKEN) ]; then clear=--clear; fi; \
	folder=$$(cd $(VENV) 2>/dev/null && pwd -P || echo $(VENV)); \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $$clear "$$folder" && touch $(BROKEN)
	@echo "installing $$(grep -c '^[a-z].*==' $(LOCK)) packages at the locked versions: a minute or two the first time"
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(LOCK)
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -f $(BROKEN) && touch $@
	@echo "$(VENV) is ready"
