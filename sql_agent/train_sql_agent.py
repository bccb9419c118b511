"""Train a SQL agent by GRPO: agent-lightning's store and proxy, vLLM, verl. `--help` shows the flags.

    python sql_agent/train_sql_agent.py --ci-fast
    AGL_MANAGED_STORE=0 python sql_agent/train_sql_agent.py --llm-proxy --model MODEL

The second takes the store that `agl store --port 9999` keeps; --external-store-address names another.
"""

import os
import sys

if __package__ in (None, ""):
    # Run as a script, Python puts this folder first, and not the one that holds the packages.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from dbbench_adapter.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import fcntl
import json
import logging
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dbbench_adapter.outputs import check_output, in_words, written
from dbbench_adapter.passwords import Parser, masked, revealed
from dbbench_adapter.protocols import ProtocolName
from reward_model.hub import ModelNotFoundError, model_folder
from reward_model.signed import user_key
from sql_agent.checkpoints import MANIFEST, checkpoints, newest_whole, point_verl_at, step_of
from sql_agent.config import TrainConfig, dump_config, load_config
from sql_agent.datatypes import RewardModelConfig
from sql_agent.door import give_token
from sql_agent.environments import ENVIRONMENTS, make_environment
from sql_agent.patches import check_installed
from sql_agent.run_context import TrainingFailedError
from sql_agent.tracking import earlier_steps
from sql_agent.verl_config import Files, compose, to_verl, worker_environment

ROOT = Path(__file__).resolve().parents[1]
TINY_POLICY = ROOT / "models" / "tiny-sql"
USUAL_STORE = "http://localhost:9999"
"""Where `agl store --port 9999` is; taken where AGL_MANAGED_STORE=0 comes without an address."""


