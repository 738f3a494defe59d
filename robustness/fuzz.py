"""Mutated input for all that reads from outside: an answer or a refusal comes of it, and never an accident.

- `p4runtime`: updates and reads, to the entities of a switch, which are in the kernel if root runs it;
- `controller`: requests to a controller of a cluster of fake switches;
- `agent`: requests to the agent's service, as users and as root;
- `emulated`: requests to an emulated switch; what is refused must change no load;
- `p4json`: the switch programs' BMv2 JSON: refused, or C is generated;
- `programs`: mutated JSON that is accepted, on softswitch and on BMv2: the same outputs (needs root);
- `packets`: mutated packets under random entries, on softswitch and on BMv2: the same outputs, and nothing of
  ours in the kernel's log (needs root);
- `files`: progress files, TOML files and kept results, read back.

An accident is an exception that is no refusal, an internal error, a difference, or a changed state. All of it
is drawn from a seed: runs with different seeds add up to a longer one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib
import json
import os
import queue
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
from google.protobuf.message import DecodeError

from machine import origin
from machine.errors import EntrainError

SHOWN = 20
"""How many different accidents are told; all are counted."""
COUNTS = {
    "p4runtime": 1_000_000,
    "controller": 1_000_000,
    "agent": 1_000_000,
    "emulated": 1_000_000,
    "p4json": 20_000,
    "programs": 200,
    "packets": 1_000_000,
    "files": 100_000,
}
"""Inputs of each kind, if --count does not say otherwise."""
WITH_ROOT = ("programs", "packets")
SELDOM = {"Deploy": 0.02, "WatchLoads": 0.1, "ListDrops": 0.05}
"""How often a controller gets these requests (others: 1). Each asks every switch, which takes long."""


@dataclass
class Found:
    """What was tried, and what came of it."""

    tried: int = 0
    refused: int = 0
    accidents: int = 0
    seconds: float = 0.0
    what: list[str] = field(default_factory=list)
    _seen: set[tuple[str, ...]] = field(default_factory=set)

    def accident(self, what: str) -> None:
        """Count an accident."""
        self.accidents += 1
        where = tuple(what.strip().splitlines()[-3:])
        if len(self.what) < SHOWN and where not in self._seen:
            self._seen.add(where)
            self.what.append(what)

    @contextlib.contextmanager
    def trying(self, what: Callable[[], str], *refusals: type[BaseException]) -> Iterator[None]:
        """Within, one input is tried. Exceptions other than `refusals` are accidents."""
        self.tried += 1
        try:
            yield
        except refusals:
            self.refused += 1
        except Exception:
            self.accident(f"{what()}\n{traceback.format_exc(limit=-4)}")


Fuzz = Callable[[random.Random, int, Found], None]


def _of_tests(module: str) -> Any:
    """Return a module of the tests, whose types nobody checks."""
    return importlib.import_module(f"tests.{module}")


# -- mutations

WORDS = (
    *("", "\0", "a" * 300, "../../x", "\ud7ff", "-1", "NaN", "entrain:operator", "10.0.0.1", "0"),
    *("::1", "10.9.0.1/24", "j\n\x1b[2K"),
)
INTEGERS = (0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64)
NUMBERS = (*INTEGERS, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, cut, double or insert a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randrange(1, 9)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 9)]
            case _:
                changed[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(changed)


def mutated(rng: random.Random, message: Any) -> Any:
    """Return a message of the same kind: other bytes, where they decode, or other values of some fields."""
    if rng.random() < 0.5:
        with contextlib.suppress(DecodeError):
            return type(message).FromString(mutated_bytes(rng, message.SerializeToString()))
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(rng.randrange(1, 3)):
        _mutate_field(rng, changed)
    return changed


def _mutate_field(rng: random.Random, message: Any) -> None:
    described = rng.choice(message.DESCRIPTOR.fields or [None])
    if described is None:
        return
    name = described.name
    many = described.is_repeated
    if described.type == described.TYPE_MESSAGE:
        if described.message_type.GetOptions().map_entry:
            return
        if many:
            held = getattr(message, name)
            if held and rng.random() < 0.7:
                _mutate_field(rng, rng.choice(held))
            else:
                _mutate_field(rng, held.add())
        else:
            _mutate_field(rng, getattr(message, name))
        return
    value: Any = rng.choice(WORDS) if described.type == described.TYPE_STRING else rng.choice(NUMBERS)
    if described.type == described.TYPE_BYTES:
        value = rng.randbytes(rng.randrange(9))
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # of a number that does not fit
        if many:
            getattr(message, name).extend([value] * rng.choice((1, 2, 100)))
        else:
            setattr(message, name, value)


def mutated_json(rng: random.Random, root: Any) -> None:
    """Change one value somewhere in a JSON document."""
    node = root
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = rng.choice(list(keys))
        inner = node[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.9:
            node = inner
            continue
        match rng.randrange(4):
            case 0:
                del node[key]
            case 1 if isinstance(inner, int):
                node[key] = inner + rng.choice((-1, 1, 64))
            case 2 if isinstance(node, list):
                node.append(inner)
            case _:
                node[key] = rng.choice((None, True, [], {}, *WORDS, *INTEGERS[:7], root))
        return


# -- gRPC


class _Aborted(Exception):
    """A call was refused."""


class _Context:
    """A call's context, for calls without a server."""

    def abort(self, code: Any, details: str) -> None:
        """End the call."""
        if code.name in ("INTERNAL", "UNKNOWN"):
            raise AssertionError(f"{code.name}: {details}")
        raise _Aborted

    def peer(self) -> str:
        """Return who calls: the owner of the socket."""
        return "unix:"

    def auth_context(self) -> dict[str, Any]:
        """Return no certificate."""
        return {}

    def send_initial_metadata(self, _: Any) -> None:
        """Send nothing."""

    def is_active(self) -> bool:
        """Return that the caller has gone: streams end."""
        return False


