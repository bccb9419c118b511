import pandas
from rllm.agents.agent import BaseAgent
from rllm.environments.base.base_env import BaseEnv


class AgentTrainer:
    def __init__(self, agent_class, env_class, agent_args, env_args, config, train_dataset, val_dataset):
        assert issubclass(agent_class, BaseAgent) and issubclass(env_class, BaseEnv)
        self.made = (agent_class, env_class, agent_args, env_args)
        self.train_dataset, self.val_dataset, self.config = train_dataset, val_dataset, config

    def train(self):
        agent_class, env_class, agent_args, env_args = self.made
        for dataset in (self.train_dataset, self.val_dataset):
            for row in pandas.read_parquet(dataset.get_verl_data_path())["extra_info"]:
                env, _ = env_class.from_dict({**row, **env_args}), agent_class(**agent_args)
                print("trains on", env.task.id, env.judge, self.config.data.train_batch_size)
