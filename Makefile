# One command for everything, the same ones in CI (.ci/run calls `make test`). Rust is all that has to be there; what a target
# needs besides it installs itself: from Debian when run as root, from package registries into .tools/.
# `make` without a target lists them.

CARGO ?= cargo
# Where cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
SEEDS ?= 200
INPUT ?=

CORES ?= 0,1

comma := ,
# What all features need to be built, libfabric's headers: the program loads the library where it is asked for.
FABRIC := /usr/include/rdma/fabric.h=libfabric-dev
# What is shipped has functions of the same code once: a seventh less. Rust's own linker does that, which is the default on x86-64 alone.
FOLDED := $(if $(filter x86_64,$(shell uname -m)),-C link-arg=-Wl$(comma)--icf=all)

.PHONY: help build dist libtailwater wheel check test test-long miri fuzz demo demo-clusters demo-nodes sim bench bench-peers bench-compare figures spec spec-full doc deny clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 22

build: ## the program, target/release/tailwater, without what takes long to build: benches, BookKeeper, Cassandra, object stores, TLS; nor libfabric
	@.ci/need cc=gcc
	$(CARGO) build --release -p tailwater

dist: ## what is shipped and measured, target/dist/tailwater: everything, optimized as one program, below 40 MB; takes longer
	@.ci/need cc=gcc $(FABRIC)
	$(CARGO) rustc --profile dist -p tailwater --all-features --bin tailwater -- -C strip=symbols $(FOLDED)
	@.ci/size $(TARGET)/dist/tailwater

libtailwater: ## what programs in C link, target/dist/libtailwater.so and .a, optimized as what is shipped; docs/languages.md
	@.ci/need cc=gcc
	$(CARGO) rustc --profile dist -p tailwater-capi --all-features --lib --crate-type cdylib,staticlib

wheel: libtailwater ## the Python package with that library, in target/wheels
	.ci/wheel $(TARGET)/dist/libtailwater.so $(TARGET)/wheels

check: ## formatting and lints
	@.ci/need cc=gcc $(FABRIC)
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

test: ## everything that must hold: check, all tests, 200 simulated seeds, the small TLA+ models with their planted bugs
	@.ci/test

test-long: ## what takes too long for that, in parts of up to 80 minutes; results in docs/test-long.md; PARTS=kills for one
	@.ci/need cc=gcc $(FABRIC) git=git java=openjdk-17-jdk-headless mvn=maven
	.ci/test-long $(PARTS)

miri: ## undefined behaviour in what moves raw bytes; result in docs/miri.md; needs rustup, takes some minutes
	@.ci/need cc=gcc
	.ci/miri

fuzz: ## what reads bytes of others, with coverage, TIME=600 seconds for each of TARGETS; result in docs/fuzz.md
	@.ci/need cc=gcc c++=g++ git=git
	.ci/fuzz $(TARGETS)

demo: build ## one node, six cache backends, 1,000 consumers, about 30 s; INPUT=FILE appends that file instead
	$(TARGET)/release/tailwater demo $(if $(INPUT),--input '$(INPUT)')

demo-clusters: build ## five clusters on three emulated continents, 500 consumers in each, a line cut and a cluster killed, about 60 s
	$(TARGET)/release/tailwater demo-clusters

demo-nodes: ## three active nodes on ZooKeeper and four bookies, groups of three clients, a bookie and the busiest node killed, about a minute
	@.ci/need cc=gcc java=openjdk-17-jdk-headless
	$(CARGO) build --release -p tailwater --features bookkeeper
	.ci/demo-nodes $(TARGET)/release/tailwater

sim: ## SEEDS=n seeds of every simulated scenario
	@.ci/need cc=gcc
	$(CARGO) run --release -q -p tailwater-sim --bin sim -- --seeds $(SEEDS)

bench: dist ## the two loads at a size that takes a minute; `target/dist/tailwater bench --help` has the rest
	$(TARGET)/dist/tailwater bench append --record-bytes 128 --in-flight 4096 --duration-s 15
	$(TARGET)/dist/tailwater bench fanout --consumers 1000 --rate-mbit 150 --duration-s 15

bench-compare: ## Tailwater beside Kafka, NATS, Aeron and Redis in one run, on CORES=0,1; over an hour; needs root; results in target/compare
	@[ "$$(id -u)" = 0 ] || { echo 'make bench-compare needs root, for a network namespace: sudo make bench-compare'; exit 1; }
	-bench/peers/install
	@.ci/need cc=gcc $(FABRIC) setpriv=util-linux
	$(CARGO) build --profile dist -p tailwater -p tailwater-bench --bins --all-features
	$(TARGET)/dist/compare --cores $(CORES) $(ARGS)

bench-peers: ## installs Kafka, NATS and Aeron into .tools/, and memcached and Redis; bench/README.md says how to load them
	bench/peers/install

figures: ## docs/benchmarks.md, docs/figures and docs/img/figures from the result files in bench/results
	@.ci/need cc=gcc git=git
	$(CARGO) run -q -p tailwater-bench --bin figures

spec: ## the small TLA+ models and their planted bugs
	spec/run small

spec-full: ## the paper's two configurations and the largest of ledgers besides; takes an hour and a half
	spec/run full

doc: ## the API documentation, target/doc
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

deny: ## licences, advisories and sources of every dependency; needs cargo-deny
	@command -v cargo-deny >/dev/null || { echo 'first: cargo install --locked cargo-deny'; exit 1; }
	$(CARGO) deny check

clean: ## what was built; the tools in .tools/ stay
	$(CARGO) clean
