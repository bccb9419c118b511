"""`agentgrpo.hub`: a name is a folder, a model in the cache, or one that is fetched because it was named.

The hub is `loopback_hub`; the cache is a folder in the hub's own layout.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from agentgrpo.hub import may_be_id
from agentgrpo.printed_commands import program_command
from agentgrpo.tests.loopback_hub import COMMIT, Repo, loopback_hub

ROOT = Path(__file__).parents[2]
WHOLE = {
    "config.json": b'{"architectures": ["Qwen3ForCausalLM"]}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
}
LARGE = {
    "original/model.pth": b"a copy",
    "checkpoint-1/model.safetensors": b"older",
    "model.gguf": b"for another server",
}


NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens there
END = "-- that was one name --"


def find(name, home, endpoint=NOBODY, call="model_folder({name!r})", **environment):
    """What a command gets for the name, in a process of its own: (folder, what was said)."""
    return find_each([name], home, endpoint, call, **environment)[name]


def find_each(names, home, endpoint=NOBODY, call="model_folder({name!r})", **environment):
    """The same for several names, one after the other in one process; most of its time is the import of the hub."""
    code = "import sys\nfrom agentgrpo.hub import *\ngo_offline()\n"
    for name in names:
        code += f"try: print({call.format(name=name)})\n"
        code += "except ModelNotFoundError as error: print(error, file=sys.stderr)\n"
        code += f"for out in (sys.stdout, sys.stderr): print({END!r}, file=out)\n"
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"} | environment,
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out, err = (text.split(f"{END}\n") for text in (done.stdout, done.stderr))
    return {name: (folder.strip(), said.strip()) for name, folder, said in zip(names, out, err, strict=False)}


def cached(home: Path, id: str, files: dict[str, bytes]) -> Path:
    """A model in the cache, in the hub's layout."""
    place = home / "hub" / f"models--{id.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    return snapshot


def test_a_folder_is_itself(tmp_path):
    assert find(str(tmp_path), tmp_path) == (str(tmp_path), "")


def test_a_model_in_the_cache_is_taken_without_a_word_and_without_the_hub(tmp_path):
    snapshot = cached(tmp_path, "org/small", WHOLE)
    with loopback_hub(models={"org/small": WHOLE}) as hub:
        assert find("org/small", tmp_path, hub.address) == (str(snapshot), "")
    assert hub.asked == []


def test_a_model_that_is_named_and_not_in_the_cache_is_fetched_once(tmp_path):
    with loopback_hub(models={"org/small": WHOLE | LARGE}) as hub:
        folder, said = find("org/small", tmp_path, hub.address)
        assert f"fetching it from {hub.address}" in said
        assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == WHOLE  # none of what is below it
        offline = "(model_folder({name!r}), __import__('huggingface_hub').is_offline_mode())[1]"
        assert find("org/small", tmp_path / "anew", hub.address, call=offline)[0] == "True"  # for all else
        before = len(hub.asked)
        assert find("org/small", tmp_path, hub.address) == (folder, "")
        assert len(hub.asked) == before


def test_older_weights_are_fetched_where_there_are_no_others(tmp_path):
    older = {name: content for name, content in WHOLE.items() if name != "model.safetensors"}
    older["pytorch_model.bin"] = b"weights"
    with loopback_hub(models={"org/old": older}) as hub:
        folder, _said = find("org/old", tmp_path, hub.address)
        assert {path.name for path in Path(folder).iterdir()} == set(older)


def test_a_model_that_is_not_whole_in_the_cache_is_fetched(tmp_path):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    torn = {"org/shard": WHOLE | {"model.safetensors.index.json": json.dumps(index).encode()}}
    for lacking in WHOLE:
        torn[f"org/{lacking}"] = {name: content for name, content in WHOLE.items() if name != lacking}
    for id, files in torn.items():
        cached(tmp_path, id, files)
    with loopback_hub(models=dict.fromkeys(torn, WHOLE)) as hub:
        found = find_each(torn, tmp_path, hub.address)
    assert {id: f"fetching it from {hub.address}" in said for id, (_, said) in found.items()} == dict.fromkeys(
        torn, True
    )


def test_an_adapter_needs_no_tokenizer_and_no_config(tmp_path):
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    snapshot = cached(tmp_path, "org/adapter", adapter)
    assert find("org/adapter", tmp_path) == (str(snapshot), "")


def test_nothing_is_fetched_that_the_user_did_not_name_or_did_forbid(tmp_path):
    with loopback_hub(models={"org/small": WHOLE}) as hub:
        said = find("org/small", tmp_path, hub.address, HF_HUB_OFFLINE="1")[1]
        assert "org/small is no folder, and no model of that name is whole in the Hugging Face cache" in said
        assert "HF_HUB_OFFLINE forbids to fetch it; unset that" in said
        said = find("org/small", tmp_path, hub.address, call="model_folder({name!r}, fetch=False)")[1]
        assert said.endswith(f"; fetch it with `{program_command('hf', 'download', 'org/small')}`")
    assert hub.asked == []


NOWHERE = {
    "org/smal": "nor is there one at http://127.0.0.1:",
    "org/closed": "accepted; do so at http://127.0.0.1:",
    "org/bare": "it has no weights of a form that is read here (*.safetensors, py",
    "small": "a model on the hub has an id of two parts, ORG/NAME; or make a small one",
    "/no/where": "/no/where is no folder; give a model's folder or its id on the hub",
}


def test_a_name_that_leads_nowhere_comes_with_what_to_do(tmp_path):
    with loopback_hub(models={"org/bare": {"config.json": b"{}"}, "org/closed": Repo(WHOLE, gated=True)}) as hub:
        found = find_each(NOWHERE, tmp_path, hub.address)
    told = {
        name: (folder, NOWHERE[name] in said, said.count("agentgrpo tiny-policy"))
        for name, (folder, said) in found.items()
    }
    assert told == dict.fromkeys(NOWHERE, ("", True, 1)), found


def test_a_hub_that_cannot_be_reached_is_said(tmp_path):
    folder, said = find("org/small", tmp_path)
    assert folder == "" and f"it could not be fetched from {NOBODY} (ConnectError: " in said
    assert f"look at the network, fetch it elsewhere with `{program_command('hf', 'download', 'org/small')}`" in said


def test_a_path_of_a_folder_that_is_not_made_yet_is_no_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    names = ("org/small", "gpt2", "models/tiny-sql", "outputs/sft", "./small", "mine/small", "a/b/c", "~/x", "a b/c")
    assert [name for name in names if may_be_id(name)] == ["org/small", "gpt2"]
