"""Check entrain's prerequisites. Each check tries the feature instead of comparing versions.

Kernel features are tried in an unnamed network namespace (`unshare --net`). It ends with the process, so
nothing is left behind.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from machine.errors import EntrainError
from machine.packages import DISTRIBUTION, INSTALLED

State = Literal["found", "missing", "not tried"]
_KERNEL = "a kernel with {}"
_VETH = "ip link add name probe0 type veth peer name probe1"
_BTF = Path("/sys/kernel/btf/vmlinux")


@dataclass(frozen=True)
class Need:
    """One prerequisite of entrain."""

    name: str
    purpose: str
    """What entrain uses it for."""
    required: bool
    """Whether entrain cannot work without it."""
    remedy: str
    """How to get it."""
    check: Callable[[], str | None]
    """Returns a description of what was found, or None if it is missing."""
    needs_root: bool = False
    """Whether only root can check it."""


@dataclass(frozen=True)
class Finding:
    """The result of checking one prerequisite. `remedy` is empty if it was found."""

    name: str
    state: State
    detail: str
    purpose: str
    required: bool
    remedy: str


def examine() -> Iterator[Finding]:
    """Check every prerequisite, in order."""
    root = os.geteuid() == 0
    for need in needs():
        detail = need.check() if root or not need.needs_root else None
        state: State = "found"
        if detail is None:
            state = "missing" if root or not need.needs_root else "not tried"
        remedy = "" if state == "found" else "run as root" if state == "not tried" else need.remedy
        yield Finding(need.name, state, detail or "", need.purpose, need.required, remedy)


def needs() -> list[Need]:
    """Return all prerequisites: root, then the kernel, tools and Python packages."""
    return [
        Need("root", "namespaces, interfaces, BPF", True, "run as root", _root),
        *_kernel(),
        *_tools(),
        *_packages(),
    ]


# -- the kernel


def _kernel() -> list[Need]:
    result = [
        Need(
            "network namespaces",
            "hosts and switches of a network",
            True,
            _KERNEL.format("CONFIG_NET_NS; in a container, run it privileged"),
            _tried("true"),
            True,
        ),
        Need("veth", "links", True, _KERNEL.format("CONFIG_VETH"), _tried(_VETH), True),
        Need(
            "BTF",
            "loading eBPF programs on any kernel version",
            True,
            _KERNEL.format("CONFIG_DEBUG_INFO_BTF"),
            lambda: str(_BTF) if _BTF.exists() else None,
        ),
        Need("BPF JIT", "speed of softswitch", True, "echo 1 > /proc/sys/net/core/bpf_jit_enable", _jit),
        Need(
            "BPF programs",
            "softswitch, carriers, measurement",
            True,
            "root with CAP_BPF and CAP_NET_ADMIN; clang and libbpf (below)",
            _bpf,
            True,
        ),
    ]
    for kind, parameters, purpose, required in (
        ("clsact", "", "softswitch's hooks", True),
        ("htb", "", "shaped links", True),
        ("tbf", "rate 1mbit burst 2k latency 10ms", "shaped links with shaping = tbf", False),
        ("fq", "", "slot rates of any flow by departure times; without it, by queueing", False),
        ("netem", "delay 1ms", "links with loss; without it, they are refused, and relays delay", False),
    ):
        parent = "clsact" if kind == "clsact" else f"root {kind} {parameters}"
        trial = _tried(f"{_VETH} && tc qdisc add dev probe0 {parent}")
        config = (
            "CONFIG_NET_CLS_ACT and CONFIG_NET_SCH_INGRESS"
            if kind == "clsact"
            else f"CONFIG_NET_SCH_{kind.upper()}"
        )
        result.append(Need(f"qdisc {kind}", purpose, required, _KERNEL.format(config), trial, True))
    htb, filtered = "root handle 1: htb", "protocol all u32 match u32 0 0 flowid 1:1"
    result.append(
        Need(
            "classifier u32",
            "shaped links that send carriers ahead of data",
            True,
            _KERNEL.format("CONFIG_NET_CLS_U32"),
            _tried(
                f"{_VETH} && tc qdisc add dev probe0 {htb} && tc filter add dev probe0 parent 1: {filtered}"
            ),
            True,
        )
    )
    result.append(
        Need(
            "struct_ops for TCP",
            "MLTCP; slot rates of flows that pace themselves",
            False,
            _KERNEL.format("CONFIG_BPF_JIT and TCP struct_ops, 5.6 or later"),
            _struct_ops,
        )
    )
    result.append(
        Need(
            "slot rates of other flows",
            "schedules for UDP and for TCP with any congestion control",
            False,
            "a kernel with CONFIG_NET_SCH_FQ, or with CONFIG_NET_SCH_HTB and CONFIG_NET_SCH_TBF",
            _enforcer,
            True,
        )
    )
    return result


def _root() -> str | None:
    return "yes" if os.geteuid() == 0 else None


def _tried(script: str) -> Callable[[], str | None]:
    """Return a check that runs `script` in a new network namespace."""

    def check() -> str | None:
        done = _run(["unshare", "--net", "sh", "-c", script])
        return "works" if done is not None and done.returncode == 0 else None

    return check


def _jit() -> str | None:
    try:
        enabled = Path("/proc/sys/net/core/bpf_jit_enable").read_text().strip()
    except OSError:
        return None
    return "on" if enabled != "0" else None


def _struct_ops() -> str | None:
    """Look in the kernel's BTF for the struct_ops type: it is there only if the kernel supports it."""
    try:
        return "works" if b"bpf_struct_ops_tcp_congestion_ops" in _BTF.read_bytes() else None
    except OSError:
        return None


