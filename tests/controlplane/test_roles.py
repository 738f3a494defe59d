"""Who may do what through the controller's API, over TLS and on its Unix socket."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane import roles
from controlplane.client import IDENTITY, NETWORKS, call, choose
from controlplane.cluster import ClusterSetup, cluster_of
from controlplane.controller import OWNERS, Controller, serving
from controlplane.ledger import Ledger
from controlplane.pipeline import Pipeline
from controlplane.roles import NEEDS, PLACES, Access, Caller, load_access
from controlplane.topology import leaf_spine, load_topology
from entrain.certificates import issue, revoke
from machine import callers
from machine.callers import Bound
from machine.errors import BadInput, EntrainError
from machine.tls import CONTROLLER, OPERATORS, identity_of, open_channel
from schedulers.placement.strategies import STRATEGIES
from tests.controlplane.fake_switch import FakeSwitch
from tests.controlplane.kinds import FakeKind
from tests.controlplane.test_fabric import switches
from tests.controlplane.test_loads import LoadTable
from tests.permissions import let_others_pass
from tests.silent import silent

pytestmark = pytest.mark.sockets

TOPOLOGY = leaf_spine(2, 2, 2)
DENIED, EXHAUSTED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID, UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE
REQUESTS: dict[str, Any] = {
    "GetNetwork": api.GetNetworkRequest(),
    "WatchLoads": api.WatchLoadsRequest(),
    "ListDrops": api.ListDropsRequest(),
    "ListTraining": api.ListTrainingRequest(),
    "Place": api.JobRequest(name="new", gpus=1),
    "ListJobs": api.ListJobsRequest(),
    "WatchJobs": api.WatchJobsRequest(name="nobody's"),
    "ListCircuits": api.ListCircuitsRequest(),
    "Submit": api.JobRequest(name="given", gpus=1),
    "SubmitAndWatch": api.JobRequest(name="", gpus=1),
    "Cancel": api.CancelRequest(name="nobody's"),
    "Deploy": api.DeployRequest(),
    "Shutdown": api.ShutdownRequest(),
}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    issue(TOPOLOGY, directory, 1, submitters=["ann", "bob"], readers=["eve", "ed"])
    return directory


Ask = Callable[..., Awaitable[grpc.StatusCode]]


@asynccontextmanager
async def api_of(
    directory: Path, access: Access, **limits: int
) -> AsyncIterator[tuple[Controller, int | None]]:
    """A controller of a cluster of fake switches, with its API at `directory`/api.sock."""
    async with switches(FakeKind(FakeSwitch, Pipeline.load()), TOPOLOGY) as (served, fakes):
        for fake in fakes.values():
            fake.answer = LoadTable({1: {1234: 70}})
        setup = ClusterSetup(cluster_of(served, 1), STRATEGIES["vclos"], **limits)  # type: ignore[arg-type]
        ledger = Ledger(directory / "jobs", setup.cluster)
        async with (
            Controller(served, "source", cluster=setup, ledger=ledger, access=access) as controller,
            serving(controller, directory / "api.sock", controller.access) as port,
        ):
            yield controller, port
        ledger.close()


@asynccontextmanager
async def over_tls(directory: Path, certs: Path, **limits: int) -> AsyncIterator[tuple[Controller, Ask, int]]:
    """The same over TLS: how a call of somebody with a certificate ends."""
    access = Access("127.0.0.1:0", identity_of(certs, CONTROLLER))
    async with api_of(directory, access, **limits) as (controller, port):
        assert port

        async def ask(who: str | None, method: str, request: Any) -> grpc.StatusCode:
            own = identity_of(certs, who) if who else None
            async with open_channel(grpc.aio, f"127.0.0.1:{port}", [], own, CONTROLLER) as channel:
                made = getattr(api_grpc.ControllerStub(channel), method)(request, timeout=20)
                try:
                    if isinstance(made, grpc.aio.UnaryStreamCall):
                        await made.read()
                    else:
                        await made
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

        yield controller, ask, port


def test_every_call_needs_a_role() -> None:
    service = api.DESCRIPTOR.services_by_name["Controller"]
    assert NEEDS.keys() == {method.name for method in service.methods} == REQUESTS.keys()


def test_each_role_may_do_its_part_and_nobody_else_anything(certs: Path, tmp_path: Path) -> None:
    may = {"operator": {"reader", "submitter", "operator"}, "ann": {"reader", "submitter"}, "eve": {"reader"}}

    async def test() -> None:
        async with over_tls(tmp_path, certs) as (controller, ask, _):
            for who in (*may, "h1", None):
                for method, request in REQUESTS.items():
                    if who == OPERATORS and method == "Shutdown":
                        continue
                    found = await ask(who, method, request)
                    if who is None:
                        assert found == UNAVAILABLE
                    else:
                        assert (found == DENIED) == (NEEDS[method] not in may.get(who, ())), (who, method)
            assert not controller.stopped.is_set()

    asyncio.run(test())


def test_a_user_whose_certificate_is_revoked_is_refused(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    issue(TOPOLOGY, certs, 1, readers=["eve", "ed"])
    for suffix in ("crt", "key"):
        shutil.copy(certs / f"eve.{suffix}", certs / f"stolen.{suffix}")

    async def test() -> None:
        async with over_tls(tmp_path, certs) as (_, ask, _):
            assert await ask("stolen", "ListJobs", api.ListJobsRequest()) == grpc.StatusCode.OK
            revoke(certs, ["eve"])
            assert await ask("stolen", "ListJobs", api.ListJobsRequest()) == DENIED
            assert await ask("ed", "ListJobs", api.ListJobsRequest()) == grpc.StatusCode.OK

    asyncio.run(test())


def test_submitters_cancel_their_own_jobs_and_operators_all(certs: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with over_tls(tmp_path, certs) as (controller, ask, _):
            ok = grpc.StatusCode.OK
            for who in ("ann", "bob", OPERATORS):
                assert await ask(who, "Submit", api.JobRequest(name=f"of-{who}", gpus=1)) == ok
            assert controller.admission is not None
            owners = {each.entry.name: each.entry.owner for each in controller.admission.jobs()}
            assert owners == {"of-ann": "ann", "of-bob": "bob", "of-operator": ""}
            for name in ("of-bob", "of-operator"):
                assert await ask("ann", "Cancel", api.CancelRequest(name=name)) == DENIED
            assert await ask("ann", "Cancel", api.CancelRequest(name="of-ann")) == ok
            assert await ask(OPERATORS, "Cancel", api.CancelRequest(name="of-bob")) == ok
            assert [each.entry.name for each in controller.admission.jobs()] == ["of-operator"]

    asyncio.run(test())


def test_one_submitter_keeps_no_other_from_gpus(certs: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with over_tls(tmp_path, certs, gpus_per_submitter=2) as (controller, ask, _):
            jobs = {"hog0": ("ann", 2), "hog1": ("ann", 1), "small": ("bob", 1)}
            for name, (who, gpus) in jobs.items():
                assert await ask(who, "Submit", api.JobRequest(name=name, gpus=gpus)) == grpc.StatusCode.OK
            assert await ask("bob", "Submit", api.JobRequest(name="wide", gpus=3)) == INVALID
            assert controller.admission is not None
            await controller.admission.settled()
            assert {each.entry.name: each.entry.phase for each in controller.admission.jobs()} == {
                "hog0": "running",
                "hog1": "waiting",
                "small": "running",
            }

    asyncio.run(test())


def test_an_error_is_cut_to_what_clients_accept(certs: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with over_tls(tmp_path, certs) as (_, ask, _):
            unknown = api.CancelRequest(name="\u00e4" * 3000)
            assert await ask(OPERATORS, "Cancel", unknown) == INVALID
            deploy = api.DeployRequest(p4info="/" + "p" * 20_000, program="/" + "q" * 20_000)
            assert await ask(OPERATORS, "Deploy", deploy) in (INVALID, grpc.StatusCode.FAILED_PRECONDITION)

    asyncio.run(test())


def test_requests_and_what_a_caller_holds_are_bounded(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "PLACES", replace(PLACES, streams=Bound(1, 8, 8)))

    async def test() -> None:
        async with over_tls(tmp_path, certs, jobs_per_submitter=2) as (_, ask, port):
            asked = [await ask("ann", "Submit", api.JobRequest(name=f"j{n}", gpus=4)) for n in range(3)]
            assert asked == [grpc.StatusCode.OK, grpc.StatusCode.OK, EXHAUSTED]
            assert await ask("bob", "Submit", api.JobRequest(name="b", gpus=1)) == grpc.StatusCode.OK
            for bad in (
                api.JobRequest(name="../b", gpus=1),
                api.JobRequest(name="b" * 65, gpus=1),
                api.JobRequest(name="c", gpus=1, duration_s=float("nan")),
                api.JobRequest(name="c", gpus=1, deadline_s=float("nan")),
            ):
                assert await ask("bob", "Submit", bad) == INVALID
            assert await ask("bob", "Submit", api.JobRequest(name="b" * 100_000, gpus=1)) == EXHAUSTED
            assert await ask("eve", "WatchLoads", api.WatchLoadsRequest(interval_ms=1)) == INVALID
            eve = identity_of(certs, "eve")
            async with open_channel(grpc.aio, f"127.0.0.1:{port}", [], eve, CONTROLLER) as channel:
                watching = api_grpc.ControllerStub(channel).WatchJobs(api.WatchJobsRequest())
                await watching.read()
                assert await ask("eve", "WatchJobs", api.WatchJobsRequest()) == EXHAUSTED
                for other in ("ann", "ed", OPERATORS):
                    assert await ask(other, "WatchJobs", api.WatchJobsRequest()) == grpc.StatusCode.OK
                watching.cancel()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("who", "method", "code"),
    [("h1", "ListJobs", DENIED), ("eve", "ListJobs", EXHAUSTED), ("eve", "WatchJobs", EXHAUSTED)],
)
def test_calls_without_a_message_keep_no_operator_waiting(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, method: str, code: grpc.StatusCode
) -> None:
    monkeypatch.setattr(roles, "PLACES", replace(PLACES, rate=1e4))
    monkeypatch.setattr(callers, "REFUSAL_S", 0.0)
    monkeypatch.setattr(callers, "MESSAGE_S", 1e4)
    calls = 1024

    async def test() -> None:
        async with over_tls(tmp_path, certs) as (_, ask, port):
            own, path = identity_of(certs, who), f"/entrain.v1.Controller/{method}"
            async with silent(f"127.0.0.1:{port}", path, calls, own, CONTROLLER) as held:
                left = PLACES.calls.of_one if code == EXHAUSTED else 0
                await held.until(lambda ended: len(ended) == calls - left)
                assert {code for code, _ in held.statuses} == {code}
                assert await ask(OPERATORS, "ListJobs", api.ListJobsRequest()) == grpc.StatusCode.OK
                assert await ask("ed", "ListJobs", api.ListJobsRequest()) == grpc.StatusCode.OK
                assert len(held.statuses) == calls - left

    asyncio.run(test())


def test_commands_reach_a_controller_of_another_machine(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(IDENTITY, raising=False)
    with pytest.raises(BadInput, match="set ENTRAIN_IDENTITY"):
        choose("10.0.0.1:9600", NETWORKS)
    monkeypatch.setenv(IDENTITY, str(certs / "eve"))

    async def test() -> None:
        async with over_tls(tmp_path, certs) as (_, _, port):

            def look() -> None:
                with call(choose(f"127.0.0.1:{port}")) as stub:
                    assert stub.ListJobs(api.ListJobsRequest()).gpus == 4
                with (
                    pytest.raises(EntrainError, match="is a reader, and this needs the role operator"),
                    call(choose(f"127.0.0.1:{port}")) as stub,
                ):
                    stub.Shutdown(api.ShutdownRequest())

            await asyncio.to_thread(look)

    asyncio.run(test())


def test_users_of_this_machine_have_the_roles_that_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = {"ann": 1001, "eve": 1002}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name={1001: "ann", 1002: "eve"}[uid]))
    monkeypatch.setattr(pwd, "getpwnam", people.__getitem__)
    file = tmp_path / "net.toml"
    text = '[topology]\nkind = "leaf-spine"\nleaves = 1\nspines = 1\nhosts_per_leaf = 1\n'
    file.write_text(text + '[controller]\nsubmitters = "ann"\nreaders = "*"\n')
    access = load_access(file, load_topology(file))

    def caller(uid: int) -> Caller | None:
        return access.caller(SimpleNamespace(peer=lambda: f"unix-abstract:entrain-caller/{uid}/x"))

    assert caller(0) == caller(os.geteuid()) == Caller("operator")
    assert caller(1001) == Caller("submitter", "ann")
    assert caller(1002) == Caller("reader", "eve")
    assert caller(1003) == Caller("reader", "1003")
    file.write_text(text + '[controller]\nsubmitters = ["ann", "joe"]\n')
    with pytest.raises(BadInput, match=r"\[controller\], submitters: there is no user 'joe'"):
        load_access(file, load_topology(file))
    file.write_text(text + '[controller]\nlisten = "127.0.0.1:9600"\n')
    with pytest.raises(BadInput, match=r"listen: needs certificates; make them \(`entrain certs`\)"):
        load_access(file, load_topology(file))
    file.write_text(text)
    assert load_access(file, load_topology(file)) == OWNERS


_CALL = """
import sys, grpc
from controlplane import api_pb2 as api, api_pb2_grpc as api_grpc
for method, request in (("Submit", api.JobRequest(name="of-nobody", gpus=1)),
                        ("Cancel", api.CancelRequest(name="of-root")), ("Shutdown", api.ShutdownRequest())):
    with grpc.insecure_channel("unix:" + sys.argv[1]) as channel:
        try:
            getattr(api_grpc.ControllerStub(channel), method)(request, timeout=20)
            print("OK")
        except grpc.RpcError as error:
            print(error.code().name)
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("access", "answers"),
    [
        (Access(), ["UNAVAILABLE"] * 3),
        (Access(readers=frozenset({"nobody"})), ["PERMISSION_DENIED"] * 3),
        (Access(submitters=frozenset({"nobody"})), ["OK", "PERMISSION_DENIED", "PERMISSION_DENIED"]),
    ],
)
def test_another_user_of_the_machine_gets_his_role(
    tmp_path: Path, access: Access, answers: list[str]
) -> None:
    let_others_pass(tmp_path)

    async def test() -> None:
        async with api_of(tmp_path, access) as (controller, _):
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/api.sock") as channel:
                root = api_grpc.ControllerStub(channel)
                await root.Submit(api.JobRequest(name="of-root", gpus=1))
            # not `user=`: that forks, with gRPC's threads in this process
            command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", _CALL]
            command.append(str(tmp_path / "api.sock"))
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True
            )
            assert done.stdout.split() == answers
            assert not controller.stopped.is_set()

    asyncio.run(test())
