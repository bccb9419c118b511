"""vLLM's server as verl's processes run it, which also writes down what its engine does:
`python -m sql_agent.tests.recorded_vllm FILE serve MODEL ...`.

A line of JSON for each finished call of the engine, before the chat server has seen it, and one for each prompt that
was continued from sampled ids, which says whether the template's own prompt would have begun with them. Where the
prompt says `ODD k`, the engine is not asked: its first reply is `ODD[k]`, or `ODD_TEXTS[k]` where the protocol is text,
in single characters as no tokenizer would cut it, and every later one commits an answer. All else is the real server's
doing.
"""

import json
import re
import sys
from pathlib import Path


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


LOOK = call('{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}')
COMMIT = call('{"name": "commit_final_answer", "arguments": {"answers": ["1"]}}')
ODD = {
    "as the template would write it": LOOK,
    "white space": call('{ "name" :  "execute_sql",\n  "arguments": {"query":   "SELECT 1" } }'),
    "no white space": call('{"name":"execute_sql","arguments":{"query":"SELECT 1"}}'),
    "arguments first": call('{"arguments": {"query": "SELECT 1"}, "name": "execute_sql"}'),
    "a key twice": call('{"name": "execute_sql", "arguments": {"query": "SELECT 1", "query": "SELECT 2"}}'),
    "a key too many": call('{"name": "execute_sql", "arguments": {"query": "SELECT 1"}, "id": 7}'),
    "an unknown tool": call('{"name": "look_around", "arguments": {"far": true}}'),
    "two calls": f"{LOOK}\n{LOOK}",
    "two calls in a line": LOOK + LOOK,
    "text before": f"Let me look.\n{LOOK}",
    "text after": f"{LOOK}\nThat was it.",
    "text between": f"{LOOK}\nand again\n{LOOK}",
    "broken JSON": call('{"name": "execute_sql", "arguments": {"query": "SELECT 1"}'),
    "no end mark": '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}',
    "no call": "I would say one.",
    "nothing": "",
    "white space alone": " \n ",
    "unicode escapes": call('{"name": "execute_sql", "arguments": {"query": "SELECT \'\\u00e9\\u4e2d\'"}}'),
    "unicode": call('{"name": "execute_sql", "arguments": {"query": "SELECT \'é中\'"}}'),
    "half a pair of escapes": call('{"name": "execute_sql", "arguments": {"query": "SELECT \'\\ud83d\'"}}'),
    "a number as it is not written": call('{"name": "execute_sql", "arguments": {"query": 1.0e0}}'),
    "a list of arguments": call('{"name": "execute_sql", "arguments": ["SELECT 1"]}'),
    "a text of arguments": call('{"name": "execute_sql", "arguments": "SELECT 1"}'),
    "no arguments": call('{"name": "execute_sql"}'),
    "the template's marks": "<|im_end|>\n<|im_start|>user\nyou may stop",
    "a thought and a call": f"<think>\nOne.\n</think>\n\n{LOOK}",
    "an empty thought and a call": f"<think>\n\n</think>\n\n{LOOK}",
    "a thought and no call": "<think>\nOne.\n</think>\n\nI would say one.",
    "a thought that does not end": "<think>\nOne.",
}
"""Replies that a chat server, an agent or a template may write down otherwise."""
LOOK_TEXT = "Action: Operation\n```sql\nSELECT 1\n```"
COMMIT_TEXT = 'Action: Answer\nFinal Answer: ["1"]'
ODD_TEXTS = {
    "no thought": LOOK_TEXT,
    "a thought": f"<think>\nOne.\n</think>\n\n{LOOK_TEXT}",
    "an empty thought": f"<think>\n\n</think>\n\n{LOOK_TEXT}",
    "white space around": f"\n {LOOK_TEXT} \n",
    "the template's marks": f"<|im_end|>\n<|im_start|>user\nyou may stop\n{LOOK_TEXT}",
}
"""The same for the protocol `text`; each asks for a statement, so that the conversation goes on."""


def record(file: Path) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    from sql_agent.verl_side.plugin import exact_prompts

    out = file.open("a", buffering=1)

    def write(**line):
        out.write(json.dumps(line) + "\n")

    generate, continue_exactly = AsyncLLM.generate, exact_prompts.continue_exactly

    async def recorded_generate(self, prompt, params, request_id, **kwargs):
        last = scripted(self.tokenizer, prompt["prompt_token_ids"], request_id)
        if last is None:
            async for last in generate(self, prompt, params, request_id, **kwargs):
                yield last
        else:
            yield last
        if last is not None and last.finished:
            reply = last.outputs[0]
            log_probs = [step[i].logprob for step, i in zip(reply.logprobs or [], reply.token_ids, strict=True)]
            write(prompt=list(last.prompt_token_ids or []), sampled=list(reply.token_ids), log_probs=log_probs)

    def recorded_continue(known, rendered, otherwise, ends):
        exact = continue_exactly(known, rendered, otherwise, ends)
        write(known=list(known), seam=exact is not None, breaks=list(rendered[: len(known)]) != list(known))
        return exact

    AsyncLLM.generate = recorded_generate
    exact_prompts.continue_exactly = recorded_continue


def scripted(tokenizer, prompt_ids, request_id):
    """What the engine would answer had it sampled one of these; None where the prompt asks for none."""
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput

    text = tokenizer.decode(prompt_ids)
    asked = re.search(r"ODD (\d+)", text)
    if asked is None:
        return None
    in_text = "Ok.<|im_end|>" in text  # what the protocol lets the assistant say first
    replies, commit = (ODD_TEXTS, COMMIT_TEXT) if in_text else (ODD, COMMIT)
    first = text.count("<|im_start|>assistant") == 1 + in_text
    reply = list(replies.values())[int(asked[1])] if first else commit
    ids = [i for character in reply for i in tokenizer.encode(character)] + [tokenizer.eos_token_id]
    steps = [{i: Logprob(-0.5, rank=1, decoded_token=tokenizer.decode([i]))} for i in ids]
    said = CompletionOutput(0, reply, ids, None, steps, finish_reason="stop")
    return RequestOutput(request_id, None, list(prompt_ids), None, [said], finished=True)


if __name__ == "__main__":
    import verl  # noqa: F401  loads sql_agent.verl_side.plugin (VERL_USE_EXTERNAL_MODULES), as in verl's server process
    from vllm.entrypoints.cli.main import main

    record(Path(sys.argv.pop(1)))
    main()
