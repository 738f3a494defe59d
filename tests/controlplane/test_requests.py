"""What a controller is asked: every field is checked, and a refusal names it."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane import api_pb2 as api
from controlplane import requests
from machine.errors import BadInput
from machine.requests import Nothing, checked

NAMES = {"Submit": requests.Job, "SubmitAndWatch": requests.Job, "Place": requests.Job}


def test_every_field_of_every_call_is_checked() -> None:
    for method in api.DESCRIPTOR.services_by_name["Controller"].methods:
        model = NAMES.get(method.name) or getattr(requests, method.name, Nothing)
        assert model.model_fields.keys() == {field.name for field in method.input_type.fields}, method.name


@pytest.mark.parametrize(
    ("model", "message", "words"),
    [
        (requests.Job, api.JobRequest(gpus=1), "name: must begin with a letter or digit"),
        (requests.Job, api.JobRequest(name="a\x1b[2K", gpus=1), r'name: .* is "a\\u001b\[2K"'),
        (requests.Job, api.JobRequest(name="a"), "gpus: must be at least 1, is 0"),
        (requests.Job, api.JobRequest(name="a", gpus=1, pattern="\n"), "pattern: must begin"),
        (requests.Job, api.JobRequest(name="a", gpus=1, duration_s=-1), "duration_s: must be above 0"),
        (requests.Job, api.JobRequest(name="a", gpus=1, duration_s=0), "duration_s: must be above 0"),
        (requests.Job, api.JobRequest(name="a", gpus=1, deadline_s=float("inf")), "deadline_s: .* finite"),
        (requests.Cancel, api.CancelRequest(name="a\nb"), "name: must begin"),
        (requests.WatchJobs, api.WatchJobsRequest(name="a\nb"), "name: must begin"),
        (requests.WatchLoads, api.WatchLoadsRequest(interval_ms=1), "interval_ms: must be at least 10, or 0"),
        (requests.Deploy, api.DeployRequest(routing="rip"), 'routing: must be "", "ecmp" or "source"'),
        (requests.Deploy, api.DeployRequest(p4info="a"), "program: is empty; p4info needs it"),
        (requests.Deploy, api.DeployRequest(program="a"), "p4info: is empty; program needs it"),
        (requests.Deploy, api.DeployRequest(p4info="\0", program="a"), "p4info: must be a path"),
    ],
)
def test_a_bad_request_is_refused_with_the_field_and_what_it_may_be(
    model: Any, message: Any, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        checked(model, message)


def test_what_is_left_out_is_unknown() -> None:
    asked = checked(requests.Job, api.JobRequest(name="a", gpus=2))
    assert (asked.duration_s, asked.deadline_s, asked.pattern) == (None, None, "")
