"""A job's description: what is wrong in it is refused by its key, with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from machine.errors import BadInput
from workloads.jobs import JobSpec, load_job, parse_job
from workloads.models import MIB, MODELS

HOSTS = [f"10.0.0.{i}" for i in range(1, 5)]


def spec(**changes: Any) -> dict[str, Any]:
    base = {
        "name": "j",
        "collective": "ring",
        "hosts": HOSTS,
        "bytes": 1000,
        "rendezvous": "r",
        "output": "o",
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hosts": None}, ["hosts: this key is missing"]),
        ({"hosts": ["10.0.0.1"]}, ["hosts", "at least 2"]),
        ({"hosts": ["10.0.0.1", "10.0.0.1"]}, ["hosts", "twice"]),
        ({"hosts": ["10.0.0.1", "10.0.0.256"]}, ["hosts, item 2", "10.0.0.256"]),
        ({"collective": "rings"}, ["collective", "'rings'", "did you mean ring?"]),
        ({"collective": "parameter-server", "servers": 4}, ["servers", "leave no worker"]),
        ({"collective": "parameter-server", "parts": -1}, ["parts", "at least 0", "-1"]),
        ({"collective": "parameter-server", "parts": "many"}, ["parts", "whole number", '"many"']),
        ({"collective": "hierarchical-ring", "group": 3}, ["group", "does not divide 4"]),
        ({"bytes": None}, ["bytes", "either a model or bytes"]),
        ({"model": "vgg16"}, ["bytes", "not both"]),
        ({"bytes": None, "model": "vgg17"}, ["model", "'vgg17'", "did you mean vgg"]),
        ({"iterations": 0}, ["iterations", "at least 1"]),
        ({"iteratoins": 3}, ["iteratoins", "unknown key", "did you mean iterations?"]),
        ({"compute_ms": -1}, ["compute_ms", "is -1"]),
        ({"scale": 0}, ["scale", "above 0"]),
        ({"port_base": 20000}, ["port_base", "source ports", "16384"]),
        ({"name": "../x"}, ["name", "../x"]),
        ({"netns": ["/run/netns/a"]}, ["netns", "4 hosts"]),
        ({"seed": -1}, ["seed", "is -1"]),
        ({"dtype": "float16"}, ["dtype", "int32"]),
    ],
)
def test_a_mistake_is_named_with_its_file_key_and_remedy(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadInput) as error:
        parse_job(spec(**changes), "job.json")
    message = str(error.value)
    assert message.startswith("job.json: ")
    assert all(word in message for word in words), message


def test_several_mistakes_are_all_named() -> None:
    with pytest.raises(BadInput) as error:
        parse_job(spec(iterations=0, scale=-1), "job.json")
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(("text", "word"), [("{", "not JSON"), ("[]", "job.json")])
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=word):
        load_job(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.json: no such file"):
        load_job(tmp_path / "nothing.json")


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = parse_job(spec(bytes=None, model="dlrm", collective=None, scale=100, start_ms=1.5), "x")
    path = tmp_path / "job.json"
    path.write_text(job.model_dump_json())
    assert load_job(path) == job
    assert job.collective == "all-to-all"
    assert job.total_bytes() == round(890 * MIB / 100)
    assert job.compute_s() == pytest.approx(0.701)


def test_underscores_in_a_collective_s_name_are_hyphens() -> None:
    assert JobSpec.model_validate(spec(collective="halving_doubling")).collective == "halving-doubling"


def test_computation_of_a_model_can_be_scaled_or_replaced() -> None:
    vgg = {"bytes": None, "model": "vgg16"}
    assert parse_job(spec(**vgg, compute_scale=10), "x").compute_s() == pytest.approx(0.0141)
    assert parse_job(spec(**vgg, compute_ms=5, compute_scale=10), "x").compute_s() == pytest.approx(0.005)
    assert parse_job(spec(), "x").compute_s() == 0


def test_every_model_makes_a_job_by_default() -> None:
    for name in MODELS:
        job = parse_job(spec(bytes=None, model=name, collective=None), "x")
        assert job.program().ranks == 4
        assert json.loads(job.model_dump_json())["model"] == name


@pytest.mark.parametrize(
    ("name", "parameters"), [("vgg16", 138_357_544), ("vgg19", 143_667_240), ("resnet50", 25_557_032)]
)
def test_gradients_have_four_bytes_a_parameter(name: str, parameters: int) -> None:
    assert MODELS[name].bytes == pytest.approx(4 * parameters, rel=0.01)
