"""Every command spells its flags alike, and what the predecessors' users type means what it always meant."""

import functools
import re
import shlex
from pathlib import Path

import pytest

from agentgrpo import main
from agentgrpo.flags import Parser
from scripts.pages.commands import parsed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "doc" / "project/predecessors.md").read_text()
STARTS = re.compile(r"^    (?:execute\(main\)|run_module\()", re.MULTILINE)
READS_FLAGS = re.compile(r"[^.]\bParser\(|parse_args\(|import parse$", re.MULTILINE)
COMMANDS = sorted(
    {module for module, _ in main.COMMANDS.values()}
    | {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for folder in ("dbbench_adapter", "reward_model", "sql_agent")
        for file in (ROOT / folder).rglob("*.py")
        if "tests" not in file.parts and STARTS.search(text := file.read_text()) and READS_FLAGS.search(text)
    }
)


@functools.cache
def parser_of(command: str) -> Parser:
    return parsed(command).parser


def shown_names(parser: Parser) -> list[str]:
    return re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)", parser.format_help(), re.MULTILINE)


def test_the_commands_are_found():
    assert {"sql_agent.train_sql_agent", "sql_agent.commands.sft", "reward_model.reward_modeling"} < set(COMMANDS)
    assert len(COMMANDS) > 40


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_is_shown_once_and_with_dashes_and_its_earlier_names_reach_it(command):
    parser = parser_of(command)
    shown = shown_names(parser)
    assert [name for name in shown if "_" in name] == []
    assert len(shown) == len(set(shown))
    assert set(parser.earlier_names.values()) <= set(shown)
    assert set(parser.earlier_names) & set(shown) == set()


OWN_MEANING = {
    ("--beta", "sql_agent.commands.dpo"),  # DPO's, which is no weight of a KL term
    ("--data", "reward_model.evaluate"),  # preferences
    ("--data", "reward_model.merge"),
    *((name, "reward_model.reward_modeling") for name in ("--output-dir", "--lora-r", "--save-steps")),  # TRL's
}
"""Flags that are called like an earlier name of another command's flag."""
FILES_OF_TASKS = {"--tasks", "--train-file", "--val-file"}
"""Names of one another: a command that trains has the last two, one that plays a file has the first."""


def test_no_command_shows_the_earlier_name_of_another_ones_flag():
    ours = [command for command in COMMANDS if command != "reward_model.reward_modeling"]
    earlier = {name for command in ours for name in parser_of(command).earlier_names} - FILES_OF_TASKS
    shown = {(name, command) for command in COMMANDS for name in shown_names(parser_of(command))}
    assert {(name, command) for name, command in shown if name in earlier} == OWN_MEANING


