# Everything starts here; each target does the set-up that it needs. `make` alone lists the targets.
#
# One profile, --release, everywhere: a second one would compile the LibTorch bindings again.

CARGO ?= cargo
TRACE := target/release/trace
RUNNER := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo "nextest run" || echo "test")
IGNORED := $(if $(findstring nextest,$(RUNNER)),--run-ignored only,-- --ignored)

.PHONY: help setup build quickstart test test-long lint reproduce

help:
	@echo "make quickstart          set up, build, run the four steps on the embedded default; ends in a table of pass rates"
	@echo "make quickstart SMOKE=1  the same, small everywhere, in under a minute after the build"
	@echo "make test                every test"
	@echo "make test-long           what takes longer: kills, fuzzing, load"
	@echo "make lint                rustfmt, clippy and rustdoc, warnings denied"
	@echo "make reproduce           the full experiment, up to two hours, resumable"
	@echo "make build               the binaries, in target/release"
	@echo "make setup               LibTorch, in .libtorch"

setup:
	@scripts/setup.sh

build: setup
	$(CARGO) build --release --locked --workspace --bins

quickstart: build
	$(TRACE) run configs/$(if $(SMOKE),smoke,quickstart).toml

# Tests of Python environments start the worker, which must lie beside them.
test: build
	$(CARGO) $(RUNNER) --release --locked --workspace

test-long: build
	$(CARGO) $(RUNNER) --release --locked --workspace $(IGNORED)

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps

reproduce: build
	scripts/reproduce.sh $(TRACE)
