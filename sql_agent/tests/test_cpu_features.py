import pytest

from sql_agent import cpu_features
from sql_agent.cpu_features import bfloat16_pays, parse_flags


def test_flags_are_read_from_every_processor_of_cpuinfo():
    cpuinfo = "processor\t: 0\nflags\t\t: fpu avx2\nbugs\t\t: amx_bf16\n\nprocessor\t: 1\nflags\t\t: fpu avx512f\n"
    assert parse_flags(cpuinfo) == {"fpu", "avx2", "avx512f"}
    assert parse_flags("processor\t: 0\nFeatures\t: fp asimd\n") == {"fp", "asimd"}


@pytest.mark.parametrize(
    ("flags", "pays"),
    [
        pytest.param({"avx2", "avx512f", "avx512_bf16"}, True, id="avx512_bf16"),
        pytest.param({"avx2", "amx_tile", "amx_bf16"}, True, id="amx"),
        pytest.param({"avx2", "avx512f", "amx_tile", "amx_int8"}, False, id="avx512_without_bfloat16"),
        pytest.param(set(), False, id="nothing_known"),
    ],
)
def test_bfloat16_pays_where_the_cpu_has_it(monkeypatch, flags, pays):
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: frozenset(flags))
    assert bfloat16_pays() is pays
