# The two verbs to know: `make run` (the main experiment) and `make test`. Each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: run test test-fast test-kernels test-fresh lint site deb test-deb deploy p4 bench lock doctor clean setup help

PYTHON := .venv/bin/python
TARGET ?= softswitch
TOPOLOGY ?= experiments/leaf-spine.toml
OUT ?= results/source-routing
BENCH ?= switch
KERNELS ?= 6.1 6.12 7.3
STAGES ?= load doctor live full
RELEASE ?= bookworm

run: setup  ## Run the main experiment: ECMP, source routing and vClos, on 4 leaves, 4 spines and 16 hosts
	.venv/bin/entrain run experiments/source-routing.toml --target $(TARGET) --out $(OUT)

test: .venv/.dev  ## Run all tests; what needs root, BMv2 or p4c is skipped with its reason where that is missing
	$(PYTHON) -m tests $(ARGS)

test-fast: .venv/.dev  ## Run the tests that need neither root nor long
	$(PYTHON) -m pytest -m "not root and not bpf and not slow" $(ARGS)

test-kernels: .venv/.dev  ## Boot Debian's kernels (KERNELS, STAGES) in guests and test entrain there; needs qemu
	$(PYTHON) -m tests.kernels --kernels "$(KERNELS)" --stages "$(STAGES)" $(ARGS)

test-fresh: .venv/.dev  ## `make run` on a fresh Debian (RELEASE) with its own kernel, in a guest; needs qemu, debootstrap
	$(PYTHON) -m tests.kernels.fresh $(RELEASE)

lint: .venv/.dev  ## Check style, types and the formatting of C
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	git ls-files '*.c' '*.h' | xargs .venv/bin/clang-format --dry-run --Werror

site: .venv/.dev  ## Build the site of docs/ in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

deb: setup  ## Build a Debian package of the agent, the controller and the command line in build/
	packaging/build-deb

test-deb: .venv/.dev deb  ## Install that package into a fresh Debian and test it; needs debootstrap, takes minutes
	ENTRAIN_DEB="$$(ls -t build/entrain_*.deb | head -n 1)" $(PYTHON) -m pytest -rs tests/packaging/test_deb.py

deploy: setup  ## Bring up TOPOLOGY on TARGET and set its pipelines and tables; tofino, tofino2: docs/tofino.md
ifneq (,$(filter tofino tofino2,$(TARGET)))
	.venv/bin/entrain deploy --target $(TARGET) --topology $(TOPOLOGY) \
		$(addprefix --program ,$(PROGRAM)) $(addprefix --p4info ,$(P4INFO))
else
	.venv/bin/entrain up $(TOPOLOGY) --target $(TARGET)
	.venv/bin/entrain deploy --target $(TARGET) --network $(basename $(notdir $(TOPOLOGY)))
endif

p4: setup  ## Compile the switch program anew (needs p4c; for Tofino, with its back end)
	$(PYTHON) -m wire
	$(PYTHON) -m p4src.compile
	$(PYTHON) -m p4src.tofino
	$(PYTHON) -m controlplane.generate

bench: setup  ## Measure: BENCH=switch, simulation, host or emulated_switch
	$(PYTHON) -m benchmarks $(BENCH)

LOCK := uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 --group build \
	-c constraints.lock pyproject.toml
lock:  ## Write the hashes of dependencies anew (needs uv)
	$(LOCK) -o requirements.lock
	$(LOCK) --extra dev --extra parquet --extra notebook -o requirements-dev.lock

doctor: setup  ## Check prerequisites, and say how to install what is missing
	.venv/bin/entrain doctor

clean: setup  ## Remove what a crashed run left on the machine
	.venv/bin/entrain clean

setup: .venv/.ready

.venv/.packages: packages.txt
	./setup-packages
	mkdir -p .venv && touch $@

.venv/.ready: .venv/.packages pyproject.toml requirements.lock
	/usr/bin/python3 -m venv --system-site-packages .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/.dev: .venv/.ready requirements-dev.lock
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

help:  ## Show this
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12