class _AsyncContext(_Context):
    async def abort(self, code: Any, details: str) -> None:  # type: ignore[override]
        super().abort(code, details)


def p4runtime(rng: random.Random, count: int, found: Found) -> None:
    """Write and read."""
    from softswitch.p4runtime.status import Refused

    harness = _of_tests("softswitch.harness")
    mutants = _of_tests("softswitch.p4runtime.test_server_fuzz")

    def state() -> list[bytes]:
        return [*mutants.state(bench), *mutants.counted(bench)]

    bench, stack = harness.Bench(), contextlib.ExitStack()
    for number in range(count):
        if number % 2000 == 0:
            stack.close()
            bench = harness.Bench()
            if os.geteuid() == 0:
                datapath = stack.enter_context(contextlib.closing(harness.kernel_datapath("fuzz")))
                bench = harness.Bench(datapath=datapath)
        asked = mutated(rng, harness.update(rng.choice(mutants.KINDS), mutants.message(rng)))
        with found.trying(lambda asked=asked: str(asked), Refused):  # type: ignore[misc]
            if rng.random() < 0.1:
                list(
                    bench.entities.read(
                        mutated(rng, harness.update(harness.INSERT, mutants.message(rng))).entity
                    )
                )
                continue
            before = state() if number % 50 == 0 else None
            refused = bench.entities.write([asked])[0]
            if refused is not None:
                found.refused += 1
                assert refused.code.name != "INTERNAL", refused
                assert before is None or state() == before, "what was refused has changed something"
    stack.close()


