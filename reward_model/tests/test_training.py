import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoTokenizer

from agentgrpo import signed_checkpoints
from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from agentgrpo.checks import UsageError
from agentgrpo.pair_training import metrics_line, rename_metrics
from agentgrpo.run_folder import METRICS
from reward_model.arguments import TrainingArguments
from reward_model.datatypes import Preference, prompt_key
from reward_model.preferences import PreferenceFileError, split_by_prompt
from reward_model.scorer import RECORD
from reward_model.tests.conftest import assistant, counting_pairs, user
from reward_model.training import LINE, RENAMED, PairTrainer, RewardRunLog, checkpoint_to_resume, encode_preferences

# Splitting ------------------------------------------------------------------------------------------------------------


def several_per_prompt(prompts: int, pairs: int) -> list[Preference]:
    return [
        Preference(prompt=(user(f"question {n}"),), chosen=(assistant(f"right {k}"),), rejected=(assistant("wrong"),))
        for k in range(pairs)
        for n in range(prompts)
    ]


def test_no_prompt_is_both_trained_on_and_held_out():
    rows = several_per_prompt(prompts=20, pairs=5)
    train, held_out = split_by_prompt(rows, 0.1, seed=0)
    assert {prompt_key(row) for row in train} & {prompt_key(row) for row in held_out} == set()
    assert (len(train), len(held_out)) == (90, 10)  # two prompts of five pairs are a tenth of 100
    assert sorted(map(repr, train + held_out)) == sorted(map(repr, rows))


def test_a_prompt_is_one_prompt_however_the_arguments_of_its_calls_are_written():
    def asked(arguments):
        call = ToolCall(id="call00001", function=FunctionCall(name="execute_sql", arguments=arguments))
        result = Message(role="tool", content="[(12,)]", tool_call_id="call00001")
        prompt = (user("How many?"), Message(role="assistant", tool_calls=(call,)), result)
        return Preference(prompt=prompt, chosen=(assistant("12"),), rejected=(assistant("7"),))

    given = ('{"query": "SELECT 12", "limit": 1}', '{"limit":1,"query":"SELECT 12"}', '{"query": "SELECT 13"}')
    keys = [prompt_key(asked(arguments)) for arguments in given]
    assert (keys[0] == keys[1], keys[0] == keys[2]) == (True, False)


def test_the_split_is_the_same_each_time_whatever_the_order_and_another_for_another_seed():
    rows = several_per_prompt(prompts=20, pairs=2)
    held_out = split_by_prompt(rows, 0.2, seed=0)[1]
    assert split_by_prompt(rows, 0.2, seed=0)[1] == held_out
    assert sorted(map(repr, split_by_prompt(rows[::-1], 0.2, seed=0)[1])) == sorted(map(repr, held_out))
    assert split_by_prompt(rows, 0.2, seed=1)[1] != held_out


def test_a_fraction_of_none_holds_nothing_out_and_the_least_one_prompt():
    rows = several_per_prompt(prompts=4, pairs=1)
    assert split_by_prompt(rows, 0.0, seed=0) == (rows, [])
    assert len(split_by_prompt(rows, 0.01, seed=0)[1]) == 1


@pytest.mark.parametrize("fraction", [1.0, -0.1, math.nan])
def test_a_fraction_that_leaves_nothing_to_train_on_is_refused(fraction):
    with pytest.raises(UsageError, match=f"--held-out-fraction is {fraction}, expected 0 or more and less than 1"):
        split_by_prompt(several_per_prompt(2, 2), fraction, seed=0)


def test_one_prompt_cannot_be_split():
    with pytest.raises(
        UsageError, match="all 3 pairs have one prompt, so none can be held out; give a file of held-out pairs"
    ):
        split_by_prompt(several_per_prompt(1, 3), 0.1, seed=0)


# Encoding -------------------------------------------------------------------------------------------------------------

CALL = Message(
    role="assistant",
    tool_calls=(ToolCall(id="1", function=FunctionCall(name="execute_sql", arguments='{"query": "SELECT 1"}')),),
)
AGENT = Preference(
    prompt=(Message(role="system", content="s"), user("How many?")),
    chosen=(CALL, Message(role="tool", content="[(1,)]", tool_call_id="1"), assistant("1")),
    rejected=(assistant("2"),),
    tools='[{"type": "function", "function": {"name": "execute_sql", "parameters": {"type": "object"}}}]',
)
LONG = Preference(prompt=(user("which " * 60),), chosen=(assistant("1"),), rejected=(assistant("2"),))


@pytest.mark.parametrize("max_length", [64, None])
def test_pairs_are_encoded_as_trl_encodes_them(base, max_length):
    from datasets import Dataset
    from trl.trainer.reward_trainer import RewardTrainer

    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [*counting_pairs(5), AGENT, LONG]
    theirs = RewardTrainer._prepare_dataset(
        None,
        Dataset.from_list([row.to_dict() for row in rows]),
        tokenizer,
        SimpleNamespace(dataset_num_proc=None, max_length=max_length),
        "train",
    )
    ours = encode_preferences(rows, tokenizer, max_length, "pairs.jsonl")
    assert len(ours) == (6 if max_length else 7)
    assert ours["chosen_ids"][:] == theirs["chosen_ids"][:]
    assert ours["rejected_ids"][:] == theirs["rejected_ids"][:]


