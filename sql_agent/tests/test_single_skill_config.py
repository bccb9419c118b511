import subprocess
import sys
from pathlib import Path

import pytest

from sql_agent.rewards import REWARDS, RewardPreset
from sql_agent.settings.single_skill import ExperimentConfig, load_experiment

SHIPPED = Path(__file__).parents[1] / "configs" / "single_skill"
GROUPS = {"language_models": "language_model", "agents": "agent", "tasks": "task", "callbacks": "training_callback"}


def write(folder: Path, **files: str) -> Path:
    """Files by name without ending; gives the first."""
    for name, text in files.items():
        (folder / f"{name}.yaml").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def refused(file: Path, *overrides: str) -> str:
    with pytest.raises(ValueError) as caught:
        load_experiment(file, overrides)
    return str(caught.value)


# What is shipped


@pytest.mark.parametrize("file", sorted((SHIPPED / "experiments").glob("[!b]*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_experiment_loads(file):
    assert load_experiment(file).language_model.model_path


@pytest.mark.parametrize(
    "part", sorted(part for folder in GROUPS for part in (SHIPPED / folder).glob("*.yaml")), ids=lambda part: part.stem
)
def test_every_shipped_part_loads_where_it_belongs(part, tmp_path):
    model = "" if part.parent.name == "language_models" else "language_model: {model_path: m}\n"
    file = write(tmp_path, it=f"{model}{GROUPS[part.parent.name]}:\n  import: {part}\n")
    assert load_experiment(file, ["training_callback.evaluate_every=0"])


def test_no_shipped_file_is_left_out_of_these_tests():
    assert {file.parent.name for file in SHIPPED.rglob("*.yaml")} == {*GROUPS, "experiments"}


def test_the_defaults_are_the_predecessors():
    cfg = ExperimentConfig.model_validate({"language_model": {"model_path": "m"}})
    adapter = cfg.language_model.adapter
    assert (adapter.rank, adapter.alpha, adapter.target_modules) == (16, 32, ("q_proj", "k_proj", "v_proj", "o_proj"))
    assert (cfg.training.learning_rate, cfg.training.baseline) == (1e-5, "none")
    assert RewardPreset(**dict(cfg.task.rewards)) == REWARDS["agent_peft"]


def test_seven_billion_parameters_are_trained_with_the_defaults():
    cfg = load_experiment(SHIPPED / "experiments" / "qwen25_7b.yaml")
    default = ExperimentConfig.model_validate({"language_model": {"model_path": "m"}})
    assert cfg.language_model.adapter == default.language_model.adapter
    assert (cfg.training, cfg.task.rewards) == (default.training, default.task.rewards)


# Loading and overriding


def test_own_keys_win_over_imports_and_overwrite_wins_over_both(tmp_path):
    file = write(
        tmp_path,
        it="import: under.yaml\nseed: 2\nagent: {temperature: 0.5}\noverwrite: {agent: {max_rounds: 9}, seed: 3}\n",
        under="language_model: {model_path: m}\nseed: 1\nagent: {temperature: 2.0, max_rounds: 4, top_p: 0.9}\n",
    )
    cfg = load_experiment(file)
    assert (cfg.seed, cfg.agent.temperature, cfg.agent.max_turns, cfg.agent.top_p) == (3, 0.5, 9, 0.9)


def test_of_several_imports_the_later_wins_key_by_key(tmp_path):
    file = write(
        tmp_path,
        it="language_model: {model_path: m}\nagent: {import: [a.yaml, b.yaml]}\n",
        a="max_rounds: 1\ntop_p: 0.5\n",
        b="max_rounds: 2\n",
    )
    agent = load_experiment(file).agent
    assert (agent.max_turns, agent.top_p) == (2, 0.5)


def test_a_flags_name_in_an_imported_part_is_the_same_setting_and_another_groups_max_tokens_is_not(tmp_path):
    file = write(
        tmp_path,
        it="language_model: {model_path: m, import: part.yaml, adapter: {r: 8}}\nagent: {max_tokens: 32}\n",
        part="adapter: {rank: 4, alpha: 2}\n",
    )
    judge = ["task.reward=judge", "task.llm_judge={url: http://h:1/v1, model: m, rubric: r}"]
    cfg = load_experiment(file, [*judge, "task.llm_judge.max_tokens=64"])
    adapter = cfg.language_model.adapter
    assert (adapter.rank, adapter.alpha, cfg.agent.max_tokens, cfg.task.llm_judge.max_tokens) == (8, 2, 32, 64)


def test_an_import_is_found_from_the_file_that_names_it_whatever_folder_one_stands_in(tmp_path, monkeypatch):
    file = write(tmp_path, **{"x/it": "import: ../y/base.yaml\n", "y/base": "language_model: {import: z/m.yaml}\n"})
    write(tmp_path, **{"y/z/m": "model_path: m\n"})
    monkeypatch.chdir("/")
    assert load_experiment(file).language_model.model_path == "m"


def test_two_files_may_import_a_third(tmp_path):
    file = write(tmp_path, it="import: [a.yaml, b.yaml]\n", a="import: c.yaml\n", b="import: c.yaml\nseed: 5\n")
    write(tmp_path, c="language_model: {model_path: m}\nseed: 4\n")
    assert load_experiment(file).seed == 5


def test_a_value_replaces_a_mapping_and_a_mapping_a_value(tmp_path):
    file = write(
        tmp_path,
        it="import: under.yaml\ntask: {skills: null}\n",
        under="language_model: {model_path: m}\ntask: {skills: {insert: 1}}\n",
    )
    assert load_experiment(file).task.skills is None
    assert load_experiment(file, ["task.skills.delete=2"]).task.skills == {"delete": 2.0}


def test_set_replaces_what_every_file_says_and_its_values_are_yaml(tmp_path):
    file = write(tmp_path, it="language_model: {model_path: m}\nseed: 1\ntask: {skills: {delete: 1}, judge: text}\n")
    cfg = load_experiment(file, ["seed=7", "task.skills={insert: 2}", "training.learning_rate=1e-4"])
    assert (cfg.seed, cfg.task.skills, cfg.task.judge) == (7, {"insert": 2.0}, "text")
    assert cfg.training.learning_rate == 1e-4


def test_replies_per_episode_may_be_called_as_in_the_main_job(tmp_path):
    file = write(tmp_path, it="language_model: {model_path: m}\nagent: {max_rounds: 4}\n")
    assert load_experiment(file).agent.max_turns == 4
    assert load_experiment(file, ["agent.max_turns=5"]).agent.max_turns == 5
    assert load_experiment(file, ["agent.max_turns=5"]).model_dump()["agent"]["max_rounds"] == 5


# Bad input


@pytest.mark.parametrize(
    ("files", "said"),
    [
        pytest.param(
            {"it": "import: gone.yaml\n"},
            "it.yaml: import names gone.yaml, but there is no DIR/gone.yaml; a relative path begins at",
            id="missing",
        ),
        pytest.param(
            {"it": "agent: {import: 3}\n"}, "it.yaml: agent.import is 3, expected the path of a YAML file", id="no_path"
        ),
        pytest.param(
            {"it": "import: a.yaml\n", "a": "import: b.yaml\n", "b": "import: a.yaml\n"},
            "b.yaml: import goes in a circle: DIR/a.yaml -> DIR/b.yaml -> DIR/a.yaml",
            id="circle",
        ),
        pytest.param({"it": "- 1\n"}, "it.yaml holds a list, expected a mapping of settings", id="list"),
        pytest.param({"it": ""}, "it.yaml: language_model is missing", id="empty"),
        pytest.param({"it": "a: [\n"}, "it.yaml is not YAML: ", id="no_yaml"),
        pytest.param({"it": "overwrite: 3\n"}, "it.yaml: overwrite is 3, expected a mapping", id="overwrite"),
        pytest.param({"it": "seed: 1\n"}, "it.yaml: language_model is missing; write or import it", id="no_model"),
        pytest.param(
            {"it": "import: a.yaml\nlanguage_model: {model_path: m}\n", "a": "agent: {temprature: 1}\n"},
            "a.yaml: agent.temprature: unknown setting; known beside it: max_rounds, max_new_tokens,",
            id="unknown_key_of_an_imported_file",
        ),
        pytest.param(
            {"it": "import: a.yaml\nlanguage_model: {model_path: m}\n", "a": "agent: {max_rounds: 0}\n"},
            "a.yaml: agent.max_rounds: expected greater than or equal to 1, got 0",
            id="value_of_an_imported_file",
        ),
        pytest.param(
            {"it": "language_model: {model_path: m}\ntask: {skills: {joins: 1}}\n"},
            "it.yaml: task.skills: unknown skill 'joins'; known: select, insert,",
            id="skill",
        ),
        pytest.param(
            {"it": "language_model: {model_path: m}\ntask: {skills: {insert: 0}}\n"},
            "it.yaml: task.skills: expected one skill or more, each with a weight above 0",
            id="weight",
        ),
        pytest.param(
            {"it": "language_model: {model_path: m}\ntraining_callback: {stop_after_episodes: 10}\n"},
            "stop_after_episodes (10) is no multiple of training.grad_accum (8); take 16",
            id="half_an_update",
        ),
        pytest.param(
            {
                "it": "import: a.yaml\ntraining: {grad_accum: 3}\n",
                "a": "import: b.yaml\nseed: 1\n",
                "b": "language_model: {model_path: m}\ntraining_callback: {stop_after_episodes: 10, save_every: 2}\n",
            },
            "DIR/b.yaml, DIR/it.yaml: training_callback.stop_after_episodes (10) is no multiple of training.grad_accum",
            id="settings_of_two_files",
        ),
        pytest.param(
            {"it": "import: a.yaml\nlanguage_model: {model_path: m}\n", "a": "agent: {max_turns: 5, max_rounds: 3}\n"},
            "DIR/a.yaml: max_turns and max_rounds are names of one setting; keep one of them",
            id="two_names_of_one_setting",
        ),
        pytest.param(
            {"it": "language_model: {model_path: m}\noverwrite: {agent: {max_turns: 5, max_rounds: 3}}\n"},
            "DIR/it.yaml: max_turns and max_rounds are names of one setting; keep one of them",
            id="two_names_of_one_setting_that_is_overwritten",
        ),
        pytest.param(
            {"it": "import: a.yaml\nlanguage_model: {model_path: m}\n", "a": "task: {judge: text, reward: judge}\n"},
            "DIR/a.yaml: task.reward names judge, and no LLM is given; add task.llm_judge.url, task.llm_judge.model",
            id="a_rule_of_every_command",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_file_and_key(files, said, tmp_path):
    assert said.replace("DIR", str(tmp_path)) in refused(write(tmp_path, **files))


def test_a_missing_experiment_points_to_those_that_are_shipped(tmp_path):
    assert "sql_agent/configs has the ones that are shipped" in refused(tmp_path / "none.yaml")


def test_a_fault_between_settings_is_laid_to_those_that_it_names(tmp_path):
    file = write(tmp_path, it="import: a.yaml\nlanguage_model: {model_path: m}\n", a="task: {judge: text}\n")
    assert refused(file, "task.reward=judge").startswith("--set task.reward=judge: task.reward names judge, and no LLM")
    assert refused(file, "task.reward_model.timeout_s=200").startswith(
        "--set task.reward_model.timeout_s=200: task.reward_model.timeout_s (200) is longer than "
        "task.reward_model.give_up_s (120); "
    )
    assert refused(file, "task.skills={selct: 1, insert: 1}", "task.llm_judge.url=http://h:1/v1").splitlines() == [
        "--set task.llm_judge.url=http://h:1/v1: an LLM as judge needs an address, a model and a rubric; missing: "
        "task.llm_judge.model, task.llm_judge.rubric",
        "--set task.skills={selct: 1, insert: 1}: task.skills: unknown skill 'selct'; did you mean select?",
    ]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "--set 'seed' has no `=`"),
        ("seed=x", "--set seed=x: seed: expected a valid integer"),
        ("agent.x=1", "--set agent.x=1: agent.x: unknown setting"),
        ("seed={", "--set seed={ is not YAML"),
    ],
)
def test_a_setting_on_the_command_line_is_named_as_it_was_written(override, said, tmp_path):
    assert said in refused(write(tmp_path, it="language_model: {model_path: m}\n"), override)


def test_reading_an_experiment_loads_nothing_heavy():
    heavy = "{'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    code = f"import sys, sql_agent.settings.single_skill; assert not {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])