def agent(rng: random.Random, count: int, found: Found) -> None:
    """Call every method of the agent's service, as root and as others."""
    from hostbpf.agent.service import HostService
    from hostbpf.clock import SlotClock
    from hostbpf.rates import sockets
    from hostbpf.rpc import agent_pb2 as pb
    from hostbpf.rpc.calls import message_of
    from wire.flow import Flow
    from wire.progress import Publisher

    in_memory = _of_tests("hostbpf.agent.in_memory")
    flow = message_of(Flow("10.0.0.1", 1, "10.0.0.2", 2))
    requests = {
        "SetSchedule": pb.SetScheduleRequest(flow=flow, rates_mbps=[1.0, 2.0]),
        "ClearSchedule": pb.ClearScheduleRequest(flow=flow),
        "SetJob": pb.SetJobRequest(job=3, params=pb.Params(slope=1, intercept=1)),
        "RemoveJob": pb.RemoveJobRequest(job=3),
        "ListJobs": pb.ListJobsRequest(),
        "SetPace": pb.SetPaceRequest(job="a", pace=pb.Pace(anchor_ns=1, period_ns=10_000_000, bound_ns=3)),
        "SetRates": pb.SetRatesRequest(lease_ms=100, rates=[pb.FlowRate(flow=flow, mbps=5)]),
        "ClearPace": pb.ClearPaceRequest(job="a"),
        "ListStarts": pb.ListStartsRequest(),
        "WatchFeedback": pb.WatchFeedbackRequest(),
    }
    find, sockets.find = sockets.find, lambda *_: None
    try:
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
            progress = Path(directory) / "progress"
            carriers = mock.Mock(announce=mock.Mock(return_value=1))
            served = in_memory.agent_of(in_memory.schedules(), carriers, SlotClock.shared(10.0), progress)
            service = HostService(served, lambda _: rng.choice((0, 0, 1001)))
            stack.enter_context(Publisher("a", directory=progress))  # which follows the paces
            for _ in range(count):
                method, request = rng.choice(list(requests.items()))
                asked = mutated(rng, request)
                with found.trying(lambda m=method, a=asked: f"{m} {a}", _Aborted):  # type: ignore[misc]
                    answer = getattr(service, method)(asked, _Context())
                    if not hasattr(answer, "DESCRIPTOR"):
                        list(answer)
            served.paces.close()
    finally:
        sockets.find = find


def emulated(rng: random.Random, count: int, found: Found) -> None:
    """Ask and tell an emulated switch."""
    import numpy as np

    from hostbpf.emulated.server import EmulatedSwitch, _Service
    from hostbpf.rpc import emulated_switch_pb2 as pb
    from hostbpf.rpc.calls import message_of
    from wire.flow import Flow

    switch = EmulatedSwitch("s", {1: 1000, 2: 1000}, lambda: 100)
    service = _Service(switch, knows=False)
    nobody = Flow("10.9.9.9", 1, "10.9.9.9", 2)

    def loads() -> Any:
        return np.array([load for _, load in switch.load([(nobody, 1), (nobody, 2)], 100)])

    hops = [
        pb.Hop(flow=message_of(Flow("10.0.0.1", port, "10.0.0.2", 2)), port=1 + port % 2)
        for port in range(1, 5)
    ]
    plans = [pb.Schedule(hop=hop, slot=100, rates=[10] * 4) for hop in hops]
    requests = {
        "FetchFeedback": pb.FetchFeedbackRequest(hops=hops, slot=100),
        "UpdateSchedule": pb.UpdateScheduleRequest(schedules=plans),
        "ForgetFlow": pb.ForgetFlowRequest(flows=[hop.flow for hop in hops]),
    }
    for number in range(count):
        if number % 10_000 == 0:
            switch = EmulatedSwitch("s", {1: 1000, 2: 1000}, lambda: 100)
            service = _Service(switch, knows=False)
        method, request = rng.choice(list(requests.items()))
        asked = mutated(rng, request)
        with found.trying(lambda m=method, a=asked: f"{m} {a}"):  # type: ignore[misc]
            before = loads()
            try:
                getattr(service, method)(asked, _Context())
            except _Aborted:
                found.refused += 1
                assert np.array_equal(loads(), before), "what was refused has changed a load"
            assert np.isfinite(loads()).all()
            assert (loads() >= 0).all()


