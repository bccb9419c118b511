.DEFAULT_GOAL := help
.PHONY: help setup demo demo-pretrained gpu-check test check clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make .venv with all packages; skips what is done
	@bash scripts/setup.sh

demo: setup  ## train a small agent on a CPU and report (about seven minutes after setup); DBBENCH_DATA=FOLDER for real tasks
	@bash scripts/demo.sh

demo-pretrained: setup  ## fine-tune and train a pretrained model on LifelongAgentBench, hours on two cores: DBBENCH_DATA=FOLDER make demo-pretrained
	@bash scripts/demo.sh --pretrained

gpu-check:  ## what works on this machine's GPU, ten minutes, one page to send back; WHEELS=FOLDER installs without a network
	@bash scripts/gpu_check.sh

test:  ## run every test, the end-to-end runs included
	@bash scripts/setup.sh --extras
	.venv/bin/pytest -n 2 --no-loadscope-reorder -rs

check: setup  ## lint, layers, types and the quick tests (about 4 minutes)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports
	.venv/bin/pyright
	.venv/bin/pytest -m "not slow" -n 2 --no-loadscope-reorder

clean:  ## remove .venv and caches; runs, models and data stay
	rm -rf .venv .uv build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
