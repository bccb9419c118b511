"""Every command holds the same rows of a file out, and none measures a model on what it has learnt."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from sql_agent import evaluate, oracle, train_sql_agent
from sql_agent.commands import greedy_grpo as run_dbbench_greedy_grpo
from sql_agent.commands import gsm8k as train_gsm8k_agent
from sql_agent.commands import local as train_local_grpo
from sql_agent.commands import merge as merge_policy
from sql_agent.commands import single_skill as run_experiment
from sql_agent.environments.base import make_environment
from sql_agent.local.single_skill import each_once, file_split
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.settings.load import load_config
from sql_agent.settings.local import GreedyGrpoConfig, LocalGrpoConfig
from sql_agent.settings.single_skill import TaskConfig
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.run import prepare_sft
from sql_agent.startup import search as apo
from sql_agent.startup.plan import choose_tasks
from sql_agent.tests.conftest import random_policy_folder  # noqa: F401  a fixture
from sql_agent.trained_on import TaskSource, TrainedOn, read_trained_on, write_trained_on

ROOT = Path(__file__).parents[2]
SEEDS = (0, 3)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """60 tasks of DB-Bench, each over tables of its own."""
    file = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(file, generate_tasks(60, seed=0))
    return file


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """A folder with a database of one table and 60 questions about it, two for each reference."""
    folder = tmp_path_factory.mktemp("shop")
    database = sqlite3.connect(folder / "shop.sqlite")
    database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
    database.executemany("INSERT INTO item VALUES (?, ?)", [(n, 2 * n) for n in range(30)])
    database.commit()
    database.close()
    asked = [(f"{word} is item {n}?", f"SELECT price FROM item WHERE id = {n}")
             for n in range(30) for word in ("How much", "What price")]  # fmt: skip
    (folder / "questions.json").write_text(json.dumps([{"question": q, "query": sql} for q, sql in asked]))
    return folder


def search_tasks(cfg, environment):
    return apo.choose_tasks(cfg.data, cfg.seed, cfg.apo.selection_tasks, environment)


def fingerprints(settings: EnvironmentSettings, found) -> set[str]:
    environment = make_environment(settings)
    return {environment.fingerprint(task) for task in found}


@contextmanager
def served(app, root: Path | None = None) -> Iterator[str]:
    """A server that names the folder of its model, as vLLM does."""

    async def models(_request):
        return JSONResponse({"object": "list", "data": [{"id": oracle.MODEL, "root": str(root)}]})

    if root is not None:
        app.routes.insert(0, Route("/v1/models", models))
    with oracle.serve(app) as url:
        yield url


def fine_tuned(cfg: SftConfig) -> TrainedOn:
    """What fine-tuning learns and holds out, as it is known before the first step."""
    return prepare_sft(cfg, resume=False, say=lambda line: None).trained_on


def evaluated(file: Path, out: Path, *flags: str) -> list[str]:
    """The ids of the tasks that `evaluate --split held-out` plays; the policy answers nothing."""
    answer = oracle.calls(
        oracle.call("commit_final_answer", {"answers": ["?"]}), oracle.call("submit_sql", {"sql": "?"})
    )
    with served(oracle.app(lambda history: answer)) as url:
        evaluate.main(["--base-url", url, "--model", oracle.MODEL, "--tasks", str(file), "--output", str(out),
                       "--split", "held-out", *flags])  # fmt: skip
    return [json.loads(line)["task_id"] for line in out.read_text().splitlines()]


def main_job(model: Path, seed: int, *settings: str):
    return load_config(None, [f"model={model}", f"seed={seed}", "data.max_prompt_tokens=900", *settings])


APO = ("algorithm=apo", "base_url=http://h:1/v1", "apo.base_url=http://h:1/v1", "apo.gradient_model=x")


def test_every_command_holds_the_same_tasks_of_a_file_out_whatever_its_seed(random_policy_folder, tasks, tmp_path):  # noqa: F811
    settings, model = EnvironmentSettings("dbbench"), random_policy_folder
    environment = make_environment(settings)
    found = {}
    for seed in SEEDS:
        sft = SftConfig(model_path=str(model), dataset="dbbench", tasks=tasks, seed=seed, output_dir=tmp_path / "sft")
        found["train_sft", seed] = set(fine_tuned(sft).held_out)
        local = LocalGrpoConfig(env="dbbench", train_file=tasks, seed=seed)
        found["train_local_grpo", seed] = fingerprints(settings, environment.load_split(local.data, seed).val)
        greedy = run_dbbench_greedy_grpo.load_split(GreedyGrpoConfig(data=tasks, seed=seed), environment)
        found["run_dbbench_greedy_grpo", seed] = fingerprints(settings, greedy.val)
        main = main_job(model, seed, f"data.train_file={tasks}")
        found["train_sql_agent", seed] = set(choose_tasks(main, environment).trained_on.held_out)
        search = search_tasks(main_job(model, seed, f"data.train_file={tasks}", *APO), environment)
        found["apo", seed] = fingerprints(settings, search[1].val)
    found["run_experiment", 0] = fingerprints(settings, each_once(file_split(TaskConfig(data=tasks))[1]))
    played = evaluated(tasks, tmp_path / "out.jsonl")
    found["evaluate", 0] = fingerprints(settings, [task for task in environment.read_tasks(tasks) if task.id in played])
    assert len(found) == 12 and all(held_out == found["train_sft", 0] for held_out in found.values()), {
        name: len(held_out) for name, held_out in found.items()
    }
    assert len(found["train_sft", 0]) == 13  # a fifth of the tables, over some of which there are two tasks


def test_every_command_holds_the_same_questions_of_a_database_out(random_policy_folder, shop, tmp_path):  # noqa: F811
    file, database = shop / "questions.json", shop / "shop.sqlite"
    settings = EnvironmentSettings("text2sql", database=database)
    environment = make_environment(settings)
    of_file = [f"data.train_file={file}", "env.type=text2sql", f"env.database={database}"]
    found = {}
    for seed in SEEDS:
        sft = SftConfig(model_path=str(random_policy_folder), database=database, tasks=file, seed=seed, max_samples=9,
                        output_dir=tmp_path / "sft")  # fmt: skip
        learnt = fine_tuned(sft)
        found["train_sft", seed] = set(learnt.held_out)
        assert len(learnt.learnt) == 9 and not set(learnt.learnt) & set(learnt.held_out)
        local = LocalGrpoConfig(database=database, train_file=file, seed=seed)
        found["train_local_grpo", seed] = fingerprints(settings, environment.load_split(local.data, seed).val)
        main = choose_tasks(main_job(random_policy_folder, seed, *of_file), environment).trained_on
        found["train_sql_agent", seed] = set(main.held_out)
        assert (len(main.learnt), str(main.sources[-1])) == (
            48,
            "agentgrpo train learnt 48 of questions.json, 12 held out",
        )
        search = search_tasks(main_job(random_policy_folder, seed, *of_file, *APO), environment)
        found["apo", seed] = fingerprints(settings, search[1].val)
    played = evaluated(file, tmp_path / "out.jsonl", "--database", str(database))
    found["evaluate", 0] = fingerprints(settings, [task for task in environment.read_tasks(file) if task.id in played])
    assert len(found) == 9 and all(held_out == found["train_sft", 0] for held_out in found.values())


# what was learnt is not measured --------------------------------------------------------------------------------------


def learnt_by(model: Path, folder: Path, settings: EnvironmentSettings, found) -> Path:
    """A copy of a model that has learnt these tasks."""
    shutil.copytree(model, folder)
    source = TaskSource(command="agentgrpo sft", tasks="tasks.jsonl", learnt=len(found), held_out=0)
    prints = tuple(sorted(fingerprints(settings, found)))
    write_trained_on(folder, TrainedOn(env=settings.type, sources=(source,), learnt=prints))
    return folder


@pytest.fixture
def learnt(random_policy_folder, tasks, tmp_path) -> Path:  # noqa: F811
    return learnt_by(random_policy_folder, tmp_path / "learnt", EnvironmentSettings("dbbench"),
                     generate_tasks(60, seed=0))  # fmt: skip


def refusal(capsys, command, *arguments: object) -> str:
    """What a command that is refused says."""
    try:
        status = command([str(each) for each in arguments])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        print(end.code if isinstance(end.code, str) else "")
    assert status in (1, 2)
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


SAID = (
    "learnt has learnt {n} of the {n} tasks to measure it on, for example '{example}'; its trained_on.json says: "
    "agentgrpo sft learnt 60 of tasks.jsonl, 0 held out. Success on them says nothing about new tasks. "
)
SAME = "Measure on tasks that it has not learnt: the same --train-file without --val-file"


def held_out_of(tasks: Path):
    local = LocalGrpoConfig(env="dbbench", train_file=tasks)
    return make_environment(local.environment).load_split(local.data, 0).val


def test_training_commands_refuse_to_measure_what_their_model_has_learnt(learnt, tasks, tmp_path, capsys):
    first, *_ = held_out = held_out_of(tasks)
    words = SAID.format(n=len(held_out), example=first.question) + SAME
    run = tmp_path / "run"
    model, at = ("--model_path", learnt), ("--run_dir", run, "--device", "cpu")
    file = ("--env", "dbbench", "--train_file", tasks)
    assert words in refusal(capsys, train_local_grpo.main, *model, *file, *at)
    greedy = (*model, "--data", tasks, "--eval_tasks", "13", *at)
    assert words in refusal(capsys, run_dbbench_greedy_grpo.main, *greedy)
    settings = ("--set", f"data.train_file={tasks}", f"model={learnt}", "data.max_prompt_tokens=900")
    for dry in ([], ["--dry-run"]):
        main_job = ("--device", "cpu", "--run-dir", run, *settings, "store.port=0", *dry)
        assert words in refusal(capsys, train_sql_agent.main, *main_job)
    assert not (run / "config.yaml").exists() and not (run / "config.json").exists()


def test_a_single_skill_run_refuses_to_measure_what_its_model_has_learnt(learnt, tasks, tmp_path, capsys):
    tiny = ROOT / "sql_agent" / "configs" / "single_skill" / "experiments" / "tiny_cpu.yaml"
    settings = (f"language_model.model_path={learnt}", f"task.data={tasks}", f"output_dir={tmp_path / 'runs'}")
    said = refusal(capsys, run_experiment.main, "--config_path", tiny, "--set", *settings,
                   "training_callback.evaluate_every=1", "task.skills={select: 1}")  # fmt: skip
    assert "tasks to measure it on, for example" in said and "task.held_out_data=FILE" in said
    assert not (tmp_path / "runs").exists()


def test_word_problems_that_were_learnt_are_not_measured(random_policy_folder, tmp_path, capsys):  # noqa: F811
    from sql_agent.gsm8k.problems import load_problems

    file, settings = tmp_path / "problems.jsonl", EnvironmentSettings("gsm8k")
    file.write_text("".join(json.dumps(row) + "\n" for row in load_problems("generated", limit=60)))
    found = make_environment(settings).read_tasks(file)
    model = learnt_by(random_policy_folder, tmp_path / "learnt", settings, found)
    said = refusal(capsys, train_gsm8k_agent.main, "--model_path", model, "--dataset", file, "--eval_samples", "4",
                   "--output_dir", tmp_path / "run", "--max_prompt_tokens", "900")  # fmt: skip
    assert "has learnt 4 of the 4 tasks to measure it on" in said
    assert not (tmp_path / "run").exists()


def test_evaluate_refuses_what_the_served_model_has_learnt_unless_it_is_asked_for(learnt, tasks, tmp_path, capsys):
    held_out, file = held_out_of(tasks), tmp_path / "new.jsonl"
    write_tasks(file, [*generate_tasks(4, seed=0, split="held_out"), *held_out[:2]])
    with served(oracle.app(oracle.replay(generate_tasks(60, seed=0))), learnt) as url:
        always = ("--base-url", url, "--model", oracle.MODEL, "--output", tmp_path / "out.jsonl")
        said = refusal(capsys, evaluate.main, *always, "--tasks", file)
        assert SAID.format(n=2, example=held_out[0].question).replace("of the 2", "of the 6") in said
        assert "--split held-out; or on every row all the same, --split all" in said
        said = refusal(capsys, evaluate.main, *always, "--tasks", tasks, "--split", "held-out")
        assert "has learnt 13 of the 13" in said and "Name other tasks with --tasks" in said
        assert not (tmp_path / "out.jsonl").exists()
        evaluate.main([*map(str, always), "--tasks", str(tasks), "--split", "train", "--limit", "3"])
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


def test_evaluate_counts_what_a_part_of_a_file_leaves_out(shop, tmp_path, capsys):
    rows, file = json.loads((shop / "questions.json").read_text())[:8], tmp_path / "some.json"
    file.write_text(json.dumps([*rows, {"question": "What else?", "query": "SELECT nothing FROM nowhere"}]))
    with oracle.serve(oracle.app(lambda history: {"role": "assistant", "content": "no"})) as url:
        asked = ("--base-url", url, "--model", oracle.MODEL, "--database", shop / "shop.sqlite", "--tasks", file)
        part = ("--split", "held-out", "--limit", "1", "--max-turns", "1", "--output", tmp_path / "out.jsonl")
        evaluate.main([*map(str, (*asked, *part))])
    assert f"left out of {file}: reference_failed 1" in "".join(capsys.readouterr())


def test_instructions_are_not_chosen_on_tasks_that_the_policy_has_learnt(learnt, tasks, tmp_path):
    pytest.importorskip("poml", reason="agent-lightning's APO needs poml, the extra apo of pyproject.toml")
    cfg = main_job(learnt, 0, f"data.train_file={tasks}", "apo.selection_tasks=8", f"run_dir={tmp_path / 'run'}", *APO)
    with pytest.raises(ValueError, match=r"has learnt 21 of the 21 .* give others with --train-file and --val-file"):
        apo.make_search(cfg, make_environment(cfg.environment), "run", learnt)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_a_model_learnt_is_known_after_training_further_and_merging(
    random_policy_folder,  # noqa: F811
    shop,
    tmp_path,
    capsys,
):
    from sql_agent.commands import sft as train_sft

    first, second = tmp_path / "first.json", tmp_path / "second.json"
    rows = json.loads((shop / "questions.json").read_text())
    first.write_text(json.dumps(rows[:20]))
    second.write_text(json.dumps(rows[20:]))
    database = ("--database", shop / "shop.sqlite", "--device", "cpu")

    def run(command, *arguments):
        assert command([str(each) for each in arguments]) in (None, 0)
        return capsys.readouterr().out

    tuned, trained, whole = tmp_path / "tuned", tmp_path / "trained", tmp_path / "whole"
    said = run(train_sft.main, "--model_path", random_policy_folder, *database, "--tasks", first, "--num_epochs", 1,
               "--lora_r", 0, "--output_dir", tuned, "--max_length", 1024)  # fmt: skip
    assert (
        f"{first}: 16 to learn, 4 held out (the same ones that training and evaluate hold out; --val-file names others)"
        in said
    )
    assert "warning: 4 held-out tasks: no change can be clear (McNemar's exact test, p < 0.05), which takes 6" in said
    assert json.loads((tuned / "sft.json").read_text())["data"]["tasks"] == {
        "command": "agentgrpo sft", "tasks": "first.json", "learnt": 16, "held_out": 4, "held_out_tasks": None,
        "listed": True,
    }  # fmt: skip
    run(train_local_grpo.main, "--model_path", tuned, *database, "--train_file", second, "--num_tasks", 2,
        "--group_size", 2, "--max_new_tokens", 4, "--eval_tasks", 1, "--run_dir", trained)  # fmt: skip
    run(merge_policy.main, "--adapter", trained / "epoch_1", "--output", whole)
    record = read_trained_on(whole)
    assert list(map(str, record.sources)) == [
        "agentgrpo sft learnt 16 of first.json, 4 held out",
        "agentgrpo local learnt 2 of second.json, 8 held out",
    ]
    assert (record.env, len(record.learnt), len(record.held_out)) == ("text2sql", 18, 8)
    with served(oracle.app(lambda history: {"role": "assistant", "content": "?"}), whole) as url:
        said = refusal(capsys, evaluate.main, "--base-url", url, "--model", oracle.MODEL, "--tasks", first,
                       "--database", shop / "shop.sqlite", "--output", tmp_path / "out.jsonl")  # fmt: skip
    assert "has learnt 16 of the 20 tasks to measure it on, for example" in said
