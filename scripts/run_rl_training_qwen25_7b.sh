#!/usr/bin/env bash
# Qwen2.5-7B-Instruct on single skills, REINFORCE with LoRA: looks first, makes missing data, then trains.
#
#   bash scripts/run_rl_training_qwen25_7b.sh [arguments of agentgrpo single-skill, e.g. --set seed=1 or --resume RUN_DIR]
#
#   MODEL=FOLDER or name in the Hugging Face cache; unset: what the experiment names
#   CONFIG=FILE; unset: sql_agent/configs/single_skill/experiments/qwen25_7b.yaml of this repository
#
# Paths are read from where you stand, those in the settings too: data/ and outputs/ appear there.
# --dry-run, --prepare and --help do their own thing at once.
#
# A try on a CPU: CONFIG=sql_agent/configs/single_skill/experiments/tiny_cpu.yaml bash scripts/run_rl_training_qwen25_7b.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

python=$root/.venv/bin/python
experiment=(-m agentgrpo single-skill)
experiment+=(--config "${CONFIG:-$root/sql_agent/configs/single_skill/experiments/qwen25_7b.yaml}")
[[ -z ${MODEL:-} ]] || experiment+=(--set "language_model.model_path=$MODEL")

if [[ ! -x $python ]]; then
    echo "problem  Python      no $python" >&2
    echo "                     -> bash $root/scripts/setup.sh" >&2
    exit 1
fi
looks_first=yes
for argument in "$@"; do
    case $argument in -h | --help | --dry-run | --prepare) looks_first=no ;; esac
done
[[ $looks_first == no ]] || "$python" "${experiment[@]}" "$@" --prepare
exec "$python" "${experiment[@]}" "$@"
