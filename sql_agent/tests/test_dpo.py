"""DPO's tokens, mask and loss, on an untrained model of one layer."""

import json
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from agentgrpo.chat.template import ChatTemplateError
from agentgrpo.checks import UsageError
from reward_model.datatypes import Preference
from reward_model.tests.conftest import assistant, counting_pairs, make_base, user
from sql_agent.dpo.trainer import calls_without_tools, encode_pairs, make_trainer
from sql_agent.settings.tuning import DpoConfig
from sql_agent.sft.fine_tuning import Lora, load_trainable

BETA = 0.3
TOOLS = json.dumps([{"type": "function", "function": {"name": "execute_sql", "parameters": {"type": "object"}}}])


def asks(sql: str) -> Message:
    call = ToolCall(id="call00001", function=FunctionCall(name="execute_sql", arguments=json.dumps({"query": sql})))
    return Message(role="assistant", tool_calls=(call,))


def told(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="call00001")


EXAMPLE = (user("Example: 1?"), assistant("One."))
WITH_TOOLS = Preference(
    prompt=(*EXAMPLE, user("How many?")),
    chosen=(asks("SELECT 12"), told("[(12,)]"), assistant("12")),
    rejected=(asks("SELECT 7"), told("[(7,)]"), asks("SELECT 8"), told("[(8,)]"), assistant("7")),
    tools=TOOLS,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def tokenizer(base):
    return AutoTokenizer.from_pretrained(base)


def parts(tokenizer, one) -> list[tuple[int, str]]:
    """Stretches of equal mask, as text."""
    stretches = groupby(zip(one.mask, one.ids, strict=True), key=lambda pair: pair[0])
    return [(said, tokenizer.decode([token for _, token in tokens])) for said, tokens in stretches]


# Tokens and mask ------------------------------------------------------------------------------------------------------


def test_the_policy_says_its_replies_after_the_prompt_and_nothing_else(tokenizer):
    [pair] = encode_pairs(tokenizer, [WITH_TOOLS], "pairs.jsonl", max_length=400)
    prompt = (
        "<|im_start|>user\nExample: 1?<|im_end|>\n<|im_start|>assistant\nOne.<|im_end|>\n"
        "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
    )

    def call(sql):
        return f'<tool_call>\n{{"name": "execute_sql", "arguments": {{"query": "{sql}"}}}}\n</tool_call><|im_end|>'

    def result(text):
        return f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"

    chosen = [(0, prompt), (1, call("SELECT 12")), (0, result("[(12,)]")), (1, "12<|im_end|>")]
    rejected = [
        (0, prompt),
        (1, call("SELECT 7")),
        (0, result("[(7,)]")),
        (1, call("SELECT 8")),
        (0, result("[(8,)]")),
        (1, "7<|im_end|>"),
    ]
    assert parts(tokenizer, pair.chosen) == chosen
    assert parts(tokenizer, pair.rejected) == rejected


def test_tools_stand_in_the_prompt_as_the_template_writes_them():
    from trl.chat_template_utils import qwen3_training_chat_template

    from sql_agent.tiny_policy.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["How many?"])
    tokenizer.chat_template = qwen3_training_chat_template
    [pair] = encode_pairs(tokenizer, [WITH_TOOLS], "pairs.jsonl", max_length=2000)
    (said, prompt), *_ = parts(tokenizer, pair.chosen)
    assert said == 0
    assert prompt.startswith("<|im_start|>system\n# Tools") and '"name": "execute_sql"' in prompt


def test_pairs_with_a_long_side_are_left_out_and_too_long_ones_alone_are_an_error(tokenizer):
    short = counting_pairs(2)
    limit = max(encode_pairs(tokenizer, short, "a", max_length=400), key=lambda pair: pair.longer).longer
    assert len(encode_pairs(tokenizer, [*short, WITH_TOOLS], "a", max_length=limit)) == 2
    with pytest.raises(UsageError, match=r"all 1 pairs of a are longer than --max-length 50; the shortest has \d+ "):
        encode_pairs(tokenizer, [WITH_TOOLS], "a", max_length=50)


def test_a_pair_that_the_template_refuses_is_named():
    from sql_agent.tiny_policy.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["How many?"])
    tokenizer.chat_template = "{% if messages[-1].role == 'tool' or messages | length > 5 %}{{ none.x.y }}{% endif %}"
    tokenizer.chat_template += "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    words = r"a, pair with the prompt 'How many\?': the chat template of .* refuses the conversation"
    with pytest.raises(ChatTemplateError, match=words):
        encode_pairs(tokenizer, [*counting_pairs(2), WITH_TOOLS], "a", max_length=400)


