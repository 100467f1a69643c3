# The two commands of a fresh machine are `make train` and `make test`; each does all the set-up it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(wildcard core/*.hpp core/*.cpp core/CMakeLists.txt)

.PHONY: help setup train test check bench peers core-test gate fault soak clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.core  ## make .venv, install everything and build the core

train: setup  ## train a first agent and evaluate it
	$(BIN)/freewheel train CartPole-v1

test: setup  ## run all tests
	$(MAKE) -C core/tests quick
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: setup  ## formatting, lint, types
	$(BIN)/ruff format --check src tests examples benchmarks scripts
	$(BIN)/ruff check src tests examples benchmarks scripts
	$(BIN)/mypy

bench: setup  ## measure, side by side with the peers that are installed (hours)
	$(BIN)/python -m benchmarks replay
	$(BIN)/python -m benchmarks weights
	$(BIN)/python -m benchmarks update
	$(BIN)/python -m benchmarks dqn
	$(BIN)/python -m benchmarks ppo
	$(BIN)/python -m benchmarks control
	$(BIN)/python -m benchmarks worlds
	$(BIN)/python -m benchmarks pixels
	$(BIN)/python -m benchmarks locks --plot build/bench-locks.svg
	$(BIN)/freewheel bench speedup --plot build/bench-speedup.svg
	$(BIN)/python -m benchmarks learn

peers:  ## install the peers to measure against, in .venv-peers and beside it
	bash scripts/peers.sh

core-test:  ## all tests of the C++ core: schedules, ThreadSanitizer, AddressSanitizer (minutes)
	$(MAKE) -C core/tests full

gate: setup  ## the speed of this checkout against the base commit; fails where it lost more than 3 % (an hour)
	$(BIN)/python scripts/speed_gate.py

FAULT ?= 10
MINUTES ?= 30

fault: setup  ## the fault tests with FAULT (10) times the counts of `make test`
	FREEWHEEL_FAULT=$(FAULT) $(BIN)/python -m pytest -o timeout=7200 tests/fault tests/memory/test_processes.py \
	  tests/store/test_checkpoint_faults.py tests/store/test_checkpoint_damage.py tests/store/test_state_damage.py

soak: setup  ## train for MINUTES (30) with a fault every minute; fails if anything grows or is lost
	PYTHONPATH=scripts $(BIN)/python scripts/soak.py --minutes $(MINUTES)

clean:  ## remove what was built and installed
	rm -rf $(VENV) .venv-peers .venv-peers-puffer .venv-peers-sf build core/tests/build

$(VENV)/.packages: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.10 or newer is needed; PYTHON=... names another one."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/requirements.py > $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements.txt
	touch $@

$(VENV)/.core: $(VENV)/.packages $(CORE)
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
	  echo "A C++20 compiler is needed to build the core. Debian, Ubuntu: apt-get install g++."; \
	  echo "Fedora: dnf install gcc-c++. macOS: xcode-select --install."; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@
