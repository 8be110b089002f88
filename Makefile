# Pizarra's commands. Each sets up what it needs in .venv and says so; the second time that takes no time.
# Options: PYTHON=/path/to/python3.12   PIZARRA_TORCH_INDEX=<index of torch builds>   ARGS="more arguments"

PYTHON ?=
ARGS ?=
BIN := .venv/bin
BOOTSTRAP := PYTHON="$(PYTHON)" sh scripts/bootstrap.sh

.DEFAULT_GOAL := help
.PHONY: help run test check bench bench-serving bench-compare bench-memory bench-quantise bench-interchange bench-speculation proof soak screenshots gpu-check clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

run: ## Set up, then serve the dashboard with the default model at http://127.0.0.1:7860
	@$(BOOTSTRAP)
	@exec $(BIN)/pizarra serve --model smollm2-135m-instruct $(ARGS)

# Two processes, each file of tests wholly in one of them, and the files in their order: the longest are not the last.
test: ## Set up, then run every test (ARGS="-k name" for some, ARGS="-n 0" in one process)
	@$(BOOTSTRAP) --extra dev
	@$(BIN)/python -m scripts.chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: ## Lint, formatting, types and the architecture test
	@$(BOOTSTRAP) --extra dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: ## Measure decoding against transformers on this machine
	@$(BOOTSTRAP)
	$(BIN)/python -m bench.decode $(ARGS)

bench-serving: ## Measure serving against vLLM (set up in .cache/peers) and transformers
	@$(BOOTSTRAP)
	@PYTHON="$(PYTHON)" sh bench/peers.sh vllm
	$(BIN)/python -m bench.serving --vllm .cache/peers/vllm $(ARGS)

bench-compare: ## Measure decoding and prefill against OpenVINO GenAI, llama.cpp and vLLM (set up in .cache/peers) and transformers
	@$(BOOTSTRAP)
	@PYTHON="$(PYTHON)" sh bench/peers.sh openvino llama.cpp vllm
	$(BIN)/python -m bench.compare --write docs/compare.md $(ARGS)

bench-memory: ## Load every weight format at 0.5 and 1 B parameters, and hold the memory taken against the estimate
	@$(BOOTSTRAP) --extra dev
	$(BIN)/python -m bench.memory_truth $(ARGS)

bench-quantise: ## Quantise the default model and a tiny one by AWQ and GPTQ, and measure what is won back (half an hour)
	@$(BOOTSTRAP)
	$(BIN)/python -m bench.quantise $(ARGS)

bench-interchange: ## Compare our packing with AutoAWQ's, AutoGPTQ's and GPTQModel's (fetched into .cache/peers)
	@$(BOOTSTRAP) --extra dev
	$(BIN)/python -m bench.interchange $(ARGS)

bench-speculation: ## Measure what speculation gains, beside vLLM's and llama.cpp's own (set up in .cache/peers), and write the page
	@$(BOOTSTRAP)
	@PYTHON="$(PYTHON)" sh bench/peers.sh vllm llama.cpp
	-@sh bench/peers.sh arctic # without it vLLM's suffix decoding is listed as not measured
	$(BIN)/python -m bench.speculation --write docs/speculation-bench.md $(ARGS)

proof: ## Prove that speculation changes nothing, for up to 70 minutes; goes on where it stopped (ARGS="--minutes 30")
	@$(BOOTSTRAP) --extra dev
	$(BIN)/python -m bench.proof $(ARGS)

soak: ## Press an engine and a server with 2,000 mixed requests each, then keep six tabs open for SOAK_S=900 seconds
	@$(BOOTSTRAP) --extra dev
	$(BIN)/python -m bench.soak $(ARGS)

screenshots: ## Take pictures of every page, in both themes and widths, for docs/images/dashboard
	@$(BOOTSTRAP) --extra dev
	$(BIN)/python -m scripts.screenshots $(ARGS)

gpu-check: ## Run the checks that need an NVIDIA GPU (exit status 2: there is none)
	@PYTHON="$(PYTHON)" sh scripts/gpu_check.sh $(ARGS)

clean: ## Remove .venv, caches and build outputs; your models and chats are elsewhere and stay
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .gradio build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
