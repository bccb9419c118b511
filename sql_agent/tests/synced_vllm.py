"""verl's vLLM server and weight sync with a call in flight: `python -m sql_agent.tests.synced_vllm OLD NEW RAY_DIR`.

OLD and NEW are folders of the same model with other weights. Prints one line of JSON: what the server answered to one
prompt under OLD, after a sync to NEW by our manager, and the error of a sync by verl's; and, under OLD, the lengths of
replies to prompts that nearly fill a row. Of a sync with a lag, for how long the LLM proxy's route was told that calls
are held.
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import ray
import requests
from omegaconf import OmegaConf

PROMPT = "|" * 300
"""A token each; with the template's six 306, of which vLLM's cache keeps nine blocks of 32."""
ROW_END = 280
CONTEXT = 320 + 704
"""The longest row, which is what verl's settings make of it; a rollout's own row may end before."""
REPLY = 150
ROWS = [
    (80, {}),
    (100, {"vllm_xargs": {"row_end": ROW_END}}),
    (200, {"vllm_xargs": {"row_end": ROW_END}}),
    (ROW_END - 1, {"vllm_xargs": {"row_end": ROW_END}}),
    (ROW_END, {"vllm_xargs": {"row_end": ROW_END}}),
    (CONTEXT - 100, {"max_tokens": None, "max_completion_tokens": REPLY}),  # a field that our agent does not use
    (CONTEXT - 1, {}),
]
"""Tokens of a prompt and what else is asked."""
LONG = 700
"""Tokens of a call that is in flight while weights are sent; two seconds and more."""


class Trainer:
    """Stands where verl has its training worker: sends a folder's weights as that does."""

    def __init__(self, rollout, model, *folders):
        from transformers import AutoModelForCausalLM
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

        os.environ |= {"RANK": "0", "RAY_LOCAL_WORLD_SIZE": "1"}
        self.adapter = ServerAdapter(omega_conf_to_dataclass(rollout), omega_conf_to_dataclass(model), None)
        self.weights = {folder: AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders}

    async def update_weights(self, folder, step):
        await self.adapter.update_weights(iter(self.weights[folder].items()), global_steps=step)


def main() -> None:
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

    from sql_agent import oracle
    from sql_agent.model_address.request_guard import RUN_TOKEN, authorization
    from sql_agent.model_address.rollout_route import RolloutRoute
    from sql_agent.model_address.weight_sync_pause import ask_held
    from sql_agent.settings.load import load_config
    from sql_agent.source import run_context
    from sql_agent.verl_side.config import Files, compose, to_verl
    from sql_agent.verl_side.servers import DrainedWeightSync

    old, new, ray_dir = sys.argv[1:]
    cfg = load_config(None, ["data.max_prompt_tokens=320", "data.max_response_tokens=704"])
    verl = compose(to_verl(cfg, Files(Path(old), Path("unused"), Path("unused")), cpu=True)).actor_rollout_ref
    assert verl.rollout.max_model_len == CONTEXT
    OmegaConf.update(verl.rollout, "engine_kwargs.vllm.enable_prompt_tokens_details", True, force_add=True)
    ray.init(num_cpus=8, num_gpus=1, include_dashboard=False, _temp_dir=ray_dir, log_to_driver=True)

    trainer = ray.remote(num_gpus=1)(Trainer).remote(verl.rollout, verl.model, old, new)
    replica = vLLMReplica(0, verl.rollout, omega_conf_to_dataclass(verl.model), gpus_per_node=1)
    replica.rollout_mode, replica.workers = RolloutMode.HYBRID, [trainer]
    asyncio.run(replica.launch_servers())
    url = f"http://{replica.server_address}/v1/chat/completions"

    def ask(content, max_tokens, **fields):
        messages = [{"role": "user", "content": content}]
        body = {"model": old, "messages": messages, "max_tokens": max_tokens, "temperature": 0.0, "logprobs": True}
        body |= {"return_token_ids": True, "ignore_eos": True} | fields
        return requests.post(url, json=body, headers=authorization(RUN_TOKEN), timeout=120).json()

    def lengths(tokens, fields):
        """Tokens of prompt and reply, and why that ended, or what was refused; a prompt is six tokens of the template
        and a bar each."""
        answer = ask("|" * (tokens - 6), **{"max_tokens": REPLY, **fields})
        if "error" in answer:
            return answer["error"]
        usage = answer["usage"]
        return [usage["prompt_tokens"], usage["completion_tokens"], answer["choices"][0]["finish_reason"]]

    def seen(answer):
        choice = answer["choices"][0]
        return {
            "prompt": answer["prompt_token_ids"],
            "sampled": choice["token_ids"],
            "log_probs": [token["logprob"] for token in choice["logprobs"]["content"]],
            "weights": answer["system_fingerprint"],
            "cached": (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        }

    def sync(manager_class, folder, step, lag=0, proxy_url=None):
        """Ends of the call in flight and of the sync: finish reason and tokens; error or None."""
        cfg = SimpleNamespace(trainer=SimpleNamespace(max_off_policy_steps=lag))
        run_context.enter(SimpleNamespace(cfg=cfg, proxy_url=proxy_url))  # type: ignore
        send = lambda global_steps, mode: [trainer.update_weights.remote(folder, global_steps)]  # noqa: E731
        manager = manager_class(
            omega_conf_to_dataclass(verl.rollout.checkpoint_engine), SimpleNamespace(update_weights=send), [replica]
        )
        ends = []
        late = threading.Thread(target=lambda: ends.append(ask("|", LONG)))
        late.start()
        time.sleep(0.3)
        error = None
        try:
            manager.sleep_replicas()
            manager.update_weights(step)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        late.join()
        tokens = len(ends[0]["choices"][0]["token_ids"] or ())
        return {"late_tokens": tokens, "late_end": ends[0]["choices"][0]["finish_reason"], "error": error}

    ask(PROMPT, 2)
    results = {"old": seen(ask(PROMPT, 2)), "rows": [lengths(*row) for row in ROWS]}
    results["ours"] = sync(DrainedWeightSync, new, 1)
    results["new"] = seen(ask(PROMPT, 2))
    with oracle.serve(RolloutRoute(None)) as proxy:
        results["lagged"] = sync(DrainedWeightSync, old, 2, lag=1, proxy_url=proxy.removesuffix("/v1"))
        held = [asyncio.run(ask_held(proxy.removesuffix("/v1"), 60.0)) for _ in range(2)]
    results["lagged"] |= {"held_s": held[0], "ended": held[0] == held[1]}
    results["back"] = seen(ask(PROMPT, 2))
    sync(DrainedWeightSync, new, 3)
    ask(PROMPT, 2)
    results["verl"] = sync(CheckpointEngineManager, old, 4)
    results["after_verl"] = seen(ask(PROMPT, 2))
    print(json.dumps(results), flush=True)
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
