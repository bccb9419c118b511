"""A layer that carries a state from token to token begins anew with each conversation of a rollout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import worker_environment
from sql_agent.verl_side.plugin.training_worker import chain_ends

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("positions", "row_ends", "expected"),
    [
        pytest.param([0, 1, 2, 0, 1], [0, 3, 5], [0, 3, 5], id="rows_of_one_chain_end_where_they_ended"),
        # rows of 5 and 2 tokens, the first one in chains of 3 and 2
        pytest.param([0, 1, 2, 0, 1, 0, 1], [0, 5, 7], [0, 3, 5, 7], id="a_row_of_two_chains"),
        pytest.param([0, 1, 0, 1], [0, 4, 8], [0, 2, 4, 8], id="verl_padded_to_eight"),
    ],
)
def test_states_end_where_chains_do(positions, row_ends, expected):
    assert chain_ends(torch.tensor(positions), torch.tensor(row_ends)).tolist() == expected


@pytest.mark.slow  # imports verl
def test_verl_hands_the_ends_of_chains_to_models_that_ask_for_those_of_rows():
    lines = [
        "import verl",
        "import torch",
        "import verl.workers.engine.fsdp",
        "from tensordict import TensorDict",
        "from verl.utils import tensordict_utils as tu",
        "from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead as Engine",
        "from verl.workers.utils.padding import left_right_2_no_padding",
        "from sql_agent.source.batch import to_tensors",
        "from sql_agent.tests.records import make_row",
        # a chain of 3 tokens and one of 2, then a row of 2 tokens
        "chains = make_row((1, 2), (3, 5, 6), (1, 0, 1), (0.0,) * 3, 2, starts=(1,))",
        "plain = make_row((7,), (8,), (1,), (0.0,), 1)",
        "data = TensorDict(to_tensors([chains, plain], [1.0, 0.0], pad_id=0), batch_size=2)",
        "tu.assign_non_tensor(data, temperature=1.0)",
        "engine = object.__new__(Engine)",
        "engine.pad_to_length = engine.use_ulysses_sp = False",
        "engine.pass_packed_cu_seqlens = True",
        "engine._get_packed_pad_size = lambda length: 0",
        "inputs, _ = engine.prepare_model_inputs(left_right_2_no_padding(data))",
        "print(*(inputs[name].flatten().tolist() for name in ('input_ids', 'position_ids', 'cu_seqlens')), sep='\\n')",
    ]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        env=os.environ | worker_environment(load_config(None), cpu=True),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines()[-3:] == ["[1, 2, 3, 5, 6, 7, 8]", "[0, 1, 2, 0, 1, 0, 1]", "[0, 3, 5, 7]"]
