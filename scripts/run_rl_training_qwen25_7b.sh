#!/usr/bin/env bash
# Qwen2.5-7B-Instruct on single skills, REINFORCE with LoRA: looks first, makes missing data, then trains.
#
#   bash scripts/run_rl_training_qwen25_7b.sh [arguments of scripts.run_experiment, e.g. --set seed=1 or --resume RUN_DIR]
#
#   MODEL=FOLDER or name in the Hugging Face cache; unset: what the experiment names
#   CONFIG=FILE; unset: sql_agent/configs/single_skill/experiments/qwen25_7b.yaml
#
# A try on a CPU: CONFIG=sql_agent/configs/single_skill/experiments/tiny_cpu.yaml bash scripts/run_rl_training_qwen25_7b.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
experiment=(--config_path "${CONFIG:-sql_agent/configs/single_skill/experiments/qwen25_7b.yaml}")
[[ -z ${MODEL:-} ]] || experiment+=(--set "language_model.model_path=$MODEL")

if [[ ! -x $python ]]; then
    echo "problem  Python      no $python" >&2
    echo "                     -> bash scripts/setup.sh" >&2
    exit 1
fi
"$python" -m scripts.run_experiment "${experiment[@]}" "$@" --prepare
exec "$python" -m scripts.run_experiment "${experiment[@]}" "$@"
