import pathlib

import pandas


class Dataset:
    def __init__(self, path):
        self.path = path

    def get_verl_data_path(self):
        return str(self.path)


class DatasetRegistry:
    @classmethod
    def register_dataset(cls, name, data, split="default"):
        pandas.DataFrame(data).to_parquet(f"{name}-{split}.parquet")
        prompt, reward = [{"role": "user", "content": "placeholder"}], {"style": "rule", "ground_truth": None}
        rows = [{"prompt": prompt, "reward_model": reward, "extra_info": row} for row in data]
        path = pathlib.Path(f"{name}-{split}_verl.parquet").absolute()
        pandas.DataFrame(rows).to_parquet(path)
        return Dataset(path)
