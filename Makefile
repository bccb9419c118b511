.DEFAULT_GOAL := help
.PHONY: help setup demo demo-small demo-pretrained gpu-check test check lint types quick-tests reference site dist clean
# Where it is set, each pytest worker and each command that a test starts compiles again what it imports of ours.
unexport PYTHONDONTWRITEBYTECODE
# Three on two cores: a test often waits for a process, a server or a limit to run out.
PYTEST = .venv/bin/pytest -n 3 --no-loadscope-reorder

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make .venv with all packages; skips what is done
	@bash scripts/setup.sh

demo: setup  ## a pretrained model learns a shop's database on a CPU: success before and after, and a report (12 minutes after setup)
	@bash scripts/demo.sh

demo-small: setup  ## the same chain with a small policy on generated tasks (three to ten minutes); DBBENCH_DATA=FOLDER for real tasks
	@bash scripts/demo.sh --small

demo-pretrained: setup  ## fine-tune and train a pretrained model on LifelongAgentBench, hours on two cores: DBBENCH_DATA=FOLDER make demo-pretrained
	@bash scripts/demo.sh --pretrained

gpu-check:  ## what works on this machine's GPU and which sizes fit, one page to send back; WHEELS=FOLDER installs without a network
	@bash scripts/gpu_check.sh

test:  ## run every test, the end-to-end runs included
	@bash scripts/setup.sh --extras
	$(PYTEST) -rs

check:  ## lint, layers, types and the quick tests (about 7 minutes)
	@bash scripts/setup.sh --extras
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j 2 types quick-tests

lint:
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports
	.venv/bin/hadolint Dockerfile
	.venv/bin/python -m scripts.pages.prose

types:
	.venv/bin/pyright

quick-tests:
	$(PYTEST) -m "not slow"

reference:  ## write doc/reference/ from the code, and the results' tables and pictures from doc/data/results.json
	.venv/bin/python -m scripts.pages
	.venv/bin/python -m scripts.pages.results
	.venv/bin/python -m scripts.pages.pictures

site:  ## build the pages into build/site; a warning fails
	@bash scripts/setup.sh --extras
	.venv/bin/sphinx-build -W --keep-going -q -d build/doctrees doc build/site

dist:  ## build a wheel and its pins into dist/, for uvx or pip without a clone
	@bash scripts/dist.sh

clean:  ## remove .venv and caches; runs, models and data stay
	rm -rf .venv .uv build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