def _enforcer() -> str | None:
    """Return the enforcer that the agent would choose on this machine, and why."""
    from hostbpf.rates.enforcers import choose

    choice = choose()
    return None if choice.other is None else f"{choice}: {choice.reason}"


def _bpf() -> str | None:
    """Load one of the agent's programs into the kernel."""
    from ebpf import Object, compile_cached
    from hostbpf.rates.meter import SOURCE

    try:
        with Object.open(compile_cached(SOURCE)) as program:
            program.load()
    except (EntrainError, OSError):
        return None
    return "works"


# -- programs and libraries


def _tools() -> list[Need]:
    result = [
        Need(
            "libbpf.so.1",
            "loading eBPF programs",
            True,
            "apt-get install libbpf1",
            _library("libbpf.so.1"),
        ),
        Need(
            "Mininet's Python module",
            "emulated networks",
            not INSTALLED,
            "apt-get install mininet; `make setup` (a .venv of /usr/bin/python3 with its site packages)",
            _mininet,
        ),
    ]
    for program, package, purpose, required in (
        ("clang", "clang", "running P4 programs on softswitch; eBPF programs of a checkout", not INSTALLED),
        ("ip", "iproute2", "interfaces", True),
        ("tc", "iproute2", "shaped links", True),
        ("mnexec", "mininet", "processes on emulated hosts", not INSTALLED),
        ("setpriv", "util-linux", "ending switches with their run", True),
        ("ethtool", "ethtool", "disabling host offloads on BMv2", not INSTALLED),
        ("mn", "mininet", "inspecting a network by hand", False),
        ("bpftool", "bpftool", "inspecting eBPF programs; generating vmlinux.h", False),
        ("iperf3", "iperf3", "benchmarks", False),
    ):
        result.append(Need(program, purpose, required, f"apt-get install {package}", _program(program)))
    result += [
        Need(
            "p4c-bm2-ss",
            "changing the P4 programs (the repository includes its output)",
            False,
            "build p4c from github.com/p4lang/p4c",
            _program("p4c-bm2-ss"),
        ),
        Need(
            "simple_switch_grpc",
            "target bmv2, the reference switch",
            False,
            "build BMv2 from github.com/p4lang/behavioral-model, with PI and logging off",
            _bmv2,
        ),
    ]
    return result


def _program(name: str) -> Callable[[], str | None]:
    return lambda: shutil.which(name)


def _bmv2() -> str | None:
    path = shutil.which("simple_switch_grpc")
    if path is None:
        return None
    shown = _run([path, "--help"])  # `mininet_topos` would do, but it needs Mininet
    thrift = shown is not None and b"--thrift-port" in shown.stdout + shown.stderr
    return f"{path}, {'with Thrift: each switch gets its own Thrift port' if thrift else 'without Thrift'}"


def _library(name: str) -> Callable[[], str | None]:
    def check() -> str | None:
        try:
            ctypes.CDLL(name)
        except OSError:
            return None
        return name

    return check


def _mininet() -> str | None:
    if util.find_spec("mininet") is None:
        return None
    from mininet.net import VERSION

    return f"Mininet {VERSION}"


# -- Python packages


def _packages() -> list[Need]:
    remedy = "make setup (pip install -e .)"
    try:
        listed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        listed = [DISTRIBUTION]
    requirements = [text for text in listed if "extra ==" not in text]
    return [
        Need(
            f"Python package {text.partition(';')[0].strip()}", "entrain itself", True, remedy, _package(text)
        )
        for text in sorted(requirements)
    ]


def _package(requirement: str) -> Callable[[], str | None]:
    name = re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]

    def check() -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return check


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
