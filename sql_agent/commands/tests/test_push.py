"""`agentgrpo push`: a run's model goes to the hub with its card, and nothing of this machine goes with it."""

import json

import pytest
import yaml

from agentgrpo.run_folder import begin, start_of
from agentgrpo.tests.hub_process import run_with_hub
from agentgrpo.tests.loopback_hub import COMMIT, TOKEN, Repo, loopback_hub
from sql_agent.commands.report import main as report
from sql_agent.report.card import CARD

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens there
WEIGHTS = b"weights" * 100
PUSH = """
import contextlib, io, json
from sql_agent.commands.push import main
ends = []
for words in WORDS:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    ends.append([status, said.getvalue()])
print(json.dumps(ends))
"""


def push(home, endpoint, *commands, token=TOKEN, **options):
    """Status and output of each command, one after the other in one process."""
    words = [[str(word) for word in command] for command in commands]
    done = run_with_hub(PUSH.replace("WORDS", repr(words)), home, endpoint, token=token, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def run(tmp_path):
    """A run of `agentgrpo local` from a base of the hub, on a database whose address has a password."""
    folder, base = tmp_path / "secret-folder" / "run", tmp_path / "hub/models--org--base/snapshots" / COMMIT
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base), "r": 8}))
    (adapter / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (adapter / "tokenizer.json").write_text("{}")
    (adapter / "README.md").write_text("what PEFT writes, with a path")
    (adapter / "training.pt").write_bytes(b"a pickle")
    source = {"command": "agentgrpo local", "tasks": "questions.json", "learnt": 40, "held_out": 8}
    env = f"{tmp_path}/secret-folder/shop.py:Shop"
    (adapter / "trained_on.json").write_text(json.dumps({"env": env, "sources": [source]}))
    # 2 of 8 before and 6 of 8 after
    right = {0: 2, 3: 6}
    rates = [{"train_step": step, "held_out": {"n": 8, "judged": 8, "correct": n}} for step, n in right.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rates))
    line = {"validate": True, "messages": [{"role": "user", "content": "a row of the user's"}]}
    rows = [
        {**line, "train_step": step, "task_id": str(task), "score": {"value": float(task < n), "reason": "match"}}
        for step, n in right.items()
        for task in range(8)
    ]
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    database = "mysql://me:passw0rd@db.example.org:3306/shop?key=0f1e2d"
    settings = {"model": {"model_path": str(base)}, "database": database, "group_size": 4, "learning_rate": 1e-3}
    argv = ["agentgrpo local", "--model", str(base), f"--database={database}", "--train-file"]
    argv += [f"{folder.parent}/questions.json", "--reward", f"{folder.parent}/reward.py:short=0.5"]
    facts = start_of("local", steps=3, device="cpu") | {"argv": argv, "commit": "1234567"}
    begin(folder, settings | {"train_file": f"{folder.parent}/questions.json"}, facts, resumed=False)
    return folder


def front_matter(card):
    return yaml.safe_load(card.split("---")[1])


def test_report_writes_a_card_from_the_run_and_nothing_of_the_machine(run, tmp_path, capsys):
    (tmp_path / "hub/models--org--base/snapshots" / COMMIT).mkdir(parents=True)
    (tmp_path / "hub/models--org--base/snapshots" / COMMIT / "README.md").write_text("---\nlicense: mit\n---\nBase\n")
    assert report([str(run)]) == 0
    assert f"  {run / CARD}\n" in capsys.readouterr().out
    card = (run / CARD).read_text()
    about = front_matter(card)
    assert (about["base_model"], about["license"], about["library_name"]) == ("org/base", "mit", "peft")
    metric = about["model-index"][0]["results"][0]["metrics"][0]
    assert (metric["name"], metric["value"]) == ("held-out success", 0.75)
    for said in (
        "| held-out success before | 25% (7% to 59%, 2 of 8) |",
        "| held-out success after 3 steps | 75% (41% to 93%, 6 of 8) |",
        # 4 gained, none lost: 2 / 2^4
        "4 of 8 tasks newly solved, 0 no longer solved: not clear (McNemar's exact test, p = 0.12)",
        "| tasks | questions.json |", "| to train on | 40 |", "| held out | 8 |", "| database | mysql server |",
        "agentgrpo local --model org/base --database=mysql://... --train-file questions.json --reward reward.py:short=",
        "| commit | 1234567 |", "| group_size | 4 |", "| learning_rate | 0.001 |", "torch ", "![curve of the run]",
        "agentgrpo merge --adapter ORG/MODEL_NAME --output MODEL_NAME-merged\nVLLM_CPU_KVCACHE_SPACE=1 vllm serve M",
        "Success was measured on 8 held-out tasks of the data above, and on nothing else.",
    ):  # fmt: skip
        assert said in card, said
    hidden = (str(tmp_path), "secret-folder", "passw0rd", "db.example.org", "0f1e2d", "a row of the user's", "bin/")
    assert [text for text in hidden if text in card] == []


