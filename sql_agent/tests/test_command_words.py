"""A message names settings as the command does that prints it, and what cannot be meant is refused in a sentence."""

import pytest

from agentgrpo.printed_commands import agentgrpo_command
from sql_agent.commands import greedy_grpo, gsm8k, local, sft
from sql_agent.settings.flags import message_formatter
from sql_agent.settings.local import GreedyGrpoConfig, Gsm8kGrpoConfig, LocalGrpoConfig
from sql_agent.settings.single_skill import said_here
from sql_agent.settings.tuning import SftConfig

LOCAL, SFT = message_formatter(LocalGrpoConfig), message_formatter(SftConfig)


@pytest.mark.parametrize(
    ("message", "local", "single_skill"),
    [
        (
            "rollout.reward names judge; add --judge-url and --judge-rubric",
            "--reward names judge; add --judge-url and --judge-rubric",
            "task.reward names judge; add task.llm_judge.url and task.llm_judge.rubric",
        ),
        (
            "judge.timeout_s (120), reward_model.give_up_s=3 allows",
            "--judge-timeout-s (120), --reward-model-give-up-s 3 allows",
            "task.llm_judge.timeout_s (120), task.reward_model.give_up_s=3 allows",
        ),
        (
            "env.type=gsm8k; name one with --set env.database=FILE, or --reward FILE.py:NAME",
            "--env gsm8k; name one with --database FILE, or --reward FILE.py:NAME",
            "env.type=gsm8k; name one with --set env.database=FILE, or task.reward=FILE.py:NAME",  # it has neither
        ),
        # a shipped name for a setting, and the one that its files keep
        (
            "lora.rank, --lora-rank 8",
            "--lora-rank, --lora-rank 8",
            "language_model.adapter.r, language_model.adapter.r=8",
        ),
        # what is longer is another setting, a file or an own setting of the same name
        (
            "rollout.reward_x my.rollout.reward runs/agent.top_p --judge-urls task.reward_model.url",
            "rollout.reward_x my.rollout.reward runs/agent.top_p --judge-urls task.reward_model.url",
            "rollout.reward_x my.rollout.reward runs/agent.top_p --judge-urls task.reward_model.url",
        ),
        ("agent.max_turns", "--max-turns", "agent.max_turns"),
        (
            "start one with `agentgrpo train --model M --set agent.top_p=1`, or lower agent.top_p",
            "start one with `agentgrpo train --model M --set agent.top_p=1`, or lower --top-p",
            "start one with `agentgrpo train --model M --set agent.top_p=1`, or lower agent.top_p",
        ),
    ],
)
def test_settings_of_the_main_job_get_this_commands_names(message, local, single_skill):
    assert (LOCAL(message), said_here(message)) == (local, single_skill)
    assert (LOCAL(local), said_here(single_skill)) == (local, single_skill)


def test_a_command_without_a_setting_keeps_the_main_jobs_name():
    message = "env.database, data.max_prompt_tokens, loss.kl_coef"
    assert [message_formatter(config)(message) for config in (GreedyGrpoConfig, Gsm8kGrpoConfig, SftConfig)] == [
        "env.database, data.max_prompt_tokens, --kl-coef",
        "env.database, --max-prompt-tokens, --kl-coef",
        "--database, --max-prompt-tokens, loss.kl_coef",
    ]


# What cannot be meant ------------------------------------------------------------------------------------------------


NOT_MEASURED = (
    "--eval-every 2 measures on held-out tasks, and --eval-tasks is 0; give their number, or leave --eval-every out"
)
PARSERS = {"local": local.parse, "greedy-grpo": greedy_grpo.parse_args, "gsm8k": gsm8k.main, "sft": sft.parse_argv}


def refusal(capsys, command, *words):
    with pytest.raises(SystemExit):
        PARSERS[command]([*words])
    return capsys.readouterr().err.splitlines()[-1].partition(": error: ")[2]


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("greedy-grpo", ["--skills", "selct"], "unknown skill 'selct'; did you mean select?"),
        ("gsm8k", ["--reward", "judge"],
         "--reward names judge, and no LLM is given; add --judge-url, --judge-model and --judge-rubric"),
        ("local", ["--eval-tasks", "0", "--eval-every", "2"],
         NOT_MEASURED),
        ("gsm8k", ["--eval-every", "2"],
         NOT_MEASURED),
        ("greedy-grpo", ["--eval-every", "2"],
         NOT_MEASURED),
        ("local", ["--reward-model-weight", "0.1"],
         "--reward-model-weight has no effect without a reward model; add --reward-model-url, or leave it out"),
        ("gsm8k", ["--judge-max-calls", "5"],
         "--judge-max-calls has no effect without an LLM as judge; add --judge-url, --judge-model and --judge-rubric, "
         "or leave it out"),
        ("greedy-grpo", ["--beta", "0.04", "--kl-coef=0"],
         "--beta and --kl-coef are names of one flag; give one of them"),
        ("sft", ["--lora-rank", "0", "--lora-dropout", "0.1"],
         "--lora-dropout is for an adapter, and --lora-rank 0 trains all weights; leave one of them out"),
        ("gsm8k", ["--train-file", "x.jsonl"], "unrecognized arguments: --train-file; did you mean --dataset?"),
        ("greedy-grpo", ["--env", "gsm8k"], "unrecognized arguments: --env; did you mean "
         f"`{agentgrpo_command('local', '--env')}`?"),
        ("gsm8k", ["--database=a.sqlite"],
         "unrecognized arguments: --database; did you mean "
         f"`{agentgrpo_command('local', '--database')}`?"),
        ("local", ["--agent", "a.py:a"], "unrecognized arguments: --agent; did you mean "
         f"`{agentgrpo_command('train', '--agent')}`?"),
        ("local", ["--reward-model-timeout-s", "200", "--reward-model-url", "http://h:1"],
         "--reward-model-timeout-s (200) is longer than --reward-model-give-up-s (120); a score has to be late before "
         "the service counts as gone: lower the first, or raise the second"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_a_sentence(capsys, command, words, said):
    assert refusal(capsys, command, *words) == said
