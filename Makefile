# `make demo` shows the library at work, `make test` runs every check. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Many small processes: one thread each is far faster than letting them compete for the cores.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: demo test check format slow lowest docs flaky reliability mutation bench judges package wheels release clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    ten tasks on real digits, four methods, one table (about a minute)"
	@echo "make test    format, lint, types and tests"
	@echo "make slow    the long tests"
	@echo "make docs    the site, in build/site; warnings are errors"
	@echo "make lowest  the tests with the oldest packages that pyproject.toml admits"
	@echo "make package  source distribution and wheel in dist/, checked as an index checks them"
	@echo "make wheels  the wheel in an empty environment for each extra"
	@echo "make release  walks the checklist of a release; publishes nothing"
	@echo "make reliability  faults on every operation, a million changed files; writes the counts"
	@echo "make mutation  mutants of the store, the codec, the allocation and the seeding"
	@echo "make flaky   tests with processes, threads or clocks, again and again, idle and under load"
	@echo "make bench   speed and memory, as ratios measured in one run"
	@echo "make judges  our metrics and splits beside those of Avalanche and continuum, in an environment of their own"
	@echo "make format  rewrite the sources in the house format"

define install
	$(PYTHON) -c 'import sys; sys.exit("halrp needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef

.venv/lab: pyproject.toml constraints.txt
	$(call install,lab)
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	$(call install,dev)
	@touch .venv/lab $@

demo: .venv/lab
	$(BIN)/python -m halrp.lab.demo

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2 -m "not slow"

slow: .venv/dev
	$(BIN)/python -m pytest -n 2 -m slow

lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[dev]'
	.venv-lowest/bin/python -m pytest -n 2 -m "not slow" --ignore=tests/lab/report/test_browser.py

docs: .venv/dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "open build/site/index.html"

package: .venv/dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

wheels: .venv/dev
	$(BIN)/python -m tests.package.wheels

release: .venv/dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.package.release

reliability: .venv/dev
	$(BIN)/python -m tests.reliability --json results/reliability/faults.json

mutation: .venv/dev
	$(BIN)/python -m tests.mutation --json results/reliability/mutation.json

flaky: .venv/dev
	$(BIN)/python -m tests.repeat --times 20

bench: .venv/dev
	$(BIN)/python -m benchmarks.train_step --json results/benchmarks/train_step.json
	$(BIN)/python -m benchmarks.memory --json results/benchmarks/memory.json
	$(BIN)/python -m benchmarks.predict_one --json results/benchmarks/predict_one.json
	$(BIN)/python -m benchmarks.mixed_batch --json results/benchmarks/mixed_batch.json
	$(BIN)/python -m benchmarks.many_tasks --json results/benchmarks/many_tasks.json
	$(BIN)/python -m benchmarks.batches --json results/benchmarks/batches.json
	$(BIN)/python -m benchmarks.checkpoints --json results/benchmarks/checkpoints.json
	$(BIN)/python -m benchmarks.any_task --json results/benchmarks/any_task.json
	$(BIN)/python -m benchmarks.lab_overhead --json results/benchmarks/lab_overhead.json
	$(BIN)/python -m benchmarks.serve_store --json results/benchmarks/serve_store.json

judges: pyproject.toml tests/judges/requirements.txt
	test -x .venv-judges/bin/python || $(PYTHON) -m venv .venv-judges
	.venv-judges/bin/python -m pip install --quiet --disable-pip-version-check -e '.[lab]' -r tests/judges/requirements.txt
	.venv-judges/bin/python -m tests.judges

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
