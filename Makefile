# Entry points. Each target first installs what it needs (as root, on Debian) or lists what is missing.
#
#   make build    target/release/expressway, and its debug information apart in expressway.debug
#   make demo     a real clip over HTTP/3 in every mode of this machine, and a table
#   make test     the gate; SECTIONS="fmt e2e" runs some of it (scripts/test --list)
#   make test-guest     what CI runs besides: agents, captures, XDP dispatchers, bonds, VLANs and benchmarks in emulated guests
#   make ci         both at once, as CI does
#   make test-instructions   whether a main path of the QUIC endpoint takes more instructions than before
#   make test-drivers   AF_XDP on more emulated NICs: igb with RSS, virtio-net with several queues, and more of captures
#   make test-kernels   every BPF program on Debian's kernels from 5.10 on, and XDP programs in a dispatcher; writes docs/kernels.md
#   make package  target/package: expressway_VERSION_ARCH.deb with its symbols apart, and the root of a container image
#   make test-packages  builds them, checks them with their linters, installs, upgrades and purges them
#   make test-hostile   hostile clients beside a well-behaved one, whose p99 may at most double
#   make bench    the short version of the benchmark suite; SCENARIOS="..." (run in full) and BENCH_FLAGS="..." are passed on

SHELL := /bin/bash
.DELETE_ON_ERROR:
export PATH := $(HOME)/.cargo/bin:$(PATH)

TARGET := $(or $(CARGO_TARGET_DIR),target)
BINARY := $(TARGET)/release/expressway
SECTIONS ?=
SCENARIOS ?=
BUILD_FLAGS ?=
BENCH_FLAGS ?=

.PHONY: build package demo test ci test-guest test-instructions test-packages test-drivers test-kernels test-hostile soak bench audit fmt lint doc patched setup clean

build: setup
	cargo build --release --locked -p expressway $(BUILD_FLAGS)
	objcopy --only-keep-debug $(BINARY) $(BINARY).debug
	objcopy --strip-debug --add-gnu-debuglink=$(BINARY).debug $(BINARY)

package: build
	scripts/setup packages
	scripts/package deb
	scripts/package image

demo: build
	scripts/setup demo
	scripts/peers clip python
	python3 scripts/demo.py --binary $(BINARY)

test:
	scripts/setup build test
	scripts/test $(SECTIONS)

# Both at once, which takes less than one after the other.
ci:
	scripts/setup build test
	scripts/test --ci

test-guest:
	scripts/setup build test
	scripts/test clippy virtio beside guest_bench

test-instructions:
	scripts/setup build test
	scripts/test instructions

test-packages:
	scripts/setup build
	scripts/test build packages

test-drivers:
	scripts/setup build test
	scripts/test build drivers

test-kernels:
	scripts/setup build test
	scripts/test build kernels

test-hostile:
	scripts/setup build test
	scripts/test build hostile

# Hours of everything at once: SOAK_MINUTES says how long.
soak:
	scripts/setup build test
	scripts/test build soak

bench: build
	scripts/setup bench
	cargo build --release --locked -p expressway-load
	for peer in scripts/nginx "scripts/peers caddy" "scripts/peers envoy" "scripts/peers quicgo_server"; do \
	  $$peer || echo "bench: goes on without what $$peer makes" >&2; done
	EXPRESSWAY_COMMIT=$$(git describe --always --dirty) $(BINARY) bench $(if $(SCENARIOS),,--tour) $(BENCH_FLAGS) $(SCENARIOS)

# Cargo finds no quiche without it.
audit fmt lint doc: patched
patched:
	scripts/patched

audit:
	python3 scripts/audit.py

fmt:
	cargo fmt --all

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --all-features -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

setup:
	scripts/setup build

clean:
	rm -rf $(TARGET) target fuzz/target patched