@pytest.mark.parametrize(
    ("command", "typed", "flags"),
    [
        (
            "sql_agent.train_sql_agent",
            "--llm-proxy --model /path/to/model --external-store-address http://localhost:9999",
            {"llm_proxy": True, "model": Path("/path/to/model"), "external_store_address": "http://localhost:9999"},
        ),
        ("sql_agent.train_sql_agent", "--ci-fast", {"ci_fast": True}),
        (
            "reward_model.convert_dpo_format",
            "--input=raw.jsonl --output=converted.jsonl",
            {"input": Path("raw.jsonl"), "output": Path("converted.jsonl")},
        ),
        (
            "reward_model.reward_modeling",
            "--dataset_name ./converted.jsonl --model_name_or_path Qwen/Qwen2.5-7B-Instruct",
            {"dataset_name": "./converted.jsonl", "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct"},
        ),
        ("reward_model.inference_api", "--model_path ./merged_model", {"model": Path("merged_model")}),
        (
            "sql_agent.commands.generate",
            "--num_samples 100 --output_path ./data/entry_dict.json",
            {"num_tasks": 100, "output": Path("data/entry_dict.json")},
        ),
        (
            "sql_agent.commands.single_skill_data",
            "--input_data_path a.json --output_path b.json --min_tasks_per_skill 1",
            {"input": Path("a.json"), "output": Path("b.json"), "min_tasks_per_skill": 1},
        ),
        ("sql_agent.commands.download", "--output_dir ./data/hf", {"output": Path("data/hf")}),
        ("sql_agent.commands.single_skill", "--config_path a.yaml", {"config": Path("a.yaml")}),
        (
            "sql_agent.commands.sft",
            "--model_path Qwen/Qwen2.5-0.5B --dataset gsm8k --num_epochs 3 --output_dir ./outputs/sft",
            {"model": "Qwen/Qwen2.5-0.5B", "dataset": "gsm8k", "num_epochs": "3", "run_dir": Path("outputs/sft")},
        ),
        (
            "sql_agent.commands.gsm8k",
            "--model_path m --dataset a --samples_per_prompt 4 --max_new_tokens 256 --total_epochs 3 --output_dir o",
            {"model": "m", "dataset": "a", "group_size": "4", "max_tokens": "256", "num_epochs": "3",
             "run_dir": Path("o")},
        ),
        ("sql_agent.commands.gsm8k", "--max_samples 5 --total_epochs 1", {"num_tasks": "5", "num_epochs": "1"}),
        ("sql_agent.commands.interactive", "--model_path ./outputs/rl/epoch_3", {"model": "./outputs/rl/epoch_3"}),
        ("sql_agent.commands.merge", "--local_dir a --target_dir b", {"checkpoint": Path("a"), "output": Path("b")}),
    ],
)  # fmt: skip
def test_what_the_predecessors_users_type_means_the_same(command, typed, flags):
    read = parsed(command, *shlex.split(typed)).flags
    assert {name: read[name] for name in flags} == flags


@pytest.mark.parametrize(
    ("command", "typed", "flags"),
    [
        (
            "sql_agent.commands.sft",
            "--model m --run-dir r --train-file t --lora-rank 4 --save-every 5",
            {"model": "m", "run_dir": Path("r"), "train_file": Path("t"), "lora_rank": "4", "save_every": "5"},
        ),
        ("sql_agent.commands.dpo", "--train-file a --val_file b", {"dataset": Path("a"), "val_file": Path("b")}),
        ("sql_agent.commands.interactive", "--train-file a --task gsm8k", {"tasks": "a", "env": "gsm8k"}),
        ("sql_agent.commands.doctor", "--tasks a", {"train_file": Path("a")}),
        ("sql_agent.commands.dpo", "--dataset a --device gpu", {"device": "cuda"}),
        ("sql_agent.train_sql_agent", "--device cuda", {"device": "gpu"}),
        ("reward_model.reward_modeling", "--model m --train-file a --run-dir r",
         {"model_name_or_path": "m", "dataset_name": "a", "output_dir": "r"}),
    ],
)  # fmt: skip
def test_one_thing_has_one_name_in_every_command(command, typed, flags):
    read = parsed(command, *shlex.split(typed)).flags
    assert {name: read[name] for name in flags} == flags


def test_the_commands_of_the_predecessors_page_are_read_whole():
    block = re.compile(r"^(?:\.venv/bin/)?python3? (?:-m )?(\S+)((?: [^<\n]*)?)", re.MULTILINE)
    lines = [found for text in re.findall(r"```[a-z]*\n(.*?)```", PAGE, re.DOTALL) for found in block.findall(text)]
    assert len(lines) > 5
    for script, words in lines:
        file = ROOT / f"{script.removesuffix('.py').replace('.', '/')}.py"
        earlier = re.search(r'script\("(.+)"\)', file.read_text())
        command = main.COMMANDS[earlier[1]][0] if earlier else ".".join(file.relative_to(ROOT).with_suffix("").parts)
        assert parsed(command, *shlex.split(words, comments=True)).parser.prog