class UsageError(ValueError):
    """Something the user can mend; the message says how."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="Train a SQL agent by GRPO over agent-lightning, vLLM and verl.",
        epilog="Every setting of a config file can be given as --set group.name=value; --dry-run shows them all.",
    )
    parser.add_argument("--config", type=Path, help="YAML file with settings (see sql_agent/configs)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", dest="overrides", help="one setting; repeat for more"
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="the policy, a Hugging Face folder or its id on the hub, ORG/NAME; default: a small one, made here",
    )
    parser.add_argument("--env", choices=sorted(ENVIRONMENTS), help="what to train on; default dbbench")
    parser.add_argument("--train-file", type=Path, help="tasks to train on; default: generated")
    parser.add_argument("--val-file", type=Path, help="held-out tasks; default: split off or generated")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"])
    parser.add_argument("--llm-proxy", action="store_true", help="trace turns in the LLM proxy, not in the runner")
    parser.add_argument(
        "--external-store-address",
        metavar="URL",
        help="a store kept outside (`python -m "
        f"sql_agent.store_server`, `agl store`); needs AGL_MANAGED_STORE=0, and is {USUAL_STORE} then unless given",
    )
    parser.add_argument("--reward-model-url", metavar="URL", help="a scoring service; its score joins the reward")
    parser.add_argument("--n-runners", type=int, help="runner processes")
    parser.add_argument("--lora", action="store_true", help="train a LoRA adapter instead of all weights")
    parser.add_argument("--lora-rank", type=int, help="rank of the adapter (with --lora; default 16)")
    parser.add_argument("--run-dir", type=Path, help="where everything of this run goes; default runs/sql-agent")
    parser.add_argument("--resume", choices=["auto", "never"], help="auto: go on from --run-dir's newest checkpoint")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ci", action="store_true", help="a short run: four steps of four tasks, one validation")
    size.add_argument("--ci-fast", action="store_true", help="the shortest run that touches everything: one step")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved settings and verl's, then stop")
    parser.add_argument("--debug", action="store_true", help="log at debug level")
    return parser.parse_args(argv)


CI_OVERRIDES = {
    "ci": [
        "trainer.resume=never",
        "trainer.steps=4",
        "data.train_batch_size=4",
        "data.val_limit=16",
        "trainer.val_every=4",
    ],
    "ci_fast": [
        "trainer.resume=never",
        "trainer.steps=1",
        "data.train_batch_size=4",
        "data.generate=32",
        "data.val_limit=8",
        "trainer.val_before_train=false",
        "trainer.val_every=0",
        "trainer.save_every=1",
    ],
}


def resolve(args: argparse.Namespace) -> TrainConfig:
    """Flags become settings; they win over the file, `--set` wins over them."""
    flags: list[str] = []
    for name, overrides in CI_OVERRIDES.items():
        flags += overrides if getattr(args, name) else []
    plain = {
        "model": args.model,
        "env.type": args.env,
        "data.train_file": args.train_file,
        "data.val_file": args.val_file,
        "engine.device": args.device,
        "store.address": args.external_store_address,
        "reward_model.url": args.reward_model_url,
        "rollout.n_runners": args.n_runners,
        "run_dir": args.run_dir,
        "trainer.resume": args.resume,
        "llm_proxy": True if args.llm_proxy else None,
        "lora.rank": (args.lora_rank or 16) if args.lora else args.lora_rank,
    }
    # JSON is YAML: a path with a "#" or of digits alone stays the text it is
    text = {key: v if isinstance(v, bool | int) else str(v) for key, v in plain.items() if v is not None}
    flags += [f"{key}={json.dumps(v)}" for key, v in text.items()]
    if args.lora_rank is not None and args.lora_rank < 1:
        raise UsageError(
            f"--lora-rank is {args.lora_rank}, expected 1 or more; leave it and --lora out to train all weights"
        )
    cfg = load_config(args.config, flags + args.overrides)
    if args.lora and not cfg.lora.rank:
        raise UsageError("--lora and lora.rank=0 contradict each other: 0 trains all weights; leave one of them out")
    return cfg


ROLES = ("algorithm", "runner", "both")
UNMANAGED, MANAGED = ("0", "false", "no", "off"), ("1", "true", "yes", "on")
"""What agent-lightning reads AGL_MANAGED_STORE as (agentlightning/env_var.py)."""


def check_environment() -> None:
    """agent-lightning's variables say something that it knows.

    Raises:
        UsageError: they do not.
    """
    role = os.environ.get("AGL_CURRENT_ROLE", "both")
    if role not in ROLES:
        raise UsageError(f"AGL_CURRENT_ROLE is {role!r}, expected {', '.join(ROLES)}; or unset it")
    managed = os.environ.get("AGL_MANAGED_STORE", "1")
    if managed.strip().lower() not in (*UNMANAGED, *MANAGED):
        raise UsageError(f"AGL_MANAGED_STORE is {managed!r}, expected 0 (the store is kept outside) or 1; or unset it")


def check_run_dir(run_dir: Path) -> None:
    """
    Raises:
        ValueError: it is a file, or nothing can be written there.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise UsageError(f"--run-dir {run_dir} is a file, expected a folder; name another --run-dir")
    check_output(run_dir / "run.json", "--run-dir", overwrite=True)


def use_cpu(cfg: TrainConfig) -> bool:
    """`auto` is a GPU where the NVIDIA driver answers, else the CPU.

    Raises:
        UsageError: there are not as many GPUs as the run wants.
    """
    gpus = 0 if cfg.engine.device == "cpu" else count_gpus()
    if cfg.engine.device == "gpu" and not gpus:
        raise UsageError("engine.device is gpu, but nvidia-smi finds none; use --device cpu")
    if cfg.engine.n_gpus > max(gpus, 1):
        there = f"{gpus} can be used here" if gpus else "this run is on a CPU, with one worker"
        raise UsageError(f"engine.n_gpus is {cfg.engine.n_gpus}, but {there}; use --set engine.n_gpus={max(gpus, 1)}")
    return not gpus


