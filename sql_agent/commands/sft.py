"""Fine-tune a chat model on demonstrations: the loss is on what the assistant says, and on nothing else.

    agentgrpo sft --num-tasks 10 --num-epochs 1      # a quick test: the small policy, generated tasks
    agentgrpo sft --model MODEL --dataset dbbench --run-dir outputs/sft
    agentgrpo sft --model MODEL --dataset demonstrations.jsonl --num-epochs 3

--dataset is one of
  dbbench   DB-Bench tasks played by the scripted oracle: the episodes that the judge calls right (the default)
  text2sql  your own questions with their reference queries: --database FILE.sqlite --train-file train.json
  gsm8k     GSM8K's solutions with calculator calls; gsm8k:FILE and gsm8k:generated need no network
  FILE      JSONL in TRL's forms: {"messages": [...], "tools": [...]}, {"prompt": ..., "completion": ...} with messages
            or texts, {"text": ...}; texts are learnt without a chat template
Without it, --env FILE.py:NAME plays the references in the rows of --train-file in an environment of your own.

The command writes an adapter with its tokenizer, which every --model takes (a whole model with --lora-rank 0),
metrics.jsonl, sft.json and checkpoints/ into --run-dir. doc/sft.md explains it.
"""

from collections.abc import Sequence

from agentgrpo.hub import go_offline
from sql_agent.settings.flags import read_flags, training_parser
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.command import quiet_libraries, run_command


def parse(argv: Sequence[str] | None = None) -> tuple[SftConfig, bool]:
    parser = training_parser("sft", __doc__, SftConfig)
    args = parser.parse_args(argv)
    return read_flags(parser, SftConfig, args), args.resume


def main(argv: Sequence[str] | None = None) -> int:
    cfg, resume = parse(argv)
    quiet_libraries()
    if cfg.dataset != "gsm8k":
        go_offline()
    from sql_agent.sft.run import prepare, train
    from sql_agent.tiny_policy.make import make_if_default

    make_if_default(cfg.model_path)
    return run_command(lambda: prepare(cfg, resume=resume), train, cfg)