def controller(rng: random.Random, count: int, found: Found) -> None:
    """Ask a controller whose switches are fake for all but to shut down."""
    asyncio.run(_controller(rng, count, found))


async def _controller(rng: random.Random, count: int, found: Found) -> None:
    from controlplane import ledger
    from controlplane.controller import OWNERS
    from controlplane.roles import NEEDS

    served_by = _of_tests("controlplane.test_roles")

    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        mock.patch.object(ledger, "KEPT", 20),  # it lists them all
    ):
        async with served_by.api_of(Path(directory), OWNERS) as (served, _):
            assert served.admission is not None
            methods = [name for name in NEEDS if name != "Shutdown"]
            weights = [SELDOM.get(name, 1.0) for name in methods]
            for _ in range(count):
                [method] = rng.choices(methods, weights)
                asked = mutated(rng, served_by.REQUESTS[method])
                with found.trying(lambda m=method, a=asked: f"{m} {a}", _Aborted):  # type: ignore[misc]
                    answer = getattr(served, method)(asked, _AsyncContext())
                    if hasattr(answer, "__anext__"):
                        await _first(answer)
                    else:
                        await answer
                present = [each.entry.name for each in served.admission.jobs()]
                if len(present) > 3:
                    await served.admission.end(rng.choice(present))


async def _first(answers: AsyncIterator[Any]) -> None:
    with contextlib.suppress(StopAsyncIteration, TimeoutError):  # there may be nothing to tell
        async with asyncio.timeout(0.05):
            await anext(answers)
    await answers.aclose()  # type: ignore[attr-defined]


# -- programs and packets


def _programs() -> list[str]:
    return list(_of_tests("p4.differential").NAMES)


def p4json(rng: random.Random, count: int, found: Found) -> None:
    """Generate C from mutated programs."""
    from softswitch.compiler.build import generate
    from softswitch.compiler.ir import load_program

    program = _of_tests("p4.kinds").program

    texts = {name: program(name).json.read_text(encoding="utf-8") for name in _programs()}
    for _ in range(count):
        name = rng.choice(list(texts))
        data = _mutated_program(rng, texts[name])
        with found.trying(lambda n=name, d=data: f"{n}: {len(d)} bytes", EntrainError):  # type: ignore[misc]
            generate(load_program(data), cpus=2)


def _mutated_program(rng: random.Random, text: str) -> bytes:
    if rng.random() < 0.1:
        return mutated_bytes(rng, text.encode())
    root = json.loads(text)
    mutated_json(rng, root)
    try:
        return json.dumps(root).encode()
    except ValueError:  # a document inside itself
        return b"[" * 100_000


def programs(rng: random.Random, count: int, found: Found) -> None:
    """Run mutated programs on both targets, where both take them."""
    from softswitch.compiler.build import generate
    from softswitch.compiler.ir import load_program

    program = _of_tests("p4.kinds").program
    drawn = _of_tests("p4.random_packets")

    names = [name for name in _programs() if name not in ("fabric", "metadata")]
    with tempfile.TemporaryDirectory() as scratch:
        while found.tried < count:
            original = program(rng.choice(names))
            data = _mutated_program(rng, original.json.read_text(encoding="utf-8"))
            try:
                generate(load_program(data), cpus=2)
            except EntrainError:
                continue
            shutil.copy(original.p4info, Path(scratch) / original.p4info.name)
            changed = dataclasses.replace(original, build=Path(scratch))
            changed.json.write_bytes(data)
            with found.trying(lambda p=original: p.name):  # type: ignore[misc]
                try:
                    pair = _of_tests("p4.differential").Pair(changed).__enter__()
                except Exception as error:  # one of them takes no such program
                    found.refused += 1
                    if "verifier" in str(error):
                        raise
                    continue
                try:
                    sent = drawn.packets(original.name, drawn.GENERATORS[original.name], rng, 50)
                    differing = pair.run(sent)
                    assert differing is None, f"{sent[differing or 0]} in {data.decode()}"
                except (grpc.RpcError, queue.Empty):
                    pair.targets[0].send_batch(sent[:1])  # ours answers: it was BMv2 that ended
                    found.refused += 1
                finally:
                    pair.__exit__()


