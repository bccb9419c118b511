"""Plays scripted replies through rLLM's own engine: JSON on standard input, one result per group of episodes out.

    PYTHONPATH=SOURCE:examples/rllm python -m examples.tests.rllm_engine FOLDER <groups.json

The policy is an
HTTP server that answers `/v1/completions` with the next scripted reply, cut at `max_tokens`; a token is a byte.
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from dbbench_bridge import DBBenchAgent, DBBenchEnv
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = OmegaConf.create({"rllm": {"filter_token_mismatch": True, "disable_thinking": False}})


def byte_tokenizer(folder):
    """One token per byte and two for ChatML; rLLM knows its parser by the folder's name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: index for index, char in enumerate([*alphabet, "<|im_start|>", "<|im_end|>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


class Policy(BaseHTTPRequestHandler):
    """Answers the k-th call of an episode, which is known by its question, with the k-th reply."""

    replies: ClassVar[dict[str, list[str]]] = {}

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = next(question for question in self.replies if question in request["prompt"])
        after = request["prompt"].split(question)[1]
        reply = self.replies[question][after.count("<|im_start|>assistant") - 1][: request["max_tokens"]]
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        choice = {"index": 0, "text": reply, "finish_reason": "stop", "logprobs": None}
        body = {"id": "-", "object": "text_completion", "created": 0, "model": "-", "choices": [choice], "usage": usage}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


async def play(group, engine):
    """Play the episodes of a group at once; returns what the engine returns, in their order, or its error."""
    envs = [DBBenchEnv.from_dict({**episode["task"], **group.get("env", {})}) for episode in group["episodes"]]
    engine.update_envs_and_agents(envs, [DBBenchAgent() for _ in envs])
    Policy.replies = {episode["task"]["question"]: episode["replies"] for episode in group["episodes"]}
    try:
        return [result async for result in engine.trajectory_generator(mode=group["mode"])]
    except Exception as error:
        return {"error": str(error)}


def readable(result, tokenizer):
    """A result of the engine as plain values; a trajectory's trained texts in place of its masks."""
    if isinstance(result, list):  # a conversation
        return result
    if not isinstance(result, dict):  # a trajectory
        return {"reward": float(result.reward), "step_rewards": [float(step.reward) for step in result.steps]}
    plain = {"idx": result["idx"], "reward": float(result["trajectory_reward"])}
    if "steps" in result:
        return plain | {"replies": [step["response"] for step in result["steps"]], "mc_returns": result["mc_returns"]}
    ids, mask = result["response_tokens"].tolist(), result["response_masks"].tolist()
    trained = "".join(tokenizer.decode([token]) if on else "|" for token, on in zip(ids, mask, strict=True))
    return plain | {"trained": [text for text in trained.split("|") if text], "metrics": result["metrics"]}


def main():
    from rllm.engine.agent_execution_engine import AsyncAgentExecutionEngine

    tokenizer = byte_tokenizer(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Policy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = []
    for group in json.load(sys.stdin):
        engine = AsyncAgentExecutionEngine(
            tokenizer=tokenizer,
            config=CONFIG,
            n_parallel_agents=8,
            max_prompt_length=8192,
            rollout_engine_args={
                "model": "-",
                "base_url": f"http://127.0.0.1:{server.server_port}/v1",
                "api_key": "-",
                "max_model_length": 100_000,
            },
            **group.get("engine", {}),
        )
        results = asyncio.run(play(group, engine))
        found.append(results if isinstance(results, dict) else [readable(each, tokenizer) for each in results])
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