def count_gpus() -> int:
    """GPUs that the NVIDIA driver knows and CUDA_VISIBLE_DEVICES leaves to this process."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    known = sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return known if visible is None else min(known, len([name for name in visible.split(",") if name.strip()]))


def with_store(cfg: TrainConfig) -> TrainConfig:
    """The config with the usual address filled in where the store is kept outside and none was given; says so."""
    if cfg.store.address is not None or store_is_managed():
        return cfg
    print(f"AGL_MANAGED_STORE=0 and no --external-store-address: taking the store at {USUAL_STORE}", file=sys.stderr)
    return cfg.model_copy(update={"store": cfg.store.model_copy(update={"address": USUAL_STORE})})


def store_is_managed() -> bool:
    return os.environ.get("AGL_MANAGED_STORE", "1").strip().lower() not in UNMANAGED


def check_store(cfg: TrainConfig) -> None:
    """An outside store has to be there, be wanted, and be nobody else's.

    Raises:
        UsageError: with the setting or the command that mends it.
    """
    role = os.environ.get("AGL_CURRENT_ROLE", "both")
    if cfg.store.address is None:
        check_port(cfg.store.port)
        return
    if store_is_managed():
        raise UsageError(
            "--external-store-address needs AGL_MANAGED_STORE=0 in the environment, or agent-lightning starts a store "
            "of its own beside it; run: AGL_MANAGED_STORE=0 python sql_agent/train_sql_agent.py ..."
        )
    import psutil
    import requests

    from sql_agent.door import STORE_TOKEN, authorization
    from sql_agent.runner import TRAINER_GONE_S, TRAINER_WORKER
    from sql_agent.store_server import BoundedStore

    asked: dict[str, Any] = {"timeout": 5, "headers": authorization(STORE_TOKEN)}
    try:
        health = requests.get(f"{cfg.store.address}/v1/agl/health", **asked)
        health.raise_for_status()
        trainer = requests.get(f"{cfg.store.address}/v1/agl/workers/{TRAINER_WORKER}", **asked)
    except requests.RequestException as error:
        port = cfg.store.address.rsplit(":", 1)[-1].strip("/")
        raise UsageError(
            f"no agent-lightning store answers at {cfg.store.address} ({type(error).__name__}); "
            f"start one with `agl store --host 127.0.0.1 --port {port}`"
        ) from None
    if trainer.status_code == 401:
        raise UsageError(
            f"the store at {cfg.store.address} asks for a token: set {STORE_TOKEN} to what it was started with"
        )
    worker = trainer.json() if trainer.ok else None
    beat = (worker or {}).get("last_heartbeat_time") or 0.0
    stats = (worker or {}).get("heartbeat_stats") or {}
    here = stats.get("host") == socket.gethostname()
    alive = psutil.pid_exists(stats["pid"]) if here else time.time() - beat < TRAINER_GONE_S
    if role != "runner" and stats.get("state") == "running" and alive:
        raise UsageError(
            f"the store at {cfg.store.address} belongs to run {stats.get('run_id')}, which is still going; "
            "start another store on another port"
        )
    statistics = requests.get(f"{cfg.store.address}/v1/agl/statistics", **asked)
    if role != "runner" and statistics.ok and statistics.json().get("name") != BoundedStore.__name__:
        port = cfg.store.address.rsplit(":", 1)[-1].strip("/")
        print(
            f"the store at {cfg.store.address} keeps every span of every rollout, so it grows with each step, and "
            "answers whoever reaches it, web pages included; one that is started with `python -m "
            f"sql_agent.store_server --port {port}` frees what has been read and answers no page, and no other user "
            f"where {STORE_TOKEN} is set there and here"
        )


def check_reward_model(cfg: TrainConfig) -> None:
    """A reward model has to be there if it is wanted.

    Raises:
        ValueError: with the command that starts a scoring service.
    """
    if cfg.reward_model.url is not None:
        import asyncio

        from sql_agent.scoring import check_scorer

        asyncio.run(check_scorer(cfg.reward_model))


def check_judged(cfg: TrainConfig) -> None:
    """A reward model has to be wanted where nobody else can judge.

    Raises:
        UsageError: with the command that starts a scoring service.
    """
    if cfg.reward_model.url is None and not make_environment(cfg).judged:
        raise UsageError(
            f"nobody can tell right from wrong in environment {cfg.env.type}: the reward is a reward model's score. "
            "Start one with `python reward_model/inference_api.py --model_path MERGED --port 8008` and give its "
            "address, --reward-model-url http://127.0.0.1:8008"
        )


def check_episodes(cfg: TrainConfig) -> None:
    """Where this command plays, episodes can be opened.

    Raises:
        UsageError: they cannot; says why and what to do.
    """
    if os.environ.get("AGL_CURRENT_ROLE") == "algorithm":
        return
    from dbbench_adapter.backends import BackendUnavailable

    try:
        make_environment(cfg).check_episodes()
    except BackendUnavailable as error:
        raise UsageError(f"rollout.backend: {error}") from None


def check_port(port: int) -> None:
    """The run's own store needs its port; 0 takes a free one."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UsageError(
            f"port {port} is taken ({error.strerror}); choose another with --set store.port=N, 0 takes a free one"
        ) from None


