"""Train a chat model on pairs by direct preference optimisation (DPO): the loss is on the assistant's tokens.

    agentgrpo dpo --model outputs/sft --dataset pairs.jsonl --run-dir outputs/dpo
    agentgrpo dpo --model MODEL --dataset preferences.parquet --beta 0.1 --num-epochs 2

--dataset is a file of pairs, and each row has a better and a worse continuation of a prompt:
  pairs of the agent's own rollouts, by `agentgrpo reward pairs --with-tools`
  output of agentgrpo reward convert
  TRL's forms and others that it reads, as JSONL, JSON or parquet
A tenth of the prompts is held out (--held-out-fraction), or --val-file FILE has the held-out pairs.

The command writes an adapter with its tokenizer, which every --model takes (a whole model with --lora-rank 0),
metrics.jsonl, dpo.json and checkpoints/ into --run-dir. doc/guides/dpo.md explains it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgrpo.hub import go_offline
from sql_agent.commands.sft import Work, quiet_libraries, require_start_model, run_command
from sql_agent.settings.flags import read_flags, training_parser
from sql_agent.settings.tuning import DpoConfig

if TYPE_CHECKING:
    from reward_model.datatypes import Preference
    from sql_agent.dpo.run import DpoRun


def main(argv: Sequence[str] | None = None) -> int:
    parser = training_parser("dpo", __doc__, DpoConfig)
    args = parser.parse_args(argv)
    cfg = read_flags(parser, DpoConfig, args)
    quiet_libraries()
    go_offline()

    def load() -> "Work[DpoRun]":
        rows, held_out = read_pairs(cfg)
        require_start_model(cfg)  # the default is made in a minute, so after the data are read
        from sql_agent.dpo.run import prepare_dpo, train_dpo

        return lambda: prepare_dpo(cfg, rows, held_out, resume=args.resume), train_dpo

    return run_command(load, cfg, "dpo.json", "dpo.json", resume=args.resume)


def read_pairs(cfg: DpoConfig) -> "tuple[Sequence[Preference], Sequence[Preference]]":
    """Pairs to train on, and held-out ones.

    Raises:
        ValueError: something is wrong; the message says what to do.
    """
    from reward_model.datatypes import prompt_key
    from reward_model.preferences import read_any_form, split_by_prompt
    from sql_agent.settings.groups import SPLIT_SEED

    rows, changes = read_any_form(cfg.dataset, cfg.columns)
    if cfg.val_file:
        held_out, more = read_any_form(cfg.val_file, cfg.columns)
        changes += more
        known = {prompt_key(row) for row in rows}
        if shared := sum(prompt_key(row) in known for row in held_out):
            print(f"warning: {shared} of {len(held_out)} held-out pairs have a prompt that is trained on")
    else:
        rows, held_out = split_by_prompt(rows, cfg.held_out_fraction, seed=SPLIT_SEED)
    for name, count in sorted(changes.items()):
        print(f"changed: {name}: {count}")
    return rows, held_out
