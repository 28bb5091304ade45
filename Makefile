# `make` or `make help` is the handbook. Every target does its own set-up, once: a virtual environment from requirements.lock
# (.venv) and the pinned jars (~/.cache/watertable, or WATERTABLE_CACHE). Needs Python 3.11 to 3.14, Java 17 or 21, and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.watertable-ready
JARS   := $(VENV)/.watertable-jars
CLASSES := $(VENV)/share/watertable/spark.jsa
ARGS   ?=
# Tests run in so many processes, a file of them in one; each has a JVM of its own (2 GB).
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup classes demo dev test test-all proofs check bench docs lock clean

help: ## show this handbook
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(JARS) ## make the environment and fetch the jars; the other targets do it themselves

classes: setup ## archive the classes that Spark loads anew, after an update of Java: every start is some seconds quicker
	$(BIN)/python -m watertable.classes

demo: $(CLASSES) ## the retail demo: broker, topics, tables, Dagster; options in ARGS="--until-caught-up --no-browser"
	$(BIN)/watertable demo $(ARGS)

dev: $(CLASSES) ## broker and Dagster with code reload
	$(BIN)/watertable dev $(ARGS)

test: $(CLASSES) ## the tests of every change (20 to 35 minutes on 2 cores)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: $(CLASSES) ## every test there is, the slow ones too (needs a JDK); 5,000 random plans, larger ones, and 50 on a store
	WATERTABLE_PLANS=$${WATERTABLE_PLANS:-5000} WATERTABLE_PLAN_STEPS=$${WATERTABLE_PLAN_STEPS:-6} WATERTABLE_STORES=$${WATERTABLE_STORES:-50} $(BIN)/python -m pytest -m "" $(ARGS)

proofs: $(CLASSES) ## run what proves each operator, and print docs/proofs.md: which test holds which operator to which law
	$(BIN)/python -m pytest -m "" -n $(JOBS) --dist loadfile --no-loadscope-reorder --proofs docs/proofs.md \
		tests/properties/test_stores_keep_the_law.py tests/properties tests/cases $(ARGS)

check: setup ## ruff, mypy --strict, the import laws
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_house.py

bench: $(CLASSES) ## the benchmarks, with Kafka Streams beside (needs a JDK); prints what it ran on
	$(BIN)/python -m watertable.jars spark broker bench
	$(BIN)/python -m benchmarks $(ARGS)

docs: setup ## build docs/ from the docstrings
	$(BIN)/python docs/build.py $(ARGS)

lock: $(READY) ## renew requirements.lock from pyproject.toml; review the diff
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --upgrade --quiet --output-file requirements.lock

clean: ## remove the environment, caches and the local state (.watertable, its broker stopped); the jar cache stays
	-@test ! -x $(BIN)/watertable || $(BIN)/watertable broker stop
	rm -rf $(VENV) .watertable .dagster dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse

# Python and Java are checked before anything is made, and the environment is only stamped ready when all of it is.
$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) found. Install Python 3.11 to 3.14, or name one: make PYTHON=python3.13"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
		echo "$$(command -v $(PYTHON)) is $$($(PYTHON) --version 2>&1), wanted 3.11 to 3.14. Name one: make PYTHON=python3.13"; exit 1; }
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; found=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p'); \
		case "$$found" in 17|21) ;; *) echo "Found $${found:+Java }$${found:-no Java} ($$java), wanted Java 17 or 21. Install one (Debian:" \
		"apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to one."; exit 1;; esac
	@test -x $(BIN)/python || { echo "Making $(VENV)"; $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); \
		echo "$(PYTHON) can't make a virtual environment (Debian: apt-get install python3-venv)"; exit 1; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements.lock)"
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(JARS): $(READY) streaming/watertable/jars.lock
	$(BIN)/python -m watertable.jars
	@touch $@

# What starts Spark starts from this; where it can't be made, all runs as well, and takes longer.
$(CLASSES): $(JARS)
	@$(BIN)/python -m watertable.classes || echo "Without the archive, every start of Spark takes some seconds longer; \`make classes\` tries again."
