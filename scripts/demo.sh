#!/usr/bin/env bash
# make demo: a small policy, a store of its own, 40 train steps, success before and after. Needs `scripts/setup.sh`.
#
#   bash scripts/demo.sh [--tasks FILE]     DBBENCH_DATA=FOLDER, RUN_DIR=runs/demo, STORE_PORT=9999
#
# Tasks are generated unless a file is given; DBBENCH_DATA takes LifelongAgentBench's entry_dict.json from a folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
run_dir=${RUN_DIR:-}
port=${STORE_PORT:-9999}
tasks=()
model=models/tiny-320

export LITELLM_LOCAL_MODEL_COST_MAP=True # agl store imports LiteLLM, which asks the internet for a price list otherwise

say() { printf '[demo %4d s] %s\n' "$SECONDS" "$*"; }
die() {
    say "stopped: $*" >&2
    exit 1
}

if [[ ${1:-} == --tasks ]]; then
    [[ -f ${2:-} ]] || die "--tasks ${2:-}: no such file"
    tasks=(--train-file "$2" --set 'data.skills=[]')
elif [[ -n ${DBBENCH_DATA:-} ]]; then
    file=$(find "$DBBENCH_DATA" -name entry_dict.json -print -quit 2>/dev/null || true)
    [[ -n $file ]] || die "no entry_dict.json (LifelongAgentBench) under DBBENCH_DATA=$DBBENCH_DATA; give one file with: bash scripts/demo.sh --tasks FILE"
    tasks=(--train-file "$file" --set 'data.skills=[]')
fi

# other tasks, other run: a run goes on as what it was
run_dir=${run_dir:-runs/demo${tasks[1]:+-$(basename "${tasks[1]%.*}")}}

"$python" -m scripts.doctor --port "$port"
"$python" -m scripts.make_tiny_policy --output "$model" --steps 320 # solves about half: there is something to learn

mkdir -p "$run_dir"
say "starting the store: agl store --host 127.0.0.1 --port $port"
# both children end with this script, however it ends; bash would start them deaf to SIGINT
child=(env --default-signal=INT setpriv --pdeathsig TERM)
training=
"${child[@]}" .venv/bin/agl store --host 127.0.0.1 --port "$port" >"$run_dir/store.log" 2>&1 &
store=$!
trap 'kill "$store" 2>/dev/null; wait "$store" 2>/dev/null || true' EXIT
trap '[[ -z $training ]] || wait "$training" || true; exit 130' INT # from a terminal the training has it as well
trap '[[ -z $training ]] || { kill "$training"; wait "$training" || true; }; exit 143' TERM HUP
for _ in $(seq 240); do
    kill -0 "$store" 2>/dev/null || die "the store ended; its log is $run_dir/store.log. Is port $port taken? STORE_PORT=9998 make demo"
    "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/v1/agl/health', timeout=1)" 2>/dev/null && break
    sleep 0.5
done

say "training: 40 steps of eight tasks, eight rollouts each"
AGL_MANAGED_STORE=0 "${child[@]}" "$python" sql_agent/train_sql_agent.py --llm-proxy \
    --external-store-address "http://127.0.0.1:$port" --config sql_agent/configs/demo.yaml --model "$model" --run-dir "$run_dir" "${tasks[@]}" &
training=$!
wait "$training" # unlike a child in the foreground it lets the traps above act at once

say "done"
"$python" -m scripts.report "$run_dir"
