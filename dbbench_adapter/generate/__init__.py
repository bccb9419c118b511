"""Makes new tasks like LifelongAgentBench's, without a model: 22 skills, any mix, three difficulties.

`dbbench_adapter` has two generators. This one makes tasks to train and to measure an agent on: 70 hand-written
subjects, statements that combine up to nine skills, tables of 8 to 50 rows, questions that read like a person's. The
other, `dbbench_adapter.generator`, makes eight plain kinds over tables of made-up words. A policy of a million
parameters learns those in minutes on a CPU, so it is the one for demos and for tests of the training loop.

    from dbbench_adapter.generate import generate
    tasks = generate(1000, seed=0, difficulty="medium", skills={"limit_only": 1.0, "subquery_single": 2.0})

Several tables, joins, NULLs in the data, decimals, and comparisons that depend on case or accents are left out.
"""

from dbbench_adapter.generate.plans import SKILL_COUNTS, Difficulty
from dbbench_adapter.generate.tasks import ExhaustedError, generate, task_stream
from dbbench_adapter.generate.themes import THEMES, Split

__all__ = ["SKILL_COUNTS", "THEMES", "Difficulty", "ExhaustedError", "Split", "generate", "task_stream"]
