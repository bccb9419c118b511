"""What works on this machine's GPU? `make gpu-check`, or `python -m bench.gpu_check --model MODEL`.

It imports the packages, tries attention and vLLM, trains two steps of a small model with a SIGKILL between them and one
step with LoRA, compares the probabilities of sampler and trainer, and the memory with its estimate. Then it trains a
step of models with random weights, of 0.5 to 7 billion: what fits, and how long it takes. It writes one page, anew
after each stage. A stage that fails, or takes longer than its limit, does not stop the next one. The exit status is 0
if all passed, 1 if not, and 2 if there is no GPU. `--device cpu` does the same on a CPU, which tries the check itself.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.checkpoints import check_checkpoint, checkpoints
from agentgrpo.flags import Parser
from agentgrpo.machine import count_gpus, git_commit
from agentgrpo.outputs import named_path
from agentgrpo.processes import wait_until_gone
from agentgrpo.run_folder import METRICS, earlier_steps
from bench.parts.gpu_stages import Stage, run, write_page
from bench.parts.random_model import SHAPES
from sql_agent.names import TINY_POLICY
from sql_agent.settings.load import load_config
from sql_agent.startup.machine import available_memory_gib, check_installed, installed_versions
from sql_agent.startup.memory_check import Gpu, check_run_memory, gpus_here
from sql_agent.startup.preflight import gpus_of
from sql_agent.verl_side.config import worker_environment

# A policy that solves nothing would have zero-variance groups, so nothing is played again, and entropy is trained.
SETTINGS = (
    "data.generate=32",
    "data.train_batch_size=4",
    "data.max_response_tokens=512",
    "agent.max_tokens=128",
    "rollout.max_resamples=0",
    "loss.entropy_coef=0.01",
    "engine.gpu_memory_utilization=0.3",
    "trainer.val_before_train=false",
    "trainer.val_every=0",
    "trainer.save_every=1",
)
GONE_S = 30.0
# The largest first, then what differs most from it; a stage before may have taken the time.
SIZES = ("7B lora", "1.5B all", "3B lora", "0.5B all", "1.5B lora", "0.5B lora")
WHAT_IS_TRAINED = {"lora": "LoRA", "all": "all weights"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m bench.gpu_check", description="What works on this machine's GPU?")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu tries the check itself")
    parser.add_argument("--model", type=named_path, default=TINY_POLICY, help="folder; default: the small policy")
    parser.add_argument("--run-dir", type=named_path, help="new folder for page, logs and runs")
    choices = [f"{shape} {trained}" for shape in SHAPES for trained in WHAT_IS_TRAINED]
    parser.add_argument(
        "--sizes",
        nargs="*",
        choices=choices,
        metavar="'SIZE lora|all'",
        help=f"models with random weights to train, of {', '.join(SHAPES)}; default: {', '.join(SIZES)}; none on a CPU",
    )
    args = parser.parse_args(argv)
    if args.device == "gpu" and not count_gpus():
        print("error: nvidia-smi finds no GPU here; run this on a machine with one", file=sys.stderr)
        return 2
    sizes = args.sizes if args.sizes is not None else SIZES if args.device == "gpu" else ()
    folder = args.run_dir or Path("runs") / time.strftime("gpu-check-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    page, results, used = folder / "gpu-check.md", [], _used if args.device == "gpu" else None
    stages = [*stages_of(args.device, args.model, folder), *stages_of_sizes(args.device, args.model, folder, sizes)]
    machine, gpus = machine_of(args.device), gpus_of(cpu=args.device == "cpu")  # a stage may hang the driver
    title = f"{time.strftime('%Y-%m-%d')}, commit {git_commit()}, --device {args.device}, model {args.model.name}"
    for stage in stages:
        print(f"{stage.name} (at most {stage.limit_s:.0f} s) ...", flush=True)
        log = folder / f"{stage.name.replace(' ', '-')}.log"
        results.append(run(stage, log, environment_of(args.device), used))
        discard(stage)  # however it ended: a size that does not fit leaves its weights too
        print(f"  {results[-1].state} after {results[-1].seconds:.0f} s {results[-1].why}", flush=True)
        if stage.kill_at is not None:
            _wait_for_the_killed(folder / "all-weights")
        steps, estimates = steps_of(folder, sizes), estimates_of(args.model, folder, sizes, gpus)
        page.write_text(write_page(f"GPU check, {title}", machine, results, steps, estimates, len(stages)))
    print(f"the page: {page}")
    return int(any(result.state != "ok" for result in results))


def stages_of(device: str, model: Path, folder: Path) -> list[Stage]:
    """The stages in order; limits are about twice what an H100, or two busy CPU cores, took."""
    probe = [sys.executable, "-m", "bench.parts.gpu_probes"]
    arguments = [device, str(model)]
    every, lora = folder / "all-weights", folder / "lora"
    policy = [sys.executable, "-m", "agentgrpo", "tiny-policy", "--output", str(model)]

    def trained(run_dir: Path, *flags: str) -> list[str]:
        return _train(device, model, run_dir, *flags)

    two, one = ("--set", *SETTINGS, "trainer.steps=2"), ("--lora", "--set", *SETTINGS, "trainer.steps=1")
    make = [Stage("small policy", policy, 300, lambda _: {})] if model == TINY_POLICY else []
    return [
        Stage("imports", [*probe, "imports", *arguments], 180, _found),
        Stage("attention", [*probe, "attention", *arguments], 120, _found),
        *make,
        Stage("vLLM", [*probe, "vllm", *arguments], 240, _found),
        Stage(
            "a train step",
            trained(every, *two),
            500,
            lambda _: _taken(every, [1]),
            kill_at=lambda: _is_sealed(every, 1),
            also=every / "logs" / "driver.log",
        ),
        Stage(
            "resume after SIGKILL",
            trained(every, *two),
            500,
            lambda output: _resumed(output, every),
            also=every / "logs" / "driver.log",
        ),
        Stage("LoRA", trained(lora, *one), 500, lambda _: _taken(lora, [1]), also=lora / "logs" / "driver.log"),
    ]


def stages_of_sizes(device: str, tokenizer: Path, folder: Path, sizes: Sequence[str]) -> list[Stage]:
    """A step of each size. Its weights are made before the first stage that needs them."""
    stages = []
    for place, size in enumerate(sizes):
        shape, trained = size.split()
        model, run_dir = folder / f"model-{shape}", _run_dir(folder, size)
        if shape not in (earlier.split()[0] for earlier in sizes[:place]):
            make = [sys.executable, "-m", "bench.parts.random_model", shape, str(tokenizer), str(model)]
            stages.append(Stage(f"{shape} weights", make, 120, lambda _: {}))
        flags = [*(["--lora"] if trained == "lora" else []), "--set", *SETTINGS, "trainer.steps=1"]
        is_last = shape not in (later.split()[0] for later in sizes[place + 1 :])

        def read(_: str, run_dir: Path = run_dir) -> dict[str, Any]:
            return _taken(run_dir, [1])

        command = _train(device, model, run_dir, *flags, "trainer.save_every=0")
        log, unused = run_dir / "logs" / "driver.log", model if is_last else None
        stages.append(Stage(f"{shape} {trained}", command, 300, read, also=log, discards=unused))
    return stages


def discard(stage: Stage) -> None:
    """Remove the weights that no later stage needs; those of four models take 25 GB of disk."""
    for weights in stage.discards.glob("*.safetensors") if stage.discards else ():
        weights.unlink()


def _run_dir(folder: Path, size: str) -> Path:
    return folder / size.replace(" ", "-")


def _train(device: str, model: Path, run_dir: Path, *flags: str) -> list[str]:
    where = ["--device", device, "--model", str(model), "--run-dir", str(run_dir)]
    return [sys.executable, "-m", "agentgrpo", "train", *where, *flags]


def environment_of(device: str) -> dict[str, str]:
    """The probes' environment, which is that of a run's own processes."""
    return worker_environment(load_config(None, []), cpu=device == "cpu")


def _found(output: str) -> dict[str, Any]:
    """What a probe prints at its end; libraries may print something as the process ends."""
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def _is_sealed(run_dir: Path, step: int) -> bool:
    found = [each for each in checkpoints(run_dir / "checkpoints") if each.name.endswith(f"_{step}")]
    return bool(found) and check_checkpoint(found[0], hashes=False) is None


def _wait_for_the_killed(run_dir: Path) -> None:
    """The guard of a killed run ends what the run had started."""
    if (run_dir / "run.json").is_file():
        wait_until_gone(json.loads((run_dir / "run.json").read_text())["run_id"], GONE_S, forks=True)


def metrics_of(run_dir: Path) -> dict[int, dict[str, float]]:
    return {int(row["train_step"]): row for row in earlier_steps(run_dir / METRICS)}


def _taken(run_dir: Path, steps: list[int]) -> dict[str, Any]:
    found = metrics_of(run_dir)
    if sorted(found) != steps:
        raise ValueError(f"the steps of metrics.jsonl are {sorted(found)}, expected {steps}")
    last = found[steps[-1]]
    if last["engine/alarm"]:
        raise ValueError(f"sampler and trainer differ: engine/probs_diff_mean is {last['engine/probs_diff_mean']:.2g}")
    return {
        "steps": ", ".join(map(str, steps)),
        "mean difference of probabilities": f"{last['engine/probs_diff_mean']:.1e}",
    }


def _resumed(output: str, run_dir: Path) -> dict[str, Any]:
    if "resuming from " not in output:  # a run that started again would have taken both steps as well
        raise ValueError(f"the run did not go on from the checkpoint of step 1 in {run_dir / 'checkpoints'}")
    return _taken(run_dir, [1, 2])


def _used() -> int | None:
    return max((gpu.total - gpu.free for gpu in gpus_here()), default=None)


def steps_of(folder: Path, sizes: Sequence[str]) -> dict[str, dict[str, float]]:
    runs = {"all weights": folder / "all-weights", "LoRA": folder / "lora"}
    runs |= {_titled(size): _run_dir(folder, size) for size in sizes}
    return {
        f"{name}, step {step}": metrics
        for name, run_dir in runs.items()
        for step, metrics in metrics_of(run_dir).items()
    }


def _titled(size: str) -> str:
    shape, trained = size.split()
    return f"{shape}, {WHAT_IS_TRAINED[trained]}"


def estimates_of(model: Path, folder: Path, sizes: Sequence[str], gpus: Sequence[Gpu] | None) -> str:
    runs = {"all weights": (model, False), "LoRA": (model, True)}
    runs |= {_titled(size): (folder / f"model-{size.split()[0]}", size.endswith("lora")) for size in sizes}
    estimates = []
    for name, (weights, lora) in runs.items():
        if (weights / "config.json").is_file():  # else its stage is still to come
            cfg = load_config(None, [*SETTINGS, f"model={weights}", *(["lora.rank=16"] if lora else [])])
            estimates.append(f"- {name}: {check_run_memory(cfg, gpus).found}")
    return "\n".join(estimates)


def machine_of(device: str) -> dict[str, str]:
    packages = check_installed(installed_versions())
    wrong = "; ".join(problem.what for problem in packages.problems)
    found = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}",
        "CPU": f"{os.cpu_count()} cores, {available_memory_gib():.1f} GiB of memory available",
        "/dev/shm": f"{shutil.disk_usage('/dev/shm').free / 2**30:.1f} GiB free",
        "compilers": ", ".join(filter(shutil.which, ("gcc", "nvcc", "ninja"))) or "none",
        "packages": f"{packages.found}{': ' if wrong else ''}{wrong}",
    }
    if device == "gpu":
        names = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
        found["GPUs"] = (
            subprocess.run(names, capture_output=True, text=True, timeout=30).stdout.strip().replace("\n", "; ")
        )
    return found


if __name__ == "__main__":
    execute(main)
