"""The option of every package's long tests; it has to stand here to be known wherever pytest is started from."""


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="long tests at full size: hostile statements, fuzzing, 1,000 "
                     "rollouts; minutes to an hour")  # fmt: skip
