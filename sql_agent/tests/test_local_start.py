"""What is looked at before a local run loads anything."""

import errno
import json
import os
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import save_file

from agentgrpo.checks import UsageError
from agentgrpo.processes import ends_in_order
from sql_agent.local.datatypes import UnjudgedError
from sql_agent.local.model_files import check_device, whole_model
from sql_agent.local.start import report_failures, start_policy
from sql_agent.settings.local import AdapterConfig, GreedyGrpoConfig, ModelConfig


def adapter(folder, base: str, weights: bool = True):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    if weights:
        save_file({"a": torch.zeros(2)}, folder / "adapter_model.safetensors")
    return folder


def test_a_model_and_an_adapter_on_it_are_fine(random_policy_folder, tmp_path):
    whole_model(str(random_policy_folder))
    whole_model(str(adapter(tmp_path / "a", str(random_policy_folder))))


def test_an_adapter_that_cannot_be_used_is_named(random_policy_folder, tmp_path):
    with pytest.raises(UsageError, match=r"a is no whole adapter: expected adapter_model.safetensors, undamaged"):
        whole_model(str(adapter(tmp_path / "a", str(random_policy_folder), weights=False)))
    torn = adapter(tmp_path / "b", str(random_policy_folder))
    (torn / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"b is no whole adapter.*; copy it again"):
        whole_model(str(torn))
    with pytest.raises(UsageError, match=r"the adapter in .*c needs its base: gone/model is no folder"):
        whole_model(str(adapter(tmp_path / "c", "gone/model")))
    with pytest.raises(UsageError, match=r"the adapter in .*d names itself as its base"):
        whole_model(str(adapter(tmp_path / "d", str(tmp_path / "d"))))
    (tmp_path / "d" / "adapter_config.json").write_text("[]")
    with pytest.raises(UsageError, match="holds a list, expected an object"):
        whole_model(str(tmp_path / "d"))


def in_cache(cache, id: str, folder):
    """The folder's files as the model `id` of a Hugging Face cache; returns where they lie."""
    place = cache / f"models--{id.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    return place / "snapshots" / "abc"


def test_a_model_in_the_cache_keeps_its_id_and_an_adapter_there_becomes_its_folder(
    random_policy_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    in_cache(tmp_path, "org/policy", random_policy_folder)
    assert whole_model("org/policy") == "org/policy"  # the name that adapters on it have for it
    found = in_cache(tmp_path, "org/adapter", adapter(tmp_path / "a", "org/policy"))
    assert whole_model("org/adapter") == str(found)
    (found / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/elsewhere"}))
    with pytest.raises(UsageError, match=r"needs its base: org/elsewhere is no folder.*; fetch it with `.*elsewhere`"):
        whole_model("org/adapter")  # whatever the hub has: the user did not name the base


def test_a_policy_is_loaded_by_the_id_of_a_model_and_of_an_adapter(random_policy_folder, tmp_path, monkeypatch):
    for module in ("huggingface_hub.constants", "transformers.utils.hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(tmp_path / "hub"))
    in_cache(tmp_path / "hub", "org/policy", random_policy_folder)
    start_policy(ModelConfig(model_path="org/policy"), AdapterConfig(rank=4), tools=[], seed=0).save(tmp_path / "a")
    assert json.loads((tmp_path / "a/adapter_config.json").read_text())["base_model_name_or_path"] == "org/policy"
    in_cache(tmp_path / "hub", "org/adapter", tmp_path / "a")
    again = start_policy(ModelConfig(model_path="org/adapter"), AdapterConfig(), tools=[], seed=0)
    assert again.model.peft_config["default"].r == 4


@pytest.mark.parametrize(
    ("device", "four_bit", "words"),
    [("cuda", False, "torch sees no GPU here"), ("cpu", True, "--load-in-4bit needs a GPU")],
)
def test_a_device_that_is_not_there_is_named(device, four_bit, words):
    with pytest.raises(UsageError, match=words):
        check_device(device, load_in_4bit=four_bit, has_gpu=False)


def test_names_in_a_list_are_separated_by_commas():
    assert AdapterConfig(target_modules="q_proj, v_proj").target_modules == ("q_proj", "v_proj")
    assert AdapterConfig(target_modules="all-linear").target_modules == "all-linear"
    cfg = GreedyGrpoConfig(model=ModelConfig(model_path="x"), skills="select, delete")
    assert cfg.skills == ("select", "delete")


def test_a_commands_failures_end_in_one_line(tmp_path, capsys):
    def fails(error):
        with pytest.raises(SystemExit) as caught, report_failures(tmp_path, "the same command with --resume"):
            raise error
        return caught.value.code

    assert fails(ValueError("--top_p: too large")) == "error: --top_p: too large"
    assert fails(UnjudgedError("nobody judges")) == "error: nobody judges"
    assert fails(KeyboardInterrupt()) == 130
    (tmp_path / "config.yaml").touch()  # the run has begun
    assert fails(KeyboardInterrupt()) == 130
    checkpoint = tmp_path / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    (tmp_path / "checkpoints" / "step_000003").mkdir()  # was not finished
    assert fails(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.split("\n\n") == [
        "\ninterrupted",
        "interrupted; there is no checkpoint yet, so the same command with --resume starts again",
        f"interrupted; the same command with --resume resumes from {checkpoint}\n",
    ]
    full = fails(OSError(errno.ENOSPC, "No space left on device", "out/config.json"))
    assert full == (
        "error: out/config.json could not be written: No space left on device; make room on its disk, then start the "
        "same command again"
    )
    words = fails(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"))
    assert words.startswith("error: out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.); add --gradient-ch")
    assert words.endswith(f"; the same command with --resume resumes from {checkpoint}")
    with pytest.raises(RuntimeError, match="a fault of ours"), report_failures(tmp_path, ""):
        raise RuntimeError("a fault of ours")


def test_a_batch_schedulers_sigterm_ends_a_command_as_ctrl_c_does_also_where_sigint_is_ignored(tmp_path):
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # so does a script's shell for what it puts into the background
    try:
        with (
            pytest.raises(SystemExit, match="130"),
            report_failures(tmp_path, ""),
            ends_in_order(),
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