def find_model(model: Path) -> Path:
    """Its folder; the id of a model on the hub becomes the folder of the cache that holds it.

    Raises:
        ModelNotFoundError: see `reward_model.hub.model_folder`.
    """
    return model if model == TINY_POLICY else model_folder(model)


def check_model(model: Path, protocol: ProtocolName, tensor_parallel: int = 1) -> None:
    """The model can be trained with this protocol; what does not keep a run from starting is printed.

    Raises:
        UsageError: with everything that does: it cannot be trained, or not be shared by so many GPUs.
    """
    from sql_agent.model_check import check_model_dir, check_tensor_parallel

    problems = check_model_dir(model, protocol)
    blocking = [problem for problem in problems if problem.blocks] or list(
        check_tensor_parallel(model, tensor_parallel)
    )
    if blocking:
        raise UsageError("\n".join(map(str, blocking)))
    for problem in problems:
        print(f"warning: {problem}")


def protocol_of(cfg: TrainConfig) -> ProtocolName:
    """What the model has to be able to play; `fc` in every environment that offers tools."""
    return "fc" if make_environment(cfg).tools else cfg.agent.protocol


def prepare(cfg: TrainConfig, checkpoint: Path | None, *, cpu: bool) -> dict[str, Any]:
    """Everything that can fail early: model, tasks, parquet, verl's config. Returns the driver's order."""
    from omegaconf import OmegaConf

    from dbbench_adapter.export import write_rows
    from sql_agent.data import PromptTokenizer, drawn, fitting, kinds_of, say_kinds, say_out_of_reach
    from sql_agent.model_check import chat_template, template_of_run
    from sql_agent.tracking import usable_loggers

    assert cfg.model is not None
    environment = make_environment(cfg)
    template, _ = template_of_run(cfg.model, protocol_of(cfg))
    tokenizer = PromptTokenizer(cfg.model, environment, template)
    whole = fitting(environment.load_split(cfg.data, cfg.seed), tokenizer.prompt_tokens, cfg.data.max_prompt_tokens)
    split = drawn(whole, cfg.data.val_limit, cfg.seed)
    if len(split.train) < cfg.data.train_batch_size:
        raise UsageError(
            f"{len(split.train)} training tasks are fewer than data.train_batch_size={cfg.data.train_batch_size}; "
            "lower it, or give more tasks"
        )
    data = cfg.run_dir / "data"
    files = Files(
        cfg.model.resolve(),
        (data / "train.parquet").resolve(),
        (data / "val.parquet").resolve(),
        checkpoint,
        None if template == chat_template(cfg.model) else template,
    )
    for rows, file in ((split.train, files.train), (split.val, files.val)):
        rows = environment.verl_rows(rows)
        if checkpoint is not None:
            refuse_other_tasks(rows, file)
        write_rows(rows, file)
    overrides = to_verl(cfg, files, cpu=cpu)
    overrides["trainer"]["logger"] = usable_loggers(cfg.trainer.loggers)
    if files.chat_template is not None:
        print(
            f"the chat template of {cfg.model} rewrites earlier turns; TRL's version of it for training, which does "
            "not, is used and saved with every checkpoint"
        )
    limits = cfg.agent.max_tokens, cfg.data.max_response_tokens
    said = say_kinds(split, len(whole.val)) + say_out_of_reach(split, tokenizer.reply_tokens, *limits)
    print("\n".join(said))
    return {
        "config": str((cfg.run_dir / "config.yaml").resolve()),
        "verl": OmegaConf.to_container(compose(overrides), resolve=False),
        "environment": worker_environment(cfg, cpu=cpu),  # of verl's Ray actors
        "pad_id": tokenizer.pad_id,
        "tasks": kinds_of(split),
    }


def refuse_other_tasks(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """
    Raises:
        UsageError: a run that goes on had other tasks, under the same settings.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        return
    earlier = pq.read_table(file).to_pylist()
    now = pa.Table.from_pylist(list(rows)).to_pylist()
    if earlier != now:
        differ = sum(a != b for a, b in zip(earlier, now, strict=False)) + abs(len(earlier) - len(now))
        raise UsageError(
            f"the tasks are not those that this run was trained on: {differ} of {len(earlier)} differ from {file}; has "
            "the task file changed? Give it as it was, or another --run-dir, or --resume never to start anew there"
        )


def git_commit() -> str:
    result = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def train(cfg: TrainConfig, checkpoint: Path | None, *, cpu: bool, debug: bool) -> None:
    """Run as the roles `AGL_CURRENT_ROLE` names: `algorithm`, `runner`, or both in one command."""
    from sql_agent.processes import ends_in_order, own_run

    role = os.environ.get("AGL_CURRENT_ROLE", "both")
    with ends_in_order(), own_run() as (run_id, folder):
        algorithm = None if role == "runner" else make_algorithm(cfg, checkpoint, run_id, folder / "ray", cpu=cpu)
        fit(cfg, algorithm, debug=debug)
        if algorithm is not None and not algorithm.finished:
            raise KeyboardInterrupt  # agent-lightning's trainer keeps it to itself


_held: set[int] = set()
"""Locks of this process. A forked runner would hold them for as long as it outlives a command that is killed."""


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def claim(run_dir: Path) -> Iterator[None]:
    """One run at a time writes to a folder, or decides what is whole there.

    What a killed command has left in the folder's name ends by itself, and is waited for.

    Raises:
        UsageError: another run has it.
    """
    from sql_agent.processes import LINGER_S, wait_until_gone

    run_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(run_dir / ".lock", os.O_WRONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run is writing to {run_dir}; give another --run-dir") from None
        _held.add(lock)
        if run_id := last_run_id(run_dir):
            wait_until_gone(run_id, LINGER_S + 5.0, forks=True)
        yield
    finally:
        _held.discard(lock)
        os.close(lock)


def last_run_id(run_dir: Path) -> str | None:
    """Of the run that wrote there last; None where there was none, or its record is torn."""
    try:
        return json.loads((run_dir / "run.json").read_text())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_start(run_dir: Path, start: dict[str, Any], *, resumed: bool) -> None:
    """Write run.json: how the run was started, under `earlier_starts` how before it was resumed, first one first."""
    earlier: list[Any] = []
    if resumed:
        with suppress(OSError, ValueError, AttributeError):  # torn by a kill
            last = json.loads((run_dir / "run.json").read_text())
            earlier = [*last.pop("earlier_starts", []), last]
    for each in (start, *earlier):  # of an earlier version too, which wrote passwords down
        each |= {"argv": [masked(str(word), whole=True) for word in each["argv"]]} if "argv" in each else {}
    with written(run_dir / "run.json") as part:
        part.write_text(json.dumps(start | {"earlier_starts": earlier}, indent=2))


def set_aside(run_dir: Path, after: int | None = None) -> Path | None:
    """Move what an earlier start left into a folder of its own, so that the two are not read as one.

    Args:
        after: the step a run goes on from: only what was logged of later ones, which are taken again, and
            their checkpoints that were whole once. None: everything.
    Returns:
        That folder; None where nothing was moved.
    """
    aside, rewritten = run_dir / time.strftime("before-%Y%m%d-%H%M%S"), False
    metrics, trajectories = run_dir / "metrics.jsonl", run_dir / "trajectories"
    if after is None:
        names = ("metrics.jsonl", "trajectories", "checkpoints", "config.yaml", "run.json", "report.html", "curve.png")
        moved = {run_dir / name: aside / name for name in names if (run_dir / name).exists()}
    else:
        later = [path for path in trajectories.glob("*_*.jsonl") if int(path.stem.split("_")[1]) > after]
        moved = {path: aside / "trajectories" / path.name for path in later}
        # a checkpoint that was whole once may be again, and is then not loaded in the place of this run's own
        passed_over = [path for path in checkpoints(run_dir / "checkpoints") if step_of(path) > after]
        moved |= {path: aside / "checkpoints" / path.name for path in passed_over if (path / MANIFEST).exists()}
        rows = [(row["train_step"], json.dumps(row)) for row in earlier_steps(metrics)]
        rewritten = any(step > after for step, _ in rows)
        if rewritten:
            aside.mkdir(exist_ok=True)
            shutil.copy2(metrics, aside)
            with written(metrics) as part:  # there are metrics at every moment, also where it is killed
                part.write_text("".join(f"{row}\n" for step, row in rows if step <= after))
    for path, target in moved.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return aside if moved or rewritten else None


RESUMED = ("env", "data", "lora", "seed")
"""Settings that a run cannot change when it goes on; beside the model, how the agent acts, the group size and what a
reward means."""
WALL_CLOCK = {"turn_timeout_s", "rollout_timeout_s"}
"""Limits of the agent that lose a rollout and change none."""


def check_resume(cfg: TrainConfig, checkpoint: Path, *, cpu: bool) -> None:
    """A run goes on as what it was.

    Raises:
        UsageError: the checkpoint is of other settings.
    """
    workers = json.loads((checkpoint / "actor" / "fsdp_config.json").read_text())["world_size"]
    if workers != (1 if cpu else cfg.engine.n_gpus):
        raise UsageError(
            f"{checkpoint} was written by {workers} workers, each its share; go on with as many (engine.n_gpus), or "
            "train from its merged weights: `python -m scripts.merge_policy`, then --model and another --run-dir"
        )
    saved = cfg.run_dir / "config.yaml"
    if not saved.is_file():
        return
    try:
        old = load_config(saved)
    except ValidationError as error:
        raise UsageError(
            f"{saved} holds settings that this version refuses ({error.errors()[0]['msg']}), so the run cannot go on; "
            "give another --run-dir, or --resume never to start anew there"
        ) from None
    pairs: dict[str, tuple[Any, Any]] = {name: (getattr(old, name), getattr(cfg, name)) for name in RESUMED}
    model = cfg.model or TINY_POLICY
    with suppress(ModelNotFoundError):  # what is not there is another one
        model = find_model(model)
    pairs["model"] = ((old.model or TINY_POLICY).resolve(), model.resolve())
    pairs |= {
        f"rollout.{name}": (getattr(old.rollout, name), getattr(cfg.rollout, name))
        for name in ("group_size", "reward", "judge")
    }
    pairs["agent"] = (old.agent.model_dump(exclude=WALL_CLOCK), cfg.agent.model_dump(exclude=WALL_CLOCK))
    pairs["reward_model"] = (_shaping(old.reward_model), _shaping(cfg.reward_model))
    changed = [name for name, (before, now) in pairs.items() if before != now]
    if changed:
        raise UsageError(
            f"{cfg.run_dir} was trained with other settings ({', '.join(changed)}; see {saved}); "
            "give another --run-dir, or --resume never to start anew there"
        )


def _shaping(cfg: RewardModelConfig) -> Any:
    """What the reward model does to the reward; where it runs may change."""
    return None if cfg.url is None else (cfg.weight, cfg.center, cfg.scale)


def make_algorithm(cfg: TrainConfig, checkpoint: Path | None, run_id: str, ray_dir: Path, *, cpu: bool) -> Any:
    from sql_agent.algorithm import VerlGrpo, start_driver
    from sql_agent.console import Console

    driver = start_driver(cfg, worker_environment(cfg, cpu=cpu))
    commit = git_commit()
    order = prepare(cfg, checkpoint, cpu=cpu) | {"run_id": run_id, "ray_dir": str(ray_dir), "commit": commit}
    # nothing is moved before everything that can be wrong with what was asked for has been looked at
    aside = set_aside(cfg.run_dir, after=None if checkpoint is None else step_of(checkpoint))
    if aside is not None:
        print(f"what an earlier start left, and this one does not go on from, is in {aside}")
    if checkpoint is not None:
        point_verl_at(checkpoint)
    with written(cfg.run_dir / "config.yaml") as part:
        part.write_text(dump_config(cfg))
    start: dict[str, Any] = {"run_id": run_id, "commit": commit, "device": "cpu" if cpu else "gpu", "argv": sys.argv}
    start["tasks"] = order.pop("tasks")  # by kind, in run.json
    write_start(cfg.run_dir, start | {"started_at": time.time()}, resumed=checkpoint is not None)
    return VerlGrpo(cfg, order, driver, Console(cfg).show)


def fit(cfg: TrainConfig, algorithm: Any, *, debug: bool) -> None:
    """Hand over to agent-lightning's trainer, which forks the runners and runs the algorithm in this process."""
    from sql_agent.agl_light import agl
    from sql_agent.runner import ConcurrentRunner, PassiveTracer, SqlLitAgent
    from sql_agent.runner_processes import LastingRunners
    from sql_agent.store import PatientStore
    from sql_agent.store_server import BoundedStore

    agl.setup_logging("DEBUG" if debug else "CRITICAL")  # what fails here is printed once, by `main`
    logging.getLogger("uvicorn.error").addFilter(lambda record: debug or record.levelno >= logging.WARNING)
    port = cfg.store.port or free_port()
    runner = ConcurrentRunner(
        PassiveTracer(),
        concurrency=cfg.rollout.runner_concurrency,
        poll_s=cfg.rollout.poll_s,
        store_url=cfg.store.address or f"http://127.0.0.1:{port}",
    )
    trainer = agl.Trainer(
        algorithm=algorithm,
        runner=runner,
        n_runners=cfg.rollout.n_runners,
        store=PatientStore(cfg.store.address) if cfg.store.address else BoundedStore(),
        tracer=runner.tracer,
        adapter=agl.LlmProxyTraceToTriplet(),
        strategy=LastingRunners(
            logs=cfg.run_dir / "logs",
            n_runners=cfg.rollout.n_runners,
            server_host="127.0.0.1",
            server_port=port,
            graceful_timeout=5.0,
        ),
    )
    trainer.fit(SqlLitAgent(cfg), [{}])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def go_on_from(cfg: TrainConfig, *, cpu: bool) -> Path | None:
    """The checkpoint that this run goes on from; None where it starts anew.

    Raises:
        ValueError: there are checkpoints and none can be gone on from.
    """
    user_key()  # made, or missed, before anything starts
    if cfg.trainer.resume == "never":
        return None
    checkpoint = newest_whole(cfg.run_dir / "checkpoints", print)
    if checkpoint is not None:
        check_resume(cfg, checkpoint, cpu=cpu)
        print(f"going on from {checkpoint}")
    return checkpoint


def run(cfg: TrainConfig, checkpoint: Path | None, *, cpu: bool, debug: bool) -> None:
    """Check everything that is cheap to check, then train."""
    if checkpoint is not None and step_of(checkpoint) >= cfg.trainer.steps:
        print(
            f"{cfg.run_dir} has reached step {step_of(checkpoint)} of {cfg.trainer.steps} already; raise "
            "trainer.steps to go on, or give another --run-dir to start anew"
        )
        return
    give_token(shared=os.environ.get("AGL_CURRENT_ROLE", "both") != "both", own_store=cfg.store.address is None)
    revealed(cfg.rollout.backend)  # raises where its password is missing; runners would only find out later
    check_store(cfg)
    check_reward_model(cfg)
    check_episodes(cfg)
    make_environment(cfg).prepare(print)
    if cfg.model == TINY_POLICY and not TINY_POLICY.exists():
        from scripts.make_tiny_policy import make_tiny_policy

        print("no --model given: making the small policy first (about a minute)")
        make_tiny_policy(TINY_POLICY)
    cfg = cfg.model_copy(update={"model": find_model(cfg.model or TINY_POLICY)})
    check_model(cfg.model or TINY_POLICY, protocol_of(cfg), cfg.engine.tensor_parallel_size)
    train(cfg, checkpoint, cpu=cpu, debug=debug)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.WARNING)
    try:
        check_environment()
        cfg = resolve(args)
        cfg = cfg.model_copy(update={"model": cfg.model or TINY_POLICY, "run_dir": cfg.run_dir.resolve()})
        cfg = with_store(cfg)
        check_judged(cfg)
        cpu = use_cpu(cfg)
        if args.dry_run:
            files = Files(cfg.model or TINY_POLICY, Path("train.parquet"), Path("val.parquet"))
            overrides = to_verl(cfg, files, cpu=cpu)
            compose(overrides)
            print(f"# settings\n{dump_config(cfg)}\n# verl's keys\n{json.dumps(overrides, indent=2)}")
            return 0
        trains = os.environ.get("AGL_CURRENT_ROLE", "both") != "runner"
        if trains:  # runners need neither verl nor vLLM
            check_run_dir(cfg.run_dir)
            check_installed(cpu=cpu)
        with claim(cfg.run_dir) if trains else nullcontext():
            run(cfg, go_on_from(cfg, cpu=cpu) if trains else None, cpu=cpu, debug=args.debug)
    except ValidationError as error:
        for problem in error.errors():
            words = f"config: {'.'.join(map(str, problem['loc'])) or 'settings'}: {problem['msg']}"
            print(masked(words), file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {masked(str(error))}", file=sys.stderr)
        return 2
    except (TrainingFailedError, OSError) as error:  # a store that is gone, a disk that is full
        print(f"error: {masked(in_words(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the run goes on from its newest checkpoint when it is started again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    execute(main)
