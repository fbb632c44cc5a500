# make demo    a model answers, with and without drafting
# make test    ruff, mypy and pytest, all of it
# make fast    ruff, mypy and the tests that need no model: under a minute
# make peers   llama.cpp's own speculative programs, for `edge-tr bench`
# make test-gpu  the tests that need a GPU, with a Vulkan build beside the installed one; without a
#              GPU on Mesa's software device
# make report  the tests that need a GPU, then a file to send to us: edge-tr-report.json
# make build PRESET=cuda    another build of llama.cpp (native/README.md)
# Each sets up what it needs in .venv/; a second time takes seconds.

PYTHON ?= python3
PRESET ?= $(shell cat .venv/native-preset 2>/dev/null || echo cpu)
GPU_PRESET ?= $(if $(filter Darwin,$(shell uname)),metal,vulkan)
BIN := .venv/bin
KERNEL_TESTS = $(wildcard tests/test_kernels*.py)
FAST_TESTS = $(addprefix tests/test_,house_rules.py adjacency.py template.py costs.py expected_costs.py \
  decoder.py decoder_edges.py sampling.py lanes.py plain.py topk.py stats.py text.py turns.py \
  candidates.py matrix_file.py kept_rows.py cli_options.py cli_readme.py isa.py)

.PHONY: demo test test-gpu fast lint report build peers setup clean

demo: setup
	@$(BIN)/edge-tr demo

test: setup lint
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest $(KERNEL_TESTS)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.venv/numba-boundscheck $(BIN)/python -m pytest $(KERNEL_TESTS)
	$(BIN)/python -m pytest

# A process for each file: Mesa's software device dies of what many contexts leave behind.
test-gpu: setup
	@for file in $$(grep -l 'mark.gpu' tests/test_*.py); do \
	  $(BIN)/python native/beside.py --preset $(GPU_PRESET) --software -- \
	    python -m pytest -m gpu -rs $$file || exit 1; \
	done

fast: lint
	$(BIN)/python -m pytest $(FAST_TESTS)

lint: .venv/package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  echo mypy; $(BIN)/mypy .; \
	else echo "mypy is left out: the type hints of NumPy for Python 3.10 are older"; fi

report: setup
	-$(BIN)/python -m pytest -m gpu -rs
	$(BIN)/edge-tr doctor --report edge-tr-report.json

# The package, llama.cpp built for this machine, and the model that commands use by default.
setup: .venv/package
	@$(BIN)/edge-tr model get

build: .venv/venv
	@$(BIN)/python native/build.py --preset $(PRESET) $(if $(CUDA_ARCH),--cuda-arch '$(CUDA_ARCH)') --install
	@echo $(PRESET) > .venv/native-preset

peers: .venv/venv
	@$(BIN)/python native/peers.py --preset $(PRESET) $(if $(CUDA_ARCH),--cuda-arch '$(CUDA_ARCH)')

.venv/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is older than Python 3.10; use make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq -U "pip>=25.1" "setuptools>=77"
	@touch $@

.venv/native-preset: .venv/venv pyproject.toml edge_tr/machine/isa.py native/build.py native/presets.json
	@$(MAKE) --no-print-directory build PRESET=$(PRESET)

.venv/package: .venv/native-preset pyproject.toml
	@$(BIN)/python -m pip install -qq --no-build-isolation -e '.[server]' --group dev
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