def test_pairs_that_call_tools_and_name_none_are_counted():
    assert calls_without_tools([WITH_TOOLS, WITH_TOOLS.model_copy(update={"tools": None}), *counting_pairs(2)]) == 1


# The loss -------------------------------------------------------------------------------------------------------------


def trained(base, tokenizer, rows, tmp_path, *, lora=None, **settings):
    """A trainer whose policy has moved away from its reference."""
    cfg = DpoConfig(model_path=str(base), dataset=Path("x"), output_dir=tmp_path, beta=BETA, device="cpu", **settings)
    pairs = encode_pairs(tokenizer, rows, "rows", max_length=400)
    model = load_trainable(base, base, all_weights=lora is None, device="cpu")
    trainer = make_trainer(model, tokenizer, pairs, [], cfg, lora=lora, record={})
    moved(trainer.model)
    trainer.current_gradient_accumulation_steps = 1  # as in a run
    return trainer, pairs, trainer.data_collator([*trainer.train_dataset])


def moved(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters(), key=lambda named: named[0]):
            if weight.requires_grad:
                weight += 0.05 * torch.randn(weight.shape, generator=generator)


def said_log_prob(model, one) -> torch.Tensor:
    """The log-probs of what the policy said, summed over its tokens, from all logits."""
    log_probs = model(torch.tensor([one.ids])).logits[0].log_softmax(-1)
    return sum(log_probs[place - 1, token] for place, token in enumerate(one.ids) if one.mask[place])


def by_hand(base, model, pairs) -> torch.Tensor:
    """arXiv:2305.18290, eq. 7, over sampled tokens only."""
    reference = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    each = []
    for pair in pairs:
        with torch.no_grad():
            before = said_log_prob(reference, pair.chosen) - said_log_prob(reference, pair.rejected)
        now = said_log_prob(model, pair.chosen) - said_log_prob(model, pair.rejected)
        each.append(-logsigmoid(BETA * (now - before)))
    return torch.stack(each).mean()


def gradient(model) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.requires_grad])


@pytest.mark.parametrize("lora", [None, Lora(4, 8, 0.0)], ids=["all_weights", "adapter"])
@pytest.mark.parametrize("most", [1, 10_000], ids=["pair_by_pair", "whole_batch"])
def test_loss_and_gradient_are_those_of_the_sampled_tokens(base, tokenizer, tmp_path, most, lora):
    rows = [WITH_TOOLS, *counting_pairs(2)]
    trainer, pairs, batch = trained(base, tokenizer, rows, tmp_path, lora=lora, micro_batch_tokens=most)
    loss = trainer.training_step(trainer.model, batch)
    got = gradient(trainer.model)
    trainer.model.zero_grad()
    expected = by_hand(base, trainer.model, pairs)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-5)  # sums of 80 log-probs of -6
    torch.testing.assert_close(got, gradient(trainer.model), rtol=1e-4, atol=1e-6)

    everything = {**batch, "completion_mask": batch["attention_mask"].clone()}
    everything["completion_mask"][:, 0] = 0
    trainer.model.zero_grad()
    trainer.training_step(trainer.model, everything)
    assert (gradient(trainer.model) - got).abs().max() > 1e-3  # as it would be with the environment's tokens


def test_without_tool_messages_the_loss_is_trls_own(base, tokenizer, tmp_path):
    """TRL reads the same pairs in its standard form; in the conversational one it also scores the line break that
    ChatML's template writes after a reply's end token, which nobody samples."""
    from datasets import Dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    rows = counting_pairs(3)
    trainer, _, batch = trained(base, tokenizer, rows, tmp_path)
    prompts = [[message.to_dict() for message in row.prompt] for row in rows]
    columns = {
        "prompt": [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts],
        "chosen": [f"{row.chosen[0].content}<|im_end|>" for row in rows],
        "rejected": [f"{row.rejected[0].content}<|im_end|>" for row in rows],
    }
    args = DPOConfig(
        output_dir=str(tmp_path / "trl"), beta=BETA, use_cpu=True, bf16=False, gradient_checkpointing=False
    )
    theirs = DPOTrainer(str(base), args=args, train_dataset=Dataset.from_dict(columns), processing_class=tokenizer)
    moved(theirs.model)
    expected = theirs.compute_loss(theirs.model, theirs.data_collator([*theirs.train_dataset]))
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch), expected, rtol=0, atol=1e-6)
