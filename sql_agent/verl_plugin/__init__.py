"""What every verl process loads through `VERL_USE_EXTERNAL_MODULES`: our advantage estimator, exact prompts in vLLM's
chat server, whole weights from LoRA runs, and, where `VERL_PLATFORM=cpu`, the CPU platform.

Nothing here changes what a caller asked for; each module says which upstream line it stands in for.
"""

import logging
import os

from verl.trainer.ppo.core_algos import register_adv_est

from sql_agent.advantages import masked_grpo
from sql_agent.verl_plugin import exact_prompts, lora

register_adv_est("masked_grpo")(masked_grpo)
exact_prompts.install()
lora.install(cpu=os.environ.get("VERL_PLATFORM") == "cpu")
# A malformed call is the policy's doing and is counted; vLLM would log a traceback for each one.
logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)

if os.environ.get("VERL_PLATFORM") == "cpu":
    from sql_agent.verl_plugin import cpu_platform, log_probs, packed_attention, vllm_cpu

    cpu_platform.install()
    vllm_cpu.install()
    log_probs.install()
    packed_attention.install()