def test_the_model_goes_to_a_private_repository_with_its_card_and_without_this_machine(run, tmp_path):
    base = Repo({}, card={"license": "apache-2.0"})
    with loopback_hub(models={"org/base": base}) as hub:
        (status, said), again = push(tmp_path / "home", hub.address, [run, "me/mine"], [run, "me/mine"])
        repo = hub.repos["models/me/mine"]
    assert status == 0 and again[0] == 0, (said, again)
    assert f"to {hub.address}/me/mine, a private repository, which is made:" in said
    assert f"{len(WEIGHTS):>13,}  adapter_model.safetensors" in said and f"uploaded: {hub.address}/me/mine" in said
    assert f"to {hub.address}/me/mine, a private repository:" in again[1]
    configs = ["adapter_config.json", "adapter_model.safetensors", "curve.png", "tokenizer.json", "trained_on.json"]
    assert repo.private and sorted(repo.files) == ["README.md", *configs]
    assert repo.files["adapter_model.safetensors"] == WEIGHTS and WEIGHTS in hub.lfs.values()
    assert json.loads(repo.files["adapter_config.json"]) == {"base_model_name_or_path": "org/base", "r": 8}
    assert json.loads(repo.files["trained_on.json"])["env"] == "shop.py:Shop"
    card = repo.files["README.md"].decode()
    assert front_matter(card)["license"] == "apache-2.0" and front_matter(card)["model-index"][0]["name"] == "mine"
    assert "agentgrpo merge --adapter me/mine --output mine-merged" in card and "MODEL_NAME" not in card
    told = [said, again[1], *(content.decode(errors="replace") for content in repo.files.values())]
    assert not [text for text in told if TOKEN in text or "passw0rd" in text]
    assert not [name for name, content in repo.files.items() if str(tmp_path).encode() in content]


def test_a_card_that_was_edited_is_kept_and_pushed(run, tmp_path, capsys):
    report([str(run)])
    edited = (run / CARD).read_text().replace("## Limits", "## Limits\n\nMine: it counts pens only.\n")
    (run / CARD).write_text(edited)
    capsys.readouterr()
    report([str(run)])
    assert (run / CARD).read_text() == edited
    assert f"{run / CARD} (edited by you, so it stays as it is)" in capsys.readouterr().out
    with loopback_hub(models={}) as hub:
        ((status, said),) = push(tmp_path / "home", hub.address, [run, "me/mine", "--public"])
        repo = hub.repos["models/me/mine"]
    assert status == 0 and "as you edited it" in said and "a public repository, which is made" in said
    assert not repo.private and "Mine: it counts pens only." in repo.files["README.md"].decode()
    assert "writes this card anew" not in repo.files["README.md"].decode()


def test_what_cannot_be_pushed_is_said_and_no_repository_is_made(run, tmp_path):
    torn = tmp_path / "torn"
    torn.mkdir()
    for name in ("config.yaml", "run.json", "metrics.jsonl"):
        (torn / name).write_text((run / name).read_text())
    there = {"me/open": Repo({}), "me/closed": Repo({}, private=True)}
    commands = {
        (run, "mine"): "mine is no name of a repository; expected ORG/NAME",
        (torn, "me/mine"): "holds no model yet; a run writes one with its first checkpoint or at its end",
        (tmp_path, "me/mine"): "config.yaml does not exist; expected the folder of a training run",
        (run, "me/open", "--private"): "me/open is there and is public; change that in its settings on the hub",
        (run, "me/closed", "--public"): "me/closed is there and is private; change that in its settings on the hub",
    }
    with loopback_hub(models=there) as hub:
        ends = push(tmp_path / "home", hub.address, *commands)
        (run / CARD).write_text("---\nlicense: [\n---\nMine\n")
        ends += push(tmp_path / "home", hub.address, [run, "me/mine"])
        ends += push(tmp_path / "home", hub.address, [run, "me/mine"], token=None)
        ends += push(tmp_path / "home", hub.address, [run, "me/mine"], token="hf_of_somebody_else")
        ends += push(tmp_path / "home", hub.address, [run, "me/mine"], HF_HUB_OFFLINE="1")
        assert not [asked for asked in hub.asked if asked.startswith("POST")]
    ends += push(tmp_path / "home", NOBODY, [run, "me/mine"])
    expected = [
        *commands.values(),
        f"{run / CARD}: what stands between its first two --- is no YAML of a card (",
        f"nobody is logged in at {hub.address}; log in with `",
        f"{hub.address} refuses this login for me/mine (401); log in with `",
        "HF_HUB_OFFLINE forbids to upload anything; unset it",
        f"{NOBODY} does not answer (ConnectError: ",
    ]
    assert [(status > 0, words in said) for (status, said), words in zip(ends, expected, strict=True)] == [
        (True, True)
    ] * len(expected), ends
    assert not [said for _, said in ends if "hf_of_somebody_else" in said]


def test_a_model_on_a_base_of_this_machine_is_pushed_with_a_warning(run, tmp_path):
    (run / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(tmp_path / "tiny")})
    )
    with loopback_hub(models={}) as hub:
        ((status, said),) = push(tmp_path / "home", hub.address, [run, "me/mine"])
        card = hub.repos["models/me/mine"].files["README.md"].decode()
    assert status == 0 and "note: the adapter's base is tiny, a folder of this machine" in said
    assert "base_model" not in front_matter(card) and "trained from tiny" in card
