# Everything runs in a virtual environment of its own, .venv, which `make` creates when it is missing or out of date;
# but `make gpu`, for machines without a network, takes the PYTHON that has torch.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
DATA    ?=
WORKERS ?=

# A relative DATA is taken from where make was called; without it data sets are downloaded on first use.
ifneq ($(strip $(DATA)),)
export PHOTONIC_DATA := $(abspath $(DATA))
endif
SWEEP_OPTIONS := $(if $(WORKERS),--workers $(WORKERS))

.DEFAULT_GOAL := help
.PHONY: help install sweep table1 report results ui test test-slow nightly mutants faults bench growth gpu lab docs docs-serve hooks release lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  DATA=DIR        folder with the data sets, instead of a download"
	@echo "  WORKERS=N       cores that a sweep uses (default: all), and the tests (default: 2)"

install: $(READY) ## create .venv and install everything, pinned by constraints.txt

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch first and by its exact pin: that is what selects a CPU build where an index offers one.
	@$(BIN)/python -m pip install -qq --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# Without its dependencies: it pins a numexpr that does not build on current Pythons.
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps "$$(grep '^lightonml==' constraints.txt)"
	@touch $@
	@echo "$(VENV) is ready"

sweep: $(READY) ## the quickstart: a sweep of BP, DFA, TDFA and PDFA on digits, its frontier and report
	@$(BIN)/photonic sweep experiments/quickstart.yaml $(SWEEP_OPTIONS)
	@$(BIN)/photonic report experiments/quickstart.yaml

table1: $(READY) ## Table 1 and Figure 2 of Ohana et al. 2021 on Fashion-MNIST
	@$(BIN)/photonic sweep experiments/ohana2021/table1.yaml $(SWEEP_OPTIONS)
	@$(BIN)/photonic report experiments/ohana2021/table1.yaml

FILE ?= experiments/quickstart.yaml
report: $(READY) ## table and figures of a finished sweep: make report FILE=experiments/ohana2021/table1.yaml
	@$(BIN)/photonic report $(FILE)

RESULTS := quickstart networks table1_seeds table1_mnist certified certified_mnist certified_scattering certified_scattering_between certified_patches certified_beside certified_scattering_mnist certified_scattering_mnist_between certified_scattering_cifar10 certified_patches_cifar10 certified_patches_integer certified_integer certified_secure_integer label_plain label_large tau_h batch_size alignment_heatmap leekifer_readings leekifer_readings_cifar10 leekifer_variants leekifer_hybrid tuned_cifar10 left_out_mnist tuned_fashion left_out_cifar10 pdfa_cifar10 left_out_fashion beside_fashion tuned_mnist pdfa_centered_cifar10 joint_fashion joint_fashion_ends joint_cifar10 joint_cifar10_ends joint_mnist joint_mnist_ends
results: $(READY) ## the sweeps, tables and figures of analysis/results (some twelve hours on two cores)
	@set -e; for name in $(RESULTS); do \
	  file=$$(find experiments -name $$name.yaml); \
	  $(BIN)/photonic sweep $$file $(SWEEP_OPTIONS); \
	  $(BIN)/photonic report $$file; \
	done
	@$(BIN)/python tests/tools/results_text.py $(RESULTS:%=reports/%)

ui: $(READY) ## browse the runs in MLflow's web page, http://127.0.0.1:5000
	@$(BIN)/photonic ui

TESTS := -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder --durations 10
test: $(READY) ## all tests but the slow ones
	@$(BIN)/python -m pytest $(TESTS) -m "not slow and not nightly"

test-slow: $(READY) ## tests of more than two seconds: kills, clusters, servers, committed results, code in docs
	@$(BIN)/python -m pytest $(TESTS) -m slow

nightly: $(READY) ## what takes longest: random faults, all calibrations, benchmarks, mutants, PostgreSQL, the laboratory
	@$(BIN)/python -m pytest -n $(or $(WORKERS),2) --durations 20 -m nightly
	@$(MAKE) --no-print-directory mutants
	@$(MAKE) --no-print-directory lab SHORT=1 IF_POSSIBLE=1
	@mkdir -p reports && git describe --always --dirty --abbrev=40 --exclude '*' > reports/nightly

mutants: $(READY) ## makes the mistakes of tests/data/mutants.json, each in a copy, and runs the test that notices it
	@$(BIN)/python tests/tools/mutants.py

faults: $(READY) ## injects every fault into sweeps and writes the table of analysis/results/faults/README.md
	@PYTHONPATH=. $(BIN)/python tests/tools/faults_table.py

bench: $(READY) ## times a step, Opacus, accounting, tracking and a sweep; writes reports/bench.json
	@PYTHONPATH=. $(BIN)/python tests/benchmarks/bench.py

growth: $(READY) ## times every command with 250 to 16,000 trials in the store; writes reports/growth.json
	@PYTHONPATH=. $(BIN)/python tests/benchmarks/growth.py

lab: $(READY) ## hosts on this machine whose links are cut: the cluster files, and faults (Linux, root; SHORT=1: a part of it)
	@PYTHONPATH=.:tests:tests/tools $(BIN)/python -m lab $(if $(SHORT),short) $(if $(IF_POSSIBLE),--if-possible)

gpu: ## checks and times a GPU with the packages at hand, nothing installed; writes reports/gpu.json
	@PYTHONPATH=. $(PYTHON) tests/benchmarks/gpu.py

# The extra variable silences a notice of the theme about another program.
SITE := NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs
docs: $(READY) ## the documentation's site, in build/site; a link that leads nowhere is an error
	@$(SITE) build --strict --quiet

docs-serve: $(READY) ## show that site, http://127.0.0.1:8000, and build it anew when a page changes
	@$(SITE) serve --strict

hooks: $(READY) ## check style before every commit and types before every push (git hooks)
	@$(BIN)/pre-commit install

release: $(READY) ## wheel and sdist of the version whose tag HEAD has, in dist/
	@git describe --exact-match --tags --match 'v*' > /dev/null 2>&1 || \
	  { echo "HEAD has no tag of a version: git tag -a v1.0.0 -m 'Version 1.0.0'"; exit 1; }
	@test -z "$$(git status --porcelain)" || { echo "files differ from the tag: commit them or put them away"; exit 1; }
	@test "$$(cat reports/nightly 2> /dev/null)" = "$$(git rev-parse HEAD)" || \
	  { echo "make nightly has not passed on this commit: run it first"; exit 1; }
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist .

lint: $(READY) ## style, common errors, types, and known vulnerabilities of the pinned packages
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python tests/tools/audit_dependencies.py constraints.txt

clean: ## remove the virtual environment and caches; the tracking store and reports stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -not -path './mlruns/*' -prune -exec rm -rf {} +
