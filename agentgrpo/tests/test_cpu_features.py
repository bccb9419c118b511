import os

import pytest

from agentgrpo import machine
from agentgrpo.machine import bfloat16_pays, parse_flags, share_of_cores, uses_bfloat16


def test_flags_are_read_from_every_processor_of_cpuinfo():
    cpuinfo = "processor\t: 0\nflags\t\t: fpu avx2\nbugs\t\t: amx_bf16\n\nprocessor\t: 1\nflags\t\t: fpu avx512f\n"
    assert parse_flags(cpuinfo) == {"fpu", "avx2", "avx512f"}
    assert parse_flags("processor\t: 0\nFeatures\t: fp asimd\n") == {"fp", "asimd"}


@pytest.mark.parametrize(("cores", "workers", "share"), [(8, 1, 8), (8, 2, 4), (2, 4, 1), (8, 3, 2)])
def test_training_workers_share_the_cores(monkeypatch, cores, workers, share):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert share_of_cores(workers) == share


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
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    assert bfloat16_pays() is pays


@pytest.mark.parametrize(
    ("precision", "parameters", "pays", "expected"),
    [
        pytest.param("auto", 134_515_008, True, True, id="auto_large_model"),
        pytest.param("auto", 918_000, True, False, id="auto_small_model"),
        pytest.param("auto", 134_515_008, False, False, id="auto_cpu_without_it"),
        pytest.param("float32", 134_515_008, True, False, id="float32"),
        pytest.param("bfloat16", 918_000, False, True, id="bfloat16"),
    ],
)
def test_a_large_model_is_trained_in_bfloat16_where_that_pays(monkeypatch, precision, parameters, pays, expected):
    monkeypatch.setattr(machine, "bfloat16_pays", lambda: pays)
    assert uses_bfloat16(precision, parameters) is expected