def test_where_all_pairs_are_too_long_the_shortest_is_named(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    longest = len(encode_preferences(counting_pairs(1), tokenizer, None, "p")["chosen_ids"][0])
    assert len(encode_preferences(counting_pairs(1), tokenizer, longest, "p")) == 1
    words = f"all 1 pairs of p are longer than --max-length {longest - 1}; the shortest has {longest} tokens"
    with pytest.raises(UsageError, match=words):
        encode_preferences(counting_pairs(1), tokenizer, longest - 1, "p")


def test_a_row_that_the_template_refuses_is_named(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') if messages|length > 2 }}{{ messages }}"
    words = (
        r"p, pair with the prompt 'How many\?': the chat template of .* refuses the conversation "
        r"\(TemplateError: roles must alternate\); leave such rows out"
    )
    with pytest.raises(PreferenceFileError, match=words):
        encode_preferences([counting_pairs(1)[0], AGENT], tokenizer, None, "p")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    assert len(encode_preferences(counting_pairs(1), tokenizer, None, "p")) == 1
    with pytest.raises(
        PreferenceFileError, match=r"'How many\?': .* leaves out the arguments of tool calls; leave such"
    ):
        encode_preferences([counting_pairs(1)[0], AGENT], tokenizer, None, "p")


# The log --------------------------------------------------------------------------------------------------------------


def test_the_trainers_numbers_get_our_names_and_what_is_left_out_is_named_there():
    logs = {"loss": 0.7, "eval_loss": 0.6, "eval_accuracy": 1.0, "eval_runtime": 2.0, "train_samples_per_second": 9.0}
    assert rename_metrics(logs, RENAMED) == {
        "pair/loss": 0.7,
        "val/pair/loss": 0.6,
        "val/pair/accuracy": 1.0,
        "time/validation_s": 2.0,
    }


def test_a_line_shows_what_was_measured():
    metrics = {"pair/loss": 0.69314, "pair/accuracy": 0.5, "pair/margin": -0.01, "time/step_s": 0.256}
    assert metrics_line(metrics, LINE) == "loss 0.6931  accuracy 50.0%  margin -0.010  0.26 s/step"


def test_metrics_after_the_checkpoint_and_half_a_line_are_taken_again(tmp_path):
    lines = [json.dumps({"train_step": step}) + "\n" for step in (1, 2, 3)]
    (tmp_path / METRICS).write_text("".join(lines) + '{"train_st')
    state = SimpleNamespace(global_step=2, max_steps=9, is_world_process_zero=True)
    args = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    RewardRunLog(tmp_path, {}, {"seed": 3}).on_train_begin(args, state, None)
    assert (tmp_path / "config.yaml").read_text() == "seed: 3\n"
    start = json.loads((tmp_path / "run.json").read_text())
    assert [start[name] for name in ("kind", "steps", "device")] == ["reward train", 9, "cpu"]
    assert (tmp_path / METRICS).read_text() == "".join(lines[:2])


# Going on -------------------------------------------------------------------------------------------------------------

RUN = {
    "base": {"sha256": "b"},
    "tokenizer_sha256": "t",
    "dataset": {"sha256": "d"},
    "processes": 1,
    "settings": {"seed": 0, "lora_r": 16},
}


def arguments(output, resume="auto"):
    return SimpleNamespace(output_dir=str(output), resume_from_checkpoint=resume)


def checkpoints(output, **steps):
    """`checkpoint_2="whole"`, `"torn"` or `"changed"`."""
    for name, state in steps.items():
        folder = output / name.replace("_", "-")
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
        if state != "torn":
            signed_checkpoints.seal(folder, RECORD, RUN)
        if state == "changed":
            (folder / "model.safetensors").write_bytes(b"x")


@pytest.mark.parametrize(
    ("steps", "newest", "said"),
    [
        pytest.param({}, None, [], id="nothing_yet"),
        pytest.param({"checkpoint_2": "whole", "checkpoint_10": "whole"}, "checkpoint-10", [], id="by_number_not_name"),
        pytest.param(
            {"checkpoint_2": "torn", "checkpoint_4": "whole", "checkpoint_6": "changed", "checkpoint_8": "torn"},
            "checkpoint-4",
            [
                "checkpoint {}/checkpoint-8 is skipped: reward_model.json is missing, so it was not written to its end",
                "checkpoint {}/checkpoint-6 is skipped: model.safetensors has 1 bytes, expected 0",
            ],
            id="the_newest_whole_one",
        ),
        pytest.param(
            {"checkpoint_2": "torn"},
            None,
            [
                "checkpoint {}/checkpoint-2 is skipped: reward_model.json is missing, so it was not written to its end",
                "no checkpoint in {} is complete: starting a new run",
            ],
            id="none_is_whole",
        ),
    ],
)
def test_the_newest_whole_checkpoint_is_gone_on_from(tmp_path, steps, newest, said):
    checkpoints(tmp_path, **steps)
    heard = []
    assert checkpoint_to_resume(arguments(tmp_path), RUN, heard.append) == (newest and tmp_path / newest)
    assert heard == [line.format(tmp_path) for line in said]


def test_a_checkpoint_of_another_run_is_refused_with_what_changed(tmp_path):
    checkpoints(tmp_path, checkpoint_2="whole")
    now = RUN | {"tokenizer_sha256": "u", "dataset": {"sha256": "e"}, "settings": {"seed": 0, "lora_r": 8}}
    words = (
        r"belongs to another run \(tokenizer or chat template: was t, is u; dataset: was d, is e; "
        r"lora_r: was 16, is 8\); name another --run-dir"
    )
    with pytest.raises(UsageError, match=words):
        checkpoint_to_resume(arguments(tmp_path), now)


def test_a_finished_model_is_not_written_over(tmp_path):
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(UsageError, match="holds a finished reward model without checkpoints; name another"):
        checkpoint_to_resume(arguments(tmp_path), RUN)


def test_a_named_checkpoint_has_to_be_one(tmp_path):
    checkpoints(tmp_path, checkpoint_2="torn", checkpoint_1="whole")
    with pytest.raises(
        UsageError, match=r"checkpoint-2 is no checkpoint .*: no reward_model.json; give one, or auto for"
    ):
        checkpoint_to_resume(arguments(tmp_path, tmp_path / "checkpoint-2"), RUN)
    assert checkpoint_to_resume(arguments(tmp_path, tmp_path / "checkpoint-1"), RUN) == tmp_path / "checkpoint-1"


@pytest.mark.parametrize("resume", ["auto", "by_name"])
def test_a_checkpoint_that_this_user_did_not_sign_is_refused(tmp_path, resume):
    checkpoints(tmp_path, checkpoint_1="whole", checkpoint_2="whole")
    folder = tmp_path / "checkpoint-2"
    (folder / RECORD).write_text(json.dumps(RUN))
    named = arguments(tmp_path, "auto" if resume == "auto" else folder)
    with pytest.raises(
        signed_checkpoints.NotOursError, match=r"checkpoint-2/reward_model.json is not signed.*agentgrpo accept"
    ):
        checkpoint_to_resume(named, RUN)


# The loop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 160, 10_000], ids=["one_pair", "some_pairs", "whole_batch"])
def test_micro_batches_change_the_memory_and_not_the_gradient_nor_the_metrics(base, tmp_path, tokens):
    tokenizer = AutoTokenizer.from_pretrained(base)
    long = Preference(prompt=(user("count on " * 10),), chosen=(assistant("1"),), rejected=(assistant("2 " * 9),))
    rows = encode_preferences([long, *counting_pairs(4)], tokenizer, 256, "rows")
    args = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, disable_dropout=True, micro_batch_tokens=tokens, report_to="none",
        per_device_train_batch_size=5, eval_strategy="no",
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = PairTrainer(model=str(base), args=args, train_dataset=rows, processing_class=tokenizer)
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(5)])
    assert len(list(trainer._parts(batch))) == {1: 5, 160: 2, 10_000: 1}[tokens]
    model, trainer.current_gradient_accumulation_steps = trainer.model.train(), 1
    loss = trainer.training_step(model, batch)
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])

    model.zero_grad()
    scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.squeeze(-1)
    chosen, rejected = scores.chunk(2)
    whole = -logsigmoid(chosen - rejected).mean() + 0.01 * (chosen + rejected).square().mean()
    whole.backward()
    torch.testing.assert_close(loss, whole.detach(), rtol=1e-5, atol=1e-6)
    expected = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    assert {name: values for name, values in trainer._metrics["train"].items()} == {
        "num_tokens": [batch["attention_mask"].sum().item()],
        "min_reward": pytest.approx([scores.min().item()], abs=1e-6),
        "mean_reward": pytest.approx([scores.mean().item()], abs=1e-6),
        "max_reward": pytest.approx([scores.max().item()], abs=1e-6),
        "accuracy": pytest.approx([(chosen > rejected).float().mean().item()]),
        "margin": pytest.approx([(chosen - rejected).mean().item()], abs=1e-6),
    }


@pytest.mark.parametrize(
    ("given", "parameters", "pays", "expected"),
    [
        pytest.param({}, 134_515_008, True, True, id="large_model"),
        pytest.param({}, 918_000, True, False, id="small_model"),
        pytest.param({}, 134_515_008, False, False, id="cpu_without_it"),
        pytest.param({"bf16": False}, 134_515_008, True, False, id="refused"),
        pytest.param({"bf16": True}, 918_000, False, True, id="asked_for"),
    ],
)
def test_a_cpu_trains_in_bfloat16_where_that_pays(monkeypatch, tmp_path, given, parameters, pays, expected):
    monkeypatch.setattr("agentgrpo.machine.bfloat16_pays", lambda: pays)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **given)
    args.suit(parameters)
    assert (args.bf16, args.mixed_precision) == (expected, "bf16" if expected else "no")
