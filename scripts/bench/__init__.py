"""The parts of `python -m scripts.bench_main_job`; each module measures one and returns `report.Row`s."""
