# `make` or `make help` lists what there is. Every verb does its own set-up in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
UV := uv==0.13.8
ROOMS := src control storage connectors infra testing

BIN := $(CURDIR)/.venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Driver and workers must be the same Python with the same packages, and no other Spark than ours.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
# Python is started hundreds of times, and would compile all that it imports each time.
unexport SPARK_HOME PYTHONPATH PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo quick test test-slow test-all lint types stack stack-down test-ui bench-ui test-real dist package test-matrix test-iceberg test-comet bench trace bench-operators tpch tpcds unchanged queries fuzz simulate chaos soak counts scale lock java browser

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## a Python environment in .venv with the pinned packages
	@echo "setup: .venv is ready"

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "headgate needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=..."; exit 1; }
	@echo "setup: installing the pinned packages into .venv (a minute when nothing is cached)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --no-compile --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' || true); \
	  test "$${version:-0}" -ge 17 \
	  || { echo "Spark needs Java 17 or newer on PATH or in JAVA_HOME; found: $${version:-none}"; exit 1; }

demo: $(INSTALLED) java  ## an exchange on the embedded stack, step by step
	@$(BIN)/headgate demo

# Most of the time of a small application is Spark's start: its JVMs take their classes from a file.
CLASSES := .venv/classes.jsa

$(CLASSES): $(INSTALLED) tests/quick_java.py | java
	@echo "tests: writing Spark's classes into a file, so that JVMs start sooner (half a minute)"
	@$(BIN)/python -m tests.quick_java \
	  || { echo "tests: this Java writes no such file, so JVMs start as ever"; rm -f $@; touch $@; }

# Files go to the workers in their own order: the longest ones have few tests, and would else come last.
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder

quick: $(INSTALLED)  ## the tests without Spark that take a minute
	@HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n 3 --dist loadfile --ignore=tests/spark --ignore=tests/packaging \
	  -m "not spark and not slow and not real and not package" $(ARGS)

test: $(CLASSES)  ## the tests that need no service and take some minutes
	@$(BIN)/python -m pytest -n 2 $(SIDE_BY_SIDE) -m "not slow and not real and not package" $(ARGS)

test-slow: $(CLASSES)  ## the others that need no service, except those that `make test-real` repeats
	@$(BIN)/python -m pytest -n 2 $(SIDE_BY_SIDE) -m "slow and not repeated and not real and not package" $(ARGS)

test-all: $(CLASSES)  ## all tests that need no service
	@$(BIN)/python -m pytest -n 2 $(SIDE_BY_SIDE) -m "not real and not package" $(ARGS)

# A checker that finds no files reports success: each count is held against the files on disk.
lint: $(INSTALLED)  ## ruff, who may import whom, and hadolint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/hadolint docs/executors.dockerfile
	@expected=$$(find $(ROOMS) -name '*.py' | wc -l); \
	  seen=$$($(BIN)/python -c 'import grimp; print(len(grimp.build_graph("headgate", cache_dir=None).modules))'); \
	  test "$$seen" -ge "$$expected" \
	  || { echo "lint-imports saw $$seen of $$expected modules"; exit 1; }

types: $(INSTALLED)  ## mypy, strict, on the package and on the tests
	@$(BIN)/mypy | tee .venv/types.txt
	@$(BIN)/mypy --explicit-package-bases tests | tee .venv/types-tests.txt
	@check() { \
	  seen=$$(sed -n 's/^Success: no issues found in \([0-9]*\) source files\?$$/\1/p' "$$1"); \
	  expected=$$(find "$${@:2}" -name '*.py' | wc -l); \
	  test "$${seen:-0}" -ge "$$expected" || { echo "mypy saw $${seen:-0} of $$expected files"; exit 1; }; \
	}; check .venv/types.txt $(ROOMS); check .venv/types-tests.txt tests
	@echo 'from headgate.control.ids import job_id; job_id(1)' > .venv/wrong_on_purpose.py
	@($(BIN)/mypy .venv/wrong_on_purpose.py || true) | grep -q 'wrong_on_purpose.*arg-type' \
	  || { echo "mypy takes headgate's types for Any"; exit 1; }

PLAYWRIGHT := playwright==1.65.2
UI_PYTHON := .venv/ui/bin/python

