"""The same file in TRL's own GRPOTrainer and here: the same tools, prompt, results and reward.

TRL's trainer runs whole, with a model of random weights, but for what the model says. About a minute.
"""

import json
from pathlib import Path

import pytest

from scripts.pages.chat_templates import byte_tokenizer
from sql_agent.environments.base import make_environment, with_observation
from sql_agent.settings.groups import AgentConfig, EnvironmentSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GAME = '''
class Game:
    def reset(self, secret, **row):
        self.secret, self.hit = secret, False
        return f" It is below {secret + 100}."

    def guess(self, number: int, politely: bool = False) -> dict:
        """Guess.

        Args:
            number: The guess.
            politely: Whether to say please.
        """
        self.hit = number == self.secret
        if number == 13:
            raise ValueError("unlucky")
        return {"right": self.hit}

    async def hint(self) -> int:
        """Ask whether it is odd."""
        return self.secret % 2

    def get_reward(self):
        return 2.5 if self.hit else -1.0
'''
ROW = {"prompt": [{"role": "user", "content": "Guess my number."}], "secret": 7}
CALLS = [
    ("guess", {"number": 3}),
    ("guess", {"number": 13}),
    ("guess", {"n": 1}),
    ("guess", {}),
    ("gess", {"number": 3}),
    ("get_reward", {}),
    ("hint", {}),
    ("guess", {"number": 7, "politely": True}),
]
END = "I am done."


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("own") / "game.py"
    file.write_text(GAME)
    return file


@pytest.fixture(scope="module")
def in_trl(file, tmp_path_factory):
    """(tools, prompt, results, reward) of TRL's first rollout."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from agentgrpo.user_files import load_object

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8192}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads))
    made, seen = [], []

    def factory():
        made.append(load_object(f"{file}:Game")[0]())
        return made[-1]

    def look(prompts, completions, environments, **_):
        seen.append((prompts[0], completions[0], environments[0].get_reward()))
        return [0.0] * len(completions)

    said = [f"<tool_call>\n{json.dumps({'name': name, 'arguments': values})}\n</tool_call>" for name, values in CALLS]
    replies = iter([*said, END])

    class Scripted(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *_args, **_kwargs):
            return [
                tokenizer(next_reply + "<|im_end|>")["input_ids"] for next_reply in [next(replies)] * len(prompt_ids)
            ], None

    trainer = Scripted(
        model=model,
        processing_class=tokenizer,
        reward_funcs=look,
        environment_factory=factory,
        train_dataset=Dataset.from_list([ROW] * 2),
        args=GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), max_steps=1, per_device_train_batch_size=2,
            num_generations=2, max_completion_length=4096, report_to=[], use_cpu=True, save_strategy="no",
        ),
    )  # fmt: skip
    tools = sorted(tool.__name__ for tool in trainer.tools)
    trainer.train()
    prompt, completion, reward = seen[0]
    results = [message["content"] for message in completion if message["role"] == "tool"]
    return tools, prompt, results, reward


def test_the_file_does_the_same_here(file, in_trl):
    environment = make_environment(EnvironmentSettings(f"{file}:Game"))
    task = environment.task({"id": "t", "kind": "Game", "row": ROW})
    with environment:
        episode = environment.open(task, AgentConfig())
        prompt = with_observation(environment.messages(task), episode)
        results = [episode.call_tool(name, json.dumps(values)) for name, values in CALLS]
        episode.without_call(END)
        tools = sorted(tool["function"]["name"] for tool in environment.tools)
        assert (tools, prompt, results, environment.judge(episode).value) == in_trl
