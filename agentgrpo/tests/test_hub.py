"""`agentgrpo.hub`: a name is a folder, a model in the cache, or one that is fetched because it was named.

The hub is a server on loopback that answers as huggingface.co does to the few requests that a download makes; the cache
is a folder in the hub's own layout.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from agentgrpo.hub import may_be_id
from agentgrpo.printed_commands import program_command

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
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


@contextmanager
def hub(models: dict[str, dict[str, bytes]], gated: tuple[str, ...] = ()):
    """Serves the models, by id and file; yields its address and the paths that were asked for."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.split("?")[0].strip("/")
            asked.append(path)
            id = "/".join(path.removeprefix("api/models/").split("/")[:2])
            if id in gated or id not in models:
                code = "GatedRepo" if id in gated else "RepoNotFound"
                return self.answer(b"{}", 403 if id in gated else 404, {"X-Error-Code": code})
            files = models[id]
            if "/resolve/" in path:
                content = files[path.split(f"/resolve/{COMMIT}/")[1]]
                etag = hashlib.sha1(content).hexdigest()
                return self.answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
            if "/tree/" in path:
                tree = [{"type": "file", "path": name, "size": len(file), "oid": hashlib.sha1(file).hexdigest()}
                        for name, file in files.items()]  # fmt: skip
                return self.answer(json.dumps(tree).encode())
            info = {"id": id, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return self.answer(json.dumps(info).encode())

        do_HEAD = do_GET

        def answer(self, content, status=200, headers=()):
            self.send_response(status)
            for name, value in {**dict(headers), "Content-Length": len(content)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


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
    with hub({"org/small": WHOLE}) as (address, asked):
        assert find("org/small", tmp_path, address) == (str(snapshot), "")
    assert asked == []


def test_a_model_that_is_named_and_not_in_the_cache_is_fetched_once(tmp_path):
    with hub({"org/small": WHOLE | LARGE}) as (address, asked):
        folder, said = find("org/small", tmp_path, address)
        assert f"fetching it from {address}" in said
        assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == WHOLE  # none of what is below it
        offline = "(model_folder({name!r}), __import__('huggingface_hub').is_offline_mode())[1]"
        assert find("org/small", tmp_path / "anew", address, call=offline)[0] == "True"  # for all else
        before = len(asked)
        assert find("org/small", tmp_path, address) == (folder, "")
        assert len(asked) == before


def test_older_weights_are_fetched_where_there_are_no_others(tmp_path):
    older = {name: content for name, content in WHOLE.items() if name != "model.safetensors"}
    older["pytorch_model.bin"] = b"weights"
    with hub({"org/old": older}) as (address, _):
        folder, _said = find("org/old", tmp_path, address)
        assert {path.name for path in Path(folder).iterdir()} == set(older)


def test_a_model_that_is_not_whole_in_the_cache_is_fetched(tmp_path):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    torn = {"org/shard": WHOLE | {"model.safetensors.index.json": json.dumps(index).encode()}}
    for lacking in WHOLE:
        torn[f"org/{lacking}"] = {name: content for name, content in WHOLE.items() if name != lacking}
    for id, files in torn.items():
        cached(tmp_path, id, files)
    with hub(dict.fromkeys(torn, WHOLE)) as (address, _):
        found = find_each(torn, tmp_path, address)
    assert {id: f"fetching it from {address}" in said for id, (_, said) in found.items()} == dict.fromkeys(torn, True)


def test_an_adapter_needs_no_tokenizer_and_no_config(tmp_path):
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    snapshot = cached(tmp_path, "org/adapter", adapter)
    assert find("org/adapter", tmp_path) == (str(snapshot), "")


def test_nothing_is_fetched_that_the_user_did_not_name_or_did_forbid(tmp_path):
    with hub({"org/small": WHOLE}) as (address, asked):
        said = find("org/small", tmp_path, address, HF_HUB_OFFLINE="1")[1]
        assert "org/small is no folder, and no model of that name is whole in the Hugging Face cache" in said
        assert "HF_HUB_OFFLINE forbids to fetch it; unset that" in said
        said = find("org/small", tmp_path, address, call="model_folder({name!r}, fetch=False)")[1]
        assert said.endswith(f"; fetch it with `{program_command('hf', 'download', 'org/small')}`")
    assert asked == []


NOWHERE = {
    "org/smal": "nor is there one at http://127.0.0.1:",
    "org/closed": "accepted; do so at http://127.0.0.1:",
    "org/bare": "it has no weights of a form that is read here (*.safetensors, py",
    "small": "a model on the hub has an id of two parts, ORG/NAME; or make a small one",
    "/no/where": "/no/where is no folder; give a model's folder or its id on the hub",
}


def test_a_name_that_leads_nowhere_comes_with_what_to_do(tmp_path):
    with hub({"org/bare": {"config.json": b"{}"}}, gated=("org/closed",)) as (address, _):
        found = find_each(NOWHERE, tmp_path, address)
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
