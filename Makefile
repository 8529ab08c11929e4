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
	@echo 'make test-long    all tests and the long ones (all 2^32 inputs of the functions of P1, the page in Chromium, ...)'
	@echo 'make bench-check  what must hold by the clock: compile time and memory, GEMV bandwidth'
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
	cargo clippy $(CARGO_LOCKED) --package unglue --no-default-features -- -D warnings
	cargo test $(CARGO_LOCKED) --workspace --no-fail-fast

test-long:
	@scripts/setup --browser
	UNGLUE_LONG_TESTS=1 cargo test $(CARGO_LOCKED) --workspace --no-fail-fast --features long-tests

bench-check: setup
	cargo bench $(CARGO_LOCKED) --package unglue --bench check

clean:
	cargo clean
