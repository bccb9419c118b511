#!/usr/bin/env bash
# Two nodes of eight GPUs under SLURM: sbatch examples/cluster/slurm.sh, from a clone on a file system that all nodes share.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --output=slurm-%j.log
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$PWD/.ray-token-$SLURM_JOB_ID" # an argument would be seen by `ps`
export RAY_USAGE_STATS_ENABLED=0 RAY_enable_metrics_collection=0
export PATH="$PWD/.venv/bin:$PATH" # `ray symmetric-run` looks for `ray` there
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
(umask 077 && openssl rand -hex 32 >"$RAY_AUTH_TOKEN_PATH")

# starts Ray on all nodes, runs what follows `--` on the first, and stops Ray when that ends
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_NNODES" --num-gpus 8 --disable-usage-stats -- \
    agentgrpo train --ray-address auto --device gpu --model models/mine --run-dir runs/two-nodes \
    --set cluster.nodes="$SLURM_NNODES" engine.n_gpus=8 data.train_batch_size=32 rollout.n_runners=8
