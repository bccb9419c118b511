"""One trajectory, step by step as rLLM 0.2.1.post1 plays it (`rllm/engine/agent_execution_engine.py`), for tests.

Leaves out tokens: prompt lengths, truncation and masks.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor


async def play(agent, env, replies, *, max_steps=5, env_timeout_s=60.0, executor=None):
    """Play until the environment is done or the engine stops; returns the trajectory and the end reason.

    Args:
        replies: what the model says, in order.
    """
    loop = asyncio.get_running_loop()
    executor = executor or ThreadPoolExecutor(max_workers=4)
    reason = None
    observation, info = await loop.run_in_executor(executor, env.reset)
    info["max_steps"] = max_steps
    agent.reset()
    agent.update_from_env(observation=observation, reward=0.0, done=False, info=info)
    model = iter(replies)
    for step in range(max_steps):
        agent.chat_completions.copy()  # what the model is given
        action = agent.update_from_model(next(model)).action
        try:
            stepped = loop.run_in_executor(executor, env.step, action)
            observation, reward, done, info = await asyncio.wait_for(stepped, timeout=env_timeout_s)
        except TimeoutError:
            agent.get_current_state().done = True
            reason = "ENV_TIMEOUT"
            break
        info["max_steps"] = max_steps
        agent.update_from_env(observation=observation, reward=reward, done=done, info=info)
        current = agent.get_current_state()
        current.reward, current.done = reward, done
        current.info.update(info)
        if done:
            reason = "ENV_DONE"
            break
        if step == max_steps - 1:
            reason = "MAX_STEPS"
    if hasattr(env, "compute_final_reward"):
        agent.get_current_state().reward = await loop.run_in_executor(executor, env.compute_final_reward)
    await loop.run_in_executor(executor, env.close)
    trajectory = agent.trajectory
    trajectory.reward = sum(step.reward for step in trajectory.steps)
    return trajectory, reason
