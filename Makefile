# Two commands on a bare machine: `make demo` and `make test`. `make` alone says what there is.
SHELL := /bin/sh
export PATH := $(PATH):$(HOME)/.cargo/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long bench-check clean

# In CI a Cargo.lock that does not fit the manifests is an error.
CARGO_LOCKED := $(if $(CI),--locked)
export CARGO_LOCKED

help:
	@echo 'make demo         install what is missing, build, compile a model, run it, print where the report is'
	@echo 'make test         what CI runs: formatting, lints, dependencies of the runtime, all tests'
	@echo 'make test-long    all tests and the long ones (all 2^32 inputs of the functions of P1, ...)'
	@echo 'make bench-check  build every benchmark and run each one once'
	@echo 'make setup        install what is missing, no more'
	@echo 'make clean        remove target/'

setup:
	@scripts/setup

demo: setup
	cargo build $(CARGO_LOCKED) --release --package unglue
	@scripts/demo

test: setup
	cargo fmt --all --check
	@scripts/check-deps
	cargo clippy $(CARGO_LOCKED) --workspace --all-targets --features long-tests -- -D warnings
	cargo test $(CARGO_LOCKED) --workspace --no-fail-fast

test-long: setup
	UNGLUE_LONG_TESTS=1 cargo test $(CARGO_LOCKED) --workspace --no-fail-fast --features long-tests

# cargo takes it for an error when there is no benchmark at all.
bench-check: setup
	@if ls benches/*.rs */benches/*.rs >/dev/null 2>&1; then \
	    set -x; cargo test $(CARGO_LOCKED) --workspace --release --bench '*'; \
	else echo 'bench-check: there is no benchmark yet'; fi

clean:
	cargo clean