$(UI_PYTHON): requirements.lock pyproject.toml
	@$(PYTHON) -m venv .venv/ui
	@$(UI_PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(UI_PYTHON) -m pip install --quiet --disable-pip-version-check $(PLAYWRIGHT)
	@$(UI_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

browser:
	@command -v "$${CHROMIUM:-chromium}" > /dev/null \
	  || { echo "the live page needs Chromium on PATH, or its path in CHROMIUM"; exit 1; }

test-ui: browser $(UI_PYTHON) stack  ## the live page in Chromium, which must be installed (SCREENSHOTS=docs for new pictures)
	@SCREENSHOTS=$(abspath $(SCREENSHOTS)) $(UI_PYTHON) -m pytest -m "" tests/browser $(ARGS)

stack: $(INSTALLED) java  ## Kafka and MinIO on this machine (the first time: Maven, Go, 5 minutes)
	@$(BIN)/headgate stack up

stack-down: $(INSTALLED)  ## stop Kafka and MinIO
	@$(BIN)/headgate stack down

bench-ui: browser $(UI_PYTHON) stack  ## the live page of a large log: time to the first picture, and memory
	@$(UI_PYTHON) -m tests.browser.figures $(ARGS)

test-real: $(CLASSES) stack  ## the tests on real Kafka and MinIO; starts the stack and leaves it running
	@$(BIN)/python -m pytest -m real -n 3 $(SIDE_BY_SIDE) $(ARGS)

# From a copy of what git knows: setuptools would ship what older builds have left in a work tree.
TREE := .venv/tree

dist: $(INSTALLED)  ## the wheel and the sdist, in dist/
	@rm -rf dist $(TREE) && mkdir -p dist $(TREE)
	@git ls-files -z | tar --create --null --files-from=- | tar --extract --directory $(TREE)
	@$(BIN)/python -m build --no-isolation --outdir dist $(TREE) > .venv/dist.txt 2>&1 \
	  || { cat .venv/dist.txt; exit 1; }
	@$(BIN)/twine --no-color check --strict dist/*

package: dist stack  ## the wheel and the sdist, checked, installed and run in environments of their own
	@$(BIN)/python -m pytest -m package tests/packaging $(ARGS)

VERSIONS ?= 3.5.9 4.0.5 4.1.4 4.2.1 4.3.0
OF_SPARK := features repartition types compiled offload adaptive actions caches commands generated executor_loss

test-matrix: stack $(VERSIONS:%=.venv/matrix/%/.installed)  ## those of Spark, on each PySpark (VERSIONS="4.0.5 4.3.0")
	@lines=(); status=0; \
	for version in $(VERSIONS); do \
	  here=$(CURDIR)/.venv/matrix/$$version; tests="$(OF_SPARK:%=tests/spark/test_%.py)"; \
	  if [[ $$version == 3.* ]]; then tests=; fi; \
	  echo "=== PySpark $$version ==="; \
	  PYSPARK_PYTHON=$$here/bin/python PYSPARK_DRIVER_PYTHON=$$here/bin/python $$here/bin/python -m pytest \
	    -q -m "" -k "not embedded" -W ignore:unclosed:ResourceWarning tests/unit/test_versions.py $$tests \
	    $(ARGS) 2>&1 | tee $$here/log || status=1; \
	  lines+=("$$(printf '%-6s %s' $$version "$$(tail -n 1 $$here/log)")"); \
	done; \
	printf '\n'; printf '%s\n' "$${lines[@]}"; exit $$status

PIP_THERE = $(@D)/bin/python -m pip --quiet --disable-pip-version-check

.venv/matrix/%/.installed: requirements.lock pyproject.toml
	@echo "test-matrix: installing PySpark $* and the pinned packages into $(@D)"
	@$(PYTHON) -m venv $(@D)
	@sed '/^py\(spark\|4j\)==/,/[^\]$$/d' requirements.lock > $(@D)/requirements.lock
	@$(PIP_THERE) install --no-compile --require-hashes -r $(@D)/requirements.lock
	@$(PIP_THERE) install --no-compile pyspark==$*
	@$(PIP_THERE) install --no-deps --no-build-isolation -e .
	@touch $@

# Neither Iceberg nor Comet has a jar for the newest Spark.
OTHERS_SPARK := 4.1.4
ICEBERG := org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0
COMET := org.apache.datafusion:comet-spark-spark4.1_2.13:1.2.0

.venv/jars/%.jar:
	@mvn -q -B -ntp dependency:copy -Dartifact=$($*) -DoutputDirectory=$(CURDIR)/$(@D)/$*
	@ln -f $(@D)/$*/*.jar $@

IN_OTHERS_SPARK = here=$(CURDIR)/.venv/matrix/$(OTHERS_SPARK)/bin; \
	  PYSPARK_PYTHON=$$here/python PYSPARK_DRIVER_PYTHON=$$here/python \
	  ICEBERG_JAR=$(CURDIR)/.venv/jars/ICEBERG.jar COMET_JAR=$(CURDIR)/.venv/jars/COMET.jar \
	  $$here/python -m pytest -m real -W ignore:unclosed:ResourceWarning

test-iceberg: stack .venv/matrix/$(OTHERS_SPARK)/.installed .venv/jars/ICEBERG.jar  ## SQL commands on tables of Iceberg
	@$(IN_OTHERS_SPARK) tests/spark/test_iceberg.py $(ARGS)

test-comet: stack .venv/matrix/$(OTHERS_SPARK)/.installed .venv/jars/COMET.jar  ## queries that Comet runs
	@$(IN_OTHERS_SPARK) tests/spark/test_comet.py $(ARGS)

trace: stack  ## where the time of one query goes, drawn in docs/trace.svg
	@$(BIN)/python -m tests.bench trace $(ARGS)

bench: stack  ## Headgate against Spark's own shuffle, on the local stack
	@$(BIN)/python -m tests.bench $(ARGS)

SF ?= 1
tpch: stack  ## TPC-H by Spark alone and through Headgate (SF=1)
	@$(BIN)/python -m tests.bench tpch --scale $(SF) --rounds 3 $(ARGS)

tpcds: stack  ## TPC-DS by Spark alone, through Headgate and by DuckDB, in eight settings (SF=1)
	@$(BIN)/python -m tests.bench tpcds --scale $(SF) --rounds 1 $(ARGS)

unchanged: stack  ## TPC-H and TPC-DS by an application that does not know Headgate (SF=1)
	@$(BIN)/python -m tests.bench unchanged --scale $(SF) $(ARGS)

bench-operators: stack  ## functions for groups of rows, by Spark alone and through Headgate
	@$(BIN)/python -m tests.bench operators --rounds 1 $(ARGS)

SEEDS ?= 1000
START ?= 0

simulate: $(INSTALLED)  ## whole jobs under faults, one for each seed (SEEDS=1000 START=0)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(START) $(ARGS)

INPUTS ?= 10000000

fuzz: $(INSTALLED)  ## damaged bytes for all that reads bytes (INPUTS=10000000)
	@$(BIN)/python -m tests.property.fuzz --inputs $(INPUTS) $(ARGS)

QUERIES ?= 2000

queries: stack  ## random queries, by Spark alone and through Headgate (QUERIES=2000 START=0)
	@$(BIN)/python -m tests.spark.queries --queries $(QUERIES) --start $(START) $(ARGS)

ROUNDS ?= 15
SEED ?= 1

chaos: $(INSTALLED) java  ## applications on services of their own, killed and paused (ROUNDS=15 SEED=1)
	@$(BIN)/python -m tests.chaos --rounds $(ROUNDS) --seed $(SEED) $(ARGS)

MINUTES ?= 120

soak: $(INSTALLED) java  ## hours of small exchanges under faults, on services of their own (MINUTES=120 SEED=1)
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

counts: $(INSTALLED) java  ## threads, descriptors and memory over 100 restarts and rejoins, 1,000 sessions, 100,000 jobs
	@$(BIN)/python -m tests.chaos.counts $(ARGS)

scale: $(INSTALLED)  ## ten thousand by ten thousand without its bytes, written to docs/scale.md
	@$(BIN)/python -m tests.bench scale $(ARGS)

lock:  ## pin again what pyproject.toml asks for (UPGRADE=--upgrade for the newest)
	@$(PYTHON) -m venv .venv/uv
	@.venv/uv/bin/pip install --quiet --disable-pip-version-check $(UV)
	@.venv/uv/bin/uv pip compile pyproject.toml --extra spark --extra embedded --extra metrics --extra stack --group dev \
	  --universal --generate-hashes --no-header --no-annotate --quiet $(UPGRADE) -o requirements.lock
