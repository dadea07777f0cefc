# The verbs of this project. Each does the set-up it needs by itself; the second time is quick.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
NATIVE_ENV := eval "$$($(PYTHON) native/build_backend.py --print-env)"
NATIVE_SOURCES := $(shell find native -name '*.rs' -not -path '*/target*' -not -path 'native/bench/*') $(wildcard native/Cargo.* native/*/Cargo.toml native/build_backend.py)
# what the tests are about; a result is as old as the newest of them
TESTED := $(shell find schemas src tests tools -type f -not -path '*/__pycache__/*')
ARGS ?=

.PHONY: help setup demo test check unit rust conformance faults soak bench gen clean

help:  ## this text
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/.packages: requirements.lock tools/setup
	@tools/setup packages
	@touch $@

.venv/.native: .venv/.packages pyproject.toml $(NATIVE_SOURCES)
	@tools/setup native
	@touch $@

setup: .venv/.native  ## virtual environment, packages, native module

demo: setup  ## ten seconds of a camera, two consumers, a recorder and Spark, each in a process of its own
	@mkdir -p build && $(PYTHON) examples/demo.py $(ARGS)

test: setup check rust unit conformance  ## every check and test

check: setup  ## formatting, lints, types, layers, generated files
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy --no-error-summary
	@mkdir -p build
	@.venv/bin/lint-imports --no-logo >build/.imports 2>&1 || { cat build/.imports; exit 1; }
	@$(PYTHON) tools/gen.py --check
	@cd native && cargo fmt --check
	@$(NATIVE_ENV) && cd native && cargo clippy --quiet --release --all-targets -p tensor-pool-core -- -D warnings \
	  && cargo clippy --quiet --release -p tensor-pool-binding --features pyo3/extension-module -- -D warnings \
	  && cargo clippy --quiet --release --all-targets -p tensor-pool-bench -p tensor-pool-bench-allocations -- -D warnings

rust: setup  ## tests of the native core, and the commit protocol under the model checker
	@$(NATIVE_ENV) && cd native && cargo test --quiet --release -p tensor-pool-core
	@cd native && RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom cargo test --quiet --release -p tensor-pool-core --test commit_model

unit: setup
	@$(if $(ARGS),,rm -f build/conformance.json)
	@$(PYTHON) -m pytest -q $(ARGS)

# every test, unless they all ran and passed since something changed
build/test-results.json: .venv/.native $(TESTED)
	@rm -f build/conformance.json
	@$(PYTHON) -m pytest -q

conformance: build/test-results.json  ## the 684 rules of the specifications and the tests that show them; runs the tests where they have not passed yet
	@$(PYTHON) tools/conformance.py

faults: setup  ## the experiments of docs/reliability.md at check scale
	@$(PYTHON) tools/faults.py $(ARGS)

soak: setup  ## the counts that take longer than a check may: a hundred million small frames, a million large ones
	@$(PYTHON) tools/faults.py --long $(ARGS)

bench: setup .venv/.peers  ## memory speed beside memcpy, the bare loop, iceoryx2 and zenoh; ARGS="--quick", ARGS="--only latency"
	@mkdir -p build && $(PYTHON) benches/run.py $(ARGS)

# a peer that has no wheel for this machine is left out of the bench, which says so
.venv/.peers: .venv/.packages benches/requirements.lock
	@.venv/bin/uv pip install --quiet --python $(PYTHON) --requirement benches/requirements.lock && touch $@ \
	  || echo "The peers of the bench could not be installed: it runs without them." >&2

gen: setup  ## codecs and layouts from schemas/*.xml
	@$(PYTHON) tools/gen.py

clean:
	@rm -rf build native/target* .venv src/tensor_pool/*.so
