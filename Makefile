# Everything starts here; each target does the set-up that it needs. `make` alone lists the targets.
#
# One profile, --release, everywhere: a second one would compile the LibTorch bindings again.

CARGO ?= cargo
TRACE := target/release/trace
RUNNER := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo "nextest run" || echo "test")

.PHONY: help setup build quickstart reproduce test test-long lint

help:
	@echo "make quickstart          set up, build, run the four steps on the embedded default; ends in a table of pass rates"
	@echo "make quickstart SMOKE=1  the same, small everywhere, in under a minute after the build"
	@echo "make test                every test"
	@echo "make test-long           what takes longer than a quarter of an hour: many kills"
	@echo "make reproduce           the whole experiment, three seeds with baselines and curves; hours, goes on where it was"
	@echo "make lint                rustfmt, clippy and rustdoc, warnings denied"
	@echo "make build               the binaries, in target/release"
	@echo "make setup               LibTorch, in .libtorch"

setup:
	@scripts/setup.sh

build: setup
	$(CARGO) build --release --locked --workspace --bins

quickstart: build
	$(TRACE) run configs/$(if $(SMOKE),smoke,quickstart).toml

reproduce: build
	scripts/reproduce.sh

# Tests of Python environments start the worker, which must lie beside them.
test: build
	$(CARGO) $(RUNNER) --release --locked --workspace

test-long: build
	$(CARGO) test --release --locked --workspace -- --ignored

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps
