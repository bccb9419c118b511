"""The flags of a training run (`sql_agent.train_sql_agent`), and how they become settings."""

from __future__ import annotations

import argparse
import json

from agentgrpo.checks import UsageError
from agentgrpo.flags import Parser
from agentgrpo.outputs import named_path
from agentgrpo.printed_commands import shipped_settings
from agentgrpo.settings import names_of, verl_keys
from dbbench_adapter.engines import known_places, named_database
from sql_agent.config import TrainConfig, load_config
from sql_agent.names import ENVIRONMENTS
from sql_agent.rewards import weights_of
from sql_agent.startup.preflight import USUAL_STORE


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="Train a SQL agent by GRPO over agent-lightning, vLLM and verl, or its instructions by APO.",
        epilog="Every setting of a config file can be given as --set group.name=value; --dry-run shows them all.",
    )
    names = set(names_of(TrainConfig))
    groups = {name.rpartition(".")[0] for name in names}
    parser.settings = {name: name for name in sorted(names - groups)} | dict(verl_keys(TrainConfig))
    parser.add_argument(
        "--algorithm",
        choices=["grpo", "apo"],
        help="grpo (default) trains the policy; apo rewrites the instructions of one that is served (doc/apo.md)",
    )
    parser.add_argument("--config", type=named_path, help=f"YAML file with settings (see {shipped_settings()})")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="A.B=C",
        dest="overrides",
        help="one setting or several, e.g. --set optim.learning_rate=3e-5 trainer.steps=40",
    )
    parser.add_argument(
        "--model",
        type=named_path,
        help="the policy, a Hugging Face folder or its id on the hub, ORG/NAME; default: a small one, made here",
    )
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="with --algorithm apo: where the policy is served, up to /v1; --model names it",
    )
    parser.add_argument(
        "--apo-base-url",
        metavar="URL",
        help="with --algorithm apo: where the model is served that writes critiques and edits; its key is read from "
        "OPENAI_API_KEY",
    )
    parser.add_argument("--apo-model", metavar="NAME", help="its name at that address")
    parser.add_argument(
        "--env", help=f"what to train on: {', '.join(ENVIRONMENTS)}, or your own, FILE.py:NAME; default dbbench"
    )
    parser.add_argument(
        "--database",
        type=named_database,
        help=f"your own: {known_places()}; with --train-file, rows of `question` and `query`",
    )
    parser.add_argument(
        "--agent",
        metavar="FILE.py:NAME",
        help="your own agent, of openai-agents, LangGraph or agent-lightning; with --train-file, rows of any "
        "shape, and with --reward, unless it gives its own reward as agent-lightning's do",
    )
    parser.add_argument(
        "--train-agents", metavar="NAME,...", help="train the turns of these agents of --agent only; default all"
    )
    parser.add_argument("--train-file", type=named_path, help="tasks to train on; default: generated")
    parser.add_argument("--val-file", type=named_path, help="held-out tasks; default: split off or generated")
    parser.add_argument(
        "--instructions",
        type=named_path,
        metavar="FILE",
        help="text that replaces what the first prompt says about how to act (dbbench, --database)",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], type=lambda name: name.replace("cuda", "gpu"))
    parser.add_argument("--llm-proxy", action="store_true", help="trace turns in the LLM proxy, not in the runner")
    parser.add_argument(
        "--external-store-address",
        metavar="URL",
        help="a store kept outside (`python -m "
        f"sql_agent.store_server`, `agl store`); needs AGL_MANAGED_STORE=0, and is {USUAL_STORE} then unless given",
    )
    parser.add_argument("--reward-model-url", metavar="URL", help="a scoring service; its score joins the reward")
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME[=WEIGHT]",
        help="a preset (agentbench, agent_peft, rllm), a function of yours (FILE.py:NAME or module:NAME), or judge; "
        "repeat to sum several",
    )
    parser.add_argument("--judge-url", metavar="URL", help="an LLM as judge, its address up to /v1; see --reward judge")
    parser.add_argument("--judge-model", help="the judge's name at that address; its key is read from JUDGE_API_KEY")
    parser.add_argument("--judge-rubric", type=named_path, metavar="FILE", help="text with what to score, 0 to 1")
    parser.add_argument("--n-runners", type=int, help="runner processes")
    parser.add_argument("--lora", action="store_true", help="train a LoRA adapter instead of all weights")
    parser.add_argument("--lora-rank", type=int, help="rank of the adapter (with --lora; default 16)")
    parser.add_argument("--run-dir", type=named_path, help="folder for all files of the run; default runs/sql-agent")
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
    # Flags override the file, and `--set` overrides them.
    flags: list[str] = []
    for name, overrides in CI_OVERRIDES.items():
        flags += overrides if getattr(args, name) else []
    plain = {
        "algorithm": args.algorithm,
        "base_url": args.base_url,
        "apo.base_url": args.apo_base_url,
        "apo.gradient_model": args.apo_model,
        "model": args.model,
        "env.type": args.env or ("agent" if args.agent else "text2sql" if args.database else None),
        "env.agent": args.agent,
        "env.database": args.database,
        "data.train_file": args.train_file,
        "data.val_file": args.val_file,
        "agent.instructions": args.instructions,
        "engine.device": args.device,
        "store.address": args.external_store_address,
        "reward_model.url": args.reward_model_url,
        "judge.url": args.judge_url,
        "judge.model": args.judge_model,
        "judge.rubric": args.judge_rubric,
        "rollout.n_runners": args.n_runners,
        "run_dir": args.run_dir,
        "trainer.resume": args.resume,
        "llm_proxy": True if args.llm_proxy or args.agent else None,
        "lora.rank": (args.lora_rank or 16) if args.lora else args.lora_rank,
    }
    # JSON is YAML: a path with a "#" or with only digits stays a text
    text = {key: v if isinstance(v, bool | int) else str(v) for key, v in plain.items() if v is not None}
    flags += [f"{key}={json.dumps(v)}" for key, v in text.items()]
    if args.reward:
        flags.append(f"rollout.reward={json.dumps(weights_of(args.reward))}")
    if args.train_agents:
        flags.append(f"rollout.train_agents={json.dumps(args.train_agents.split(','))}")
    if args.lora_rank is not None and args.lora_rank < 1:
        raise UsageError(
            f"--lora-rank is {args.lora_rank}, expected 1 or more; leave it and --lora out to train all weights"
        )
    cfg = load_config(args.config, flags + args.overrides)
    if args.lora and not cfg.lora.rank:
        raise UsageError("--lora and lora.rank=0 contradict each other: 0 trains all weights; leave one of them out")
    return cfg
