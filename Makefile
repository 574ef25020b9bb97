# undertow: everything from a fresh clone with Python 3.11+, make and a package registry.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
WORKERS ?= 2
# Write bytecode even if the environment disables it: without bytecode every process starts seconds later.
export PYTHONDONTWRITEBYTECODE :=
TORCH := src/undertow/torch src/undertow/analysis/torch.py src/undertow/analysis/census.py \
	src/undertow/analysis/equilibrate.py tests/torch tests/analysis/test_torch.py tests/analysis/test_census.py \
	tests/analysis/test_equilibrate.py
# the instruments that compile for long; `make test-explore` tests all of them, in one process that compiles once
EXPLORE := tests/explore/test_averaged.py tests/explore/test_balance.py tests/explore/test_own.py \
	tests/explore/test_phases.py tests/explore/test_label_noise.py tests/explore/test_explorer_in_chromium.py
QUICK := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

.PHONY: help setup lock verify check lint types test test-torch test-torch-all test-integrations test-report test-explore explore test-all browser faults mutants bench docs docs-version gallery dist test-wheel test-wheel-all clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: .venv/.done ## create a virtual environment in .venv with undertow and its test tools

.venv/.done: pyproject.toml constraints.txt requirements/dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --no-deps --require-hashes -r requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# without hashes: PyTorch alone, whose builds for processors and for accelerators have the same version
.venv/.done-torch: .venv/.done requirements/torch-test.txt
	$(PIP) --no-deps --require-hashes -r requirements/torch-test.txt
	$(PIP) -c constraints.txt torch==2.13.0
	@touch $@

.venv/.done-integrations: .venv/.done-torch
	$(PIP) -c constraints.txt --no-build-isolation -e '.[dev,torch-test,integrations]'
	@touch $@

.venv/.done-bench: .venv/.done
	$(PIP) -c constraints.txt --no-build-isolation -e '.[dev,bench]'
	@touch $@

.venv/.done-docs: .venv/.done requirements/docs.txt
	$(PIP) --no-deps --require-hashes -r requirements/docs.txt
	@touch $@

.venv/.done-release: .venv/.done requirements/release.txt
	$(PIP) --no-deps --require-hashes -r requirements/release.txt
	@touch $@

explore: setup ## open the explorer in the browser: instruments with sliders, theory beside simulation
	$(BIN)/undertow explore

lock: ## write requirements/*.txt: the packages of the gate with the hashes of all their files, from constraints.txt
	@test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv==0.13.8; }
	$(PYTHON) .ci/lock.py .venv-lock/bin/uv

verify: setup ## run every claim at the smallest scale and write undertow-report/report.html
	$(BIN)/undertow verify --scale smoke --out undertow-report

check: lint types ## lint and types

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/ty check

test: check ## lint, types, fast tests and examples in docstrings (compiled with fewer optimisations, which halves the time)
	$(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) $(TORCH:%=--ignore=%) $(EXPLORE:%=--ignore=%) \
	  -m 'not slow and not browser and not docs'

test-torch: .venv/.done-torch ## test the PyTorch bridge on models of transformers and PEFT with random weights
	OMP_NUM_THREADS=1 $(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow' $(TORCH)

test-torch-all: .venv/.done-torch ## test-torch with the slow tests: every census for five seeds
	OMP_NUM_THREADS=1 $(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) $(TORCH)

test-integrations: .venv/.done-integrations ## test the callbacks with Trainer, Lightning, Accelerate, trl and two processes
	OMP_NUM_THREADS=1 $(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) tests/torch/integrations tests/torch/monitor/test_ranks.py

test-report: setup browser ## test report.html in Chromium: mouse, keyboard, phone, dark scheme, print
	$(BIN)/python -m pytest -q -m browser tests/verification

test-explore: setup browser ## test the explorer: its instruments, its server, and its pages in Chromium
	$(subst level=0,level=1,$(QUICK)) $(BIN)/python -m pytest -q tests/explore tests/cli/test_explore.py

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; \
	else \
	  echo "this command needs Chromium: install it (Debian: apt-get install chromium) and run this again." >&2; exit 1; \
	fi

test-all: check ## test with the slow tests and default compilation
	$(BIN)/python -m pytest -q -n $(WORKERS) $(TORCH:%=--ignore=%) -m 'not browser and not docs'

faults: setup ## inject 1,000 faults into sweeps, verify and report (kills, full disks, damage) and write docs/faults.md
	@rm -rf .faults
	$(BIN)/python -m tests.execution.faults .faults 1000 0 docs/faults.md
	@rm -rf .faults

mutants: setup ## mutation testing: run the fast tests on over 300 small changes of the source and write docs/mutants.md
	$(QUICK) $(BIN)/python tests/mutants.py --workers $(WORKERS)

bench: .venv/.done-bench ## measure the speed against numba, NumPy and PyTorch and write benchmarks/results
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.readme

docs: .venv/.done-docs .venv/.done-torch browser ## run every tutorial and code block of the documentation and build it in site/
	OMP_NUM_THREADS=1 $(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) -m docs tests/docs/test_notebooks.py
	$(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m docs tests/docs --ignore tests/docs/test_notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

docs-version: .venv/.done-docs ## build the documentation of this version on the local branch gh-pages, with the alias latest
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=. DOCS_VERSIONS=mike NO_MKDOCS_2_WARNING=1 sh -ec ' \
	  mike deploy --update-aliases "$$(python -c "import undertow; print(undertow.__version__)")" latest; \
	  mike set-default latest'

gallery: verify ## run every claim at the smallest scale and write the figures to docs/gallery
	$(BIN)/python -m docs.gallery undertow-report

dist: .venv/.done-release ## build the wheel and the source distribution in dist/ and check them with twine
	@rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

test-wheel: dist ## install the wheel in a fresh environment outside the clone and verify five cheap claims there
	$(BIN)/python .ci/wheel.py dist/*.whl

test-wheel-all: dist ## test-wheel with every claim
	$(BIN)/python .ci/wheel.py dist/*.whl --all

clean: ## remove .venv, the caches of tools, site/ and dist/
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .notebooks site dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
