"""Mutated input for all that reads from outside: an answer or a refusal comes of it, and never an accident.

- `p4runtime`: updates and reads, to a softswitch whose program is in the kernel (needs root);
- `controller`: requests to the controller of a cluster that `entrain up` has brought up (needs root);
- `agent`: requests to an agent (needs root);
- `emulated`: requests to an emulated switch;
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
import contextlib
import dataclasses
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
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from machine import origin
from machine.errors import EntrainError
from robustness import fuzz_servers
from robustness.found import Found, of_tests
from robustness.mutations import mutated_bytes, mutated_json

COUNTS = {
    "p4runtime": 100_000,
    "controller": 10_000,
    "agent": 100_000,
    "emulated": 100_000,
    "p4json": 20_000,
    "programs": 200,
    "packets": 1_000_000,
    "files": 100_000,
}
"""Inputs of each kind, if --count does not say otherwise."""
WITH_ROOT = ("p4runtime", "controller", "agent", "programs", "packets")


Fuzz = Callable[[random.Random, int, Found], None]


# -- programs and packets


def _programs() -> list[str]:
    return list(of_tests("p4.differential").NAMES)


def p4json(rng: random.Random, count: int, found: Found) -> None:
    """Generate C from mutated programs."""
    from softswitch.compiler.build import generate
    from softswitch.compiler.ir import load_program

    program = of_tests("p4.kinds").program

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

    program = of_tests("p4.kinds").program
    drawn = of_tests("p4.random_packets")

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
                    pair = of_tests("p4.differential").Pair(changed).__enter__()
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
    compare = of_tests("p4.differential").compare

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
    "p4runtime": fuzz_servers.p4runtime,
    "controller": fuzz_servers.controller,
    "agent": fuzz_servers.agent,
    "emulated": fuzz_servers.emulated,
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
