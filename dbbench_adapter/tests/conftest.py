from pathlib import Path

import pytest

from dbbench_adapter.engines import BackendUnavailable, open_backend

DATA = Path(__file__).parents[2].parent / "shared" / "dbbench" / "data"


@pytest.fixture(scope="session")
def sqlite():
    with open_backend("sqlite") as backend:
        yield backend


@pytest.fixture(scope="session")
def mariadb():
    try:
        server = open_backend("mariadb")
        backend = server.__enter__()
    except BackendUnavailable as failure:
        pytest.skip(f"no MariaDB here: {failure}")
    yield backend
    server.__exit__(None, None, None)


@pytest.fixture(params=["sqlite", "mariadb"])
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def data_file():
    """A benchmark file by its name below the data folder; skips where the benchmark's data are not there."""

    def find(name):
        path = DATA / name
        if not path.is_file():
            pytest.skip(f"no {name} in {DATA}: the benchmark's own data are not part of the repository")
        return path

    return find
