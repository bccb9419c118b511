"""Parses the flags of every command alike.

Dashes and underscores in a flag's name are the same. A flag may have earlier names, which work and are not shown. The
message about an unknown flag or value says which one is most like it or, of a usual name elsewhere, which one means it
here (`USUAL`). Passwords of database addresses are masked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NoReturn

from agentgrpo.passwords import masked
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.spelling import did_you_mean


@dataclass(frozen=True)
class FlagName:
    """The flag of a setting, in the setting's annotation, where it is not the setting's own name."""

    name: str | None
    """With dashes, and without those in front. None: the setting has no flag."""
    metavar: str | None = None
    """What `--help` shows for its value. None: N for whole numbers, X for others, else the end of the flag's name."""


def dashed(name: str) -> str:
    return name.replace("_", "-")


_EPOCHS = ("--num-epochs", "trainer.steps=N")
_BATCH = ("--batch-size", "data.train_batch_size")
_RATE, _KL = ("--learning-rate", "optim.learning_rate"), ("--kl-coef", "loss.kl_coef")
_RESPONSE = ("--max-tokens", "data.max_response_tokens")
# Names that TRL, transformers and verl use, each with ours: the first one that a command has, a flag or a setting of
# its `--set`, or, in backquotes, another command. None of them is taken for ours; only the message about it says which
# one is meant.
USUAL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("epochs", "num-epochs", "num-train-epochs", "total-epochs"), _EPOCHS),
    "max-steps": ("trainer.steps", "--num-epochs"),
    **dict.fromkeys(("lr", "learning-rate"), _RATE),
    **dict.fromkeys(("batch-size", "train-batch-size", "per-device-train-batch-size"), _BATCH),
    "num-generations": ("--group-size", "rollout.group_size"),
    **dict.fromkeys(("max-new-tokens", "max-tokens"), ("--max-tokens", "agent.max_tokens")),
    **dict.fromkeys(("max-completion-length", "max-response-length"), _RESPONSE),
    "max-prompt-length": ("--max-prompt-tokens", "data.max_prompt_tokens"),
    "max-seq-length": ("--max-length",),
    **dict.fromkeys(("beta", "kl-coef"), _KL),
    **dict.fromkeys(("save-steps", "save-freq"), ("--save-every", "trainer.save_every")),
    "eval-steps": ("trainer.val_every",),
    "lora-r": ("--lora-rank",),
    **dict.fromkeys(("max-samples", "max-train-samples"), ("--num-tasks",)),
    **dict.fromkeys(("eval-samples", "max-eval-samples"), ("--eval-tasks",)),
    "use-peft": ("--lora",),
    "output-dir": ("--run-dir",),
    "model-name-or-path": ("--model",),
    "dataset-name": ("--dataset", "--train-file"),
    "train-files": ("--train-file",),
    "train-file": ("--dataset",),
    **{name: (f"`{agentgrpo_command('local', f'--{name}')}`",) for name in ("env", "database")},
    "agent": (f"`{agentgrpo_command('train', '--agent')}`",),
}

# The values of `--device` that help shows; cuda is the same as gpu.
DEVICES = "{auto,cpu,gpu}"


def torch_device(name: str) -> str:
    """torch calls cuda what flags call gpu."""
    return "cuda" if name == "gpu" else name


def positive(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return float(text)


class Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.earlier_names: dict[str, str] = {}
        """Earlier names of flags, each with the name that is shown."""
        self.settings: Mapping[str, str] = {}
        """Settings that `--set` takes, by their own names, earlier ones and verl's."""
        super().__init__(*args, **options)

    def add_set(self, example: str) -> None:
        """Add --set, which is read into `overrides`."""
        self.add_argument(
            "--set",
            nargs="+",
            action="extend",
            default=[],
            metavar="A.B=C",
            dest="overrides",
            help=f"one setting or several, e.g. --set {example}",
        )

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # type: ignore[override]
        """Add an argument as argparse does; of several long names only the first is shown."""
        long = list(dict.fromkeys(dashed(name) for name in names if name.startswith("--")))
        self.rename_flag(*long)
        return super().add_argument(*(name for name in names if not name.startswith("--")), *long[:1], **options)

    def rename_flag(self, name: str = "", *earlier: str) -> None:
        """Let earlier names stand for a flag, and show none of them."""
        self.earlier_names |= dict.fromkeys(map(dashed, earlier), name)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        shown = [self._shown(word, after) for word, after in zip_longest(given[:end], given[1:end], fillvalue="")]
        self._refuse_two_names(given[:end], shown)
        return super().parse_known_args([*shown, *given[end:]], namespace)

    def _refuse_two_names(self, given: list[str], shown: list[str]) -> None:
        """End the command where two names of one flag are given: one of the values would be lost."""
        typed: dict[str, str] = {}
        for word, meant in zip(given, shown, strict=True):
            name, flag = (dashed(each.partition("=")[0]) for each in (word, meant))
            if flag in self._option_string_actions and (other := typed.setdefault(flag, name)) != name:
                self.error(f"{other} and {name} are names of one flag; give one of them")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; a setting that stands alone, as for Hydra, is answered with the way to give it."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parts = [word.partition("=") for word in unknown]
            ours = [self._ours(name, value) for name, equals, value in parts if equals]
            written = " ".join(dict.fromkeys(each for each in ours if each))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; write {written}' if written else ''}")
        return found

    def _ours(self, name: str, value: str) -> str | None:
        """The flag or `--set NAME=VALUE` that the name means here; None if that is not known."""
        name = dashed(name.lstrip("-+"))
        last = name.rpartition(".")[2]
        settings = {dashed(known): setting for known, setting in self.settings.items()}
        for each in USUAL.get(last, ()) if name not in settings else ():
            if each in self._option_string_actions or each.startswith("`"):
                return each
            if each.partition("=")[0] in self.settings:
                return f"--set {each}" if "=" in each else f"--set {each}={value or 'VALUE'}"
        meant = {setting for known, setting in settings.items() if known == name or known.rpartition(".")[2] == last}
        found = settings.get(name) or (meant.pop() if len(meant) == 1 else None)
        return found and f"--set {found}={value or 'VALUE'}"

    def _shown(self, word: str, after: str) -> str:
        """Replace a flag's name by the one that is shown.

        Args:
            after: the next word, "" if there is none.

        A flag that does not exist ends the command, before argparse asks for one that is missing.
        """
        name, equals, value = word.partition("=")
        if not name.startswith("--") or " " in name:
            return word
        name = self.earlier_names.get(dashed(name), dashed(name))
        options = self._option_string_actions
        if not any(option.startswith(name) for option in options):
            meant = {shown for earlier, shown in self.earlier_names.items() if earlier.startswith(name)}
            if len(meant) != 1:
                meaning = {**{option: option for option in options}, **self.earlier_names}
                given = value if equals else "" if after.startswith("--") else after
                ours = self._ours(name, given)
                meant_by = f"; did you mean {ours}?" if ours else did_you_mean(name, meaning)
                self.error(f"unrecognized arguments: {word.partition('=')[0]}{meant_by}")
            name = meant.pop()
        return name + equals + value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def error(self, message: str) -> NoReturn:
        super().error(masked(message, whole=True))


def described_parser(prog: str, doc: str | None) -> Parser:
    """A parser whose help is the text that a module begins with, line by line."""
    return Parser(prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