def packets(rng: random.Random, count: int, found: Found) -> None:
    """Send mutated packets to both targets."""
    compare = _of_tests("p4.differential").compare

    before = _kernel_log()
    names = _programs()
    for name in names:
        share = max(count // len(names), 1)
        with found.trying(lambda n=name: n):  # type: ignore[misc]
            difference = compare(name, share, rng.randrange(1 << 30))
            assert difference is None, str(difference)
        found.tried += share - 1
    for line in _kernel_log()[len(before) :]:
        if any(word in line for word in ("BUG", "WARNING", "Oops", "Call Trace", "segfault")):
            found.accident(f"the kernel says: {line}")


def _kernel_log() -> list[str]:
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout.splitlines()


# -- files


def files(rng: random.Random, count: int, found: Found) -> None:
    """Read mutated files back."""
    from finsy.proto import p4r

    from controlplane.ledger import Ledger
    from controlplane.roles import load_access
    from controlplane.store import Store
    from controlplane.topology import load_topology
    from entrain.experiment import load_experiment
    from entrain.jobs import read_job
    from entrain.live_cluster import load_setup
    from hostbpf.emulated.client import load_paths
    from hostbpf.emulated.server import load_switch
    from hostbpf.scheduling.monitor import Monitor
    from machine.journal import BrokenRecord, parse
    from schedulers.placement.cluster import Cluster, Request
    from schedulers.placement.queue import Job
    from wire.flow import Flow
    from wire.progress import SUFFIX, Publisher
    from workloads.jobs import load_job

    small = Cluster(leaves=1, spines=1, servers_per_leaf=1, gpus_per_server=1)

    def network(path: Path) -> None:
        topology = load_topology(path)
        load_setup(path, topology)
        load_access(path, topology)

    def progress(path: Path) -> None:
        monitor.read()

    def state(path: Path) -> None:
        Store(path).load()

    def ledger(path: Path) -> None:
        opened = Ledger(path, small)
        try:
            opened.present()
            opened.past()
        finally:
            opened.close()

    def record(path: Path) -> None:
        parse(path.read_bytes().decode(errors="replace"))

    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        publisher = stack.enter_context(Publisher("job", directory=directory / "progress"))
        publisher.flow(Flow("10.0.0.1", 1, "10.0.0.2", 2), 1)
        monitor = stack.enter_context(Monitor(directory / "progress"))
        originals = [*_originals(), ("progress", SUFFIX, publisher.path.read_bytes())]
        entity = p4r.Entity(table_entry=p4r.TableEntry(table_id=1))
        Store(directory / "new.state").save({"leaf1": {b"k": entity}}, {"routing": "ecmp"})
        kept = Ledger(directory / "new.ledger", small)
        kept.add(Job(Request("a", 1, "ring"), 0.0, 5.0, None))
        kept.close()
        originals += [
            (name, ".sqlite", (directory / f"new.{name}").read_bytes()) for name in ("state", "ledger")
        ] * 3
        readers: dict[str, Callable[[Path], object]] = {
            "topology": network,
            "experiment": load_experiment,
            "job": read_job,
            "switch": load_switch,
            "paths": load_paths,
            "workload": load_job,
            "record": record,
            "state": state,
            "ledger": ledger,
            "progress": progress,
        }
        for _ in range(count):
            kind, suffix, data = rng.choice(originals)
            own = directory / kind
            own.mkdir(exist_ok=True)
            # a live process publishes: the same file, which stays locked
            path = publisher.path if kind == "progress" else own / f"file{suffix}"
            path.write_bytes(mutated_bytes(rng, data))
            told = partial(_text, kind, path)
            with found.trying(told, EntrainError, BrokenRecord):
                readers[kind](path)


def _text(kind: str, path: Path) -> str:
    return f"{kind} {path.read_bytes()!r}"[:2000]


def _originals() -> list[tuple[str, str, bytes]]:
    """Return files of every kind: kind, suffix, content."""
    experiments = Path(__file__).parents[1] / "experiments"
    found = []
    for path in sorted(experiments.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        kind = "experiment" if "[experiment]" in text else "topology" if "[topology]" in text else ""
        kind = "job" if text.startswith("[job]") or ("\n[job]" in text and not kind) else kind
        if kind:
            found.append((kind, ".toml", path.read_bytes()))
    found += [
        (
            "topology",
            ".toml",
            b'[topology]\nkind = "dumbbell"\nhosts_per_side = 2\n[controller]\nreaders = "*"\n',
        ),
        ("switch", ".toml", b'name = "s"\nlisten = "127.0.0.1:1"\n[[port]]\nnumber = 1\nrate_mbps = 10\n'),
        (
            "paths",
            ".toml",
            b'[[path]]\ndestination = "10.2.0.0/16"\nhops = [{switch = "10.0.0.5:1", port = 5}]\n',
        ),
        (
            "workload",
            ".json",
            b'{"name": "a", "hosts": ["10.0.0.1", "10.0.0.2"], "collective": "ring", "bytes": 9}',
        ),
        (
            "record",
            ".jsonl",
            b'{"version": 2, "owner": {"kind": "process", "name": "1", "netns": "", '
            b'"detail": "5"}, "name": "a"}\n'
            b'{"own": {"kind": "netns", "name": "x", "netns": "", "detail": ""}, "namespace": 0, '
            b'"pid_namespace": 0}\n',
        ),
    ]
    return found


TARGETS: dict[str, Fuzz] = {
    "p4runtime": p4runtime,
    "controller": controller,
    "agent": agent,
    "emulated": emulated,
    "p4json": p4json,
    "programs": programs,
    "packets": packets,
    "files": files,
}


def fuzz(targets: Sequence[str], count: int | None, seed: int) -> dict[str, Found]:
    """Try `count` inputs of each kind (None: COUNTS)."""
    every = {}
    for name in targets:
        every[name] = Found()
        began = time.monotonic()
        TARGETS[name](random.Random(f"{seed} {name}"), count or COUNTS[name], every[name])
        every[name].seconds = time.monotonic() - began
    return every


def main(argv: Sequence[str]) -> None:
    """Run the campaign and print what was counted. The exit status is 1 after an accident."""
    parser = argparse.ArgumentParser(prog="python -m robustness fuzz", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", type=int, help="inputs of each kind (see COUNTS)")
    parser.add_argument(
        "--targets", nargs="*", choices=TARGETS, help="which (all; without root, all that can)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    possible = [name for name in TARGETS if name not in WITH_ROOT or os.geteuid() == 0]
    found = fuzz(options.targets or possible, options.count, options.seed)
    if options.json:
        keys = ("tried", "refused", "accidents", "seconds", "what")
        shown: Any = {name: {key: getattr(each, key) for key in keys} for name, each in found.items()}
        most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        about = {
            "seed": options.seed,
            "memory_mib_max": most_mib,
            "origin": dataclasses.asdict(origin.here()),
        }
        print(json.dumps({**about, **shown}))
    else:
        counted = Counter({name: each.accidents for name, each in found.items()})
        for name, each in found.items():
            print(
                f"{name:10} {each.tried:>9} tried {each.refused:>9} refused {counted[name]:>6} accidents "
                f"{each.seconds:>7.1f} s"
            )
            print("\n".join(each.what), end="\n" if each.what else "", file=sys.stderr)
    if any(each.accidents for each in found.values()):
        raise EntrainError("some input was met by an accident")
