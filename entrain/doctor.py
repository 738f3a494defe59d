"""Check entrain's prerequisites. Each check tries what it is about instead of comparing versions.

The kernel is tried in an unnamed network namespace (`unshare --net`). It ends with the process, so nothing is
left behind. `entrain.features` tries what entrain does with all of it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from entrain import features
from machine.errors import EntrainError, MissingTool
from machine.packages import DISTRIBUTION, INSTALLED
from machine.patience import patience
from machine.processors import share_memory

State = Literal["found", "missing", "not tried"]
_VETH = "ip link add name probe0 type veth peer name probe1"
_BTF = Path("/sys/kernel/btf/vmlinux")
_JIT = Path("/proc/sys/net/core/bpf_jit_enable")


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
        Need(
            "shared memory",
            "simulations on several processors",
            False,
            "a writable /dev/shm: mount -t tmpfs tmpfs /dev/shm",
            lambda: "works" if share_memory() else None,
        ),
        *_tools(),
        *_packages(),
    ]


def check_network(wanted: Collection[str], shaping: str) -> None:
    """Raise MissingTool, in the words of `entrain doctor`, if a network cannot be brought up here.

    `wanted` are the features that it needs (`entrain.features`), and `shaping` is that of its links. Nothing
    is left behind. Without root nothing is tried: bringing the network up is refused then.
    """
    if os.geteuid() != 0:
        return
    names = {"network namespaces", "veth", *_SHAPING[shaping]}
    if wanted:
        names |= {"BTF", "BPF JIT"}
    for need in _kernel():
        if need.name in names and need.check() is None:
            where = f"{need.name} is missing on this machine (Linux {platform.release()})"
            lines = [f"{where}, for {need.purpose}", f"needs {need.remedy}", *features.obstacles()]
            raise MissingTool("\n".join(lines))
    features.check(wanted)


# -- the kernel

_SHAPING = {"htb": ("qdisc htb", "classifier u32", "qdisc bfifo"), "tbf": ("qdisc tbf",), "none": ()}
"""By the shaping of a network's links: what it needs of the kernel."""


def _kernel() -> list[Need]:
    added = f"{_VETH} && tc qdisc add dev probe0 root"
    u32 = "tc filter add dev probe0 parent 1: protocol all u32 match u32 0 0 flowid 1:1"
    return [
        Need(
            "network namespaces",
            "hosts and switches of a network",
            True,
            "a kernel with CONFIG_NET_NS; in a container, run it privileged",
            _tried("true"),
            True,
        ),
        Need("veth", "links", True, "a kernel with CONFIG_VETH", _tried(_VETH), True),
        Need(
            "BTF",
            "loading eBPF programs on any kernel version",
            True,
            "a kernel with CONFIG_DEBUG_INFO_BTF",
            lambda: str(_BTF) if _BTF.exists() else None,
        ),
        Need(
            "BPF JIT",
            "speed of softswitch; congestion controls",
            True,
            "a kernel with CONFIG_BPF_JIT, and `echo 1 > /proc/sys/net/core/bpf_jit_enable`",
            _jit,
        ),
        Need(
            "qdisc htb",
            "shaped links",
            True,
            'a kernel with CONFIG_NET_SCH_HTB, or shaping = "tbf" in an experiment',
            _tried(f"{added} htb"),
            True,
        ),
        Need(
            "classifier u32",
            "shaped links that send carriers ahead of data",
            True,
            'a kernel with CONFIG_NET_CLS_U32, or shaping = "tbf" in an experiment',
            _tried(f"{added} handle 1: htb && {u32}"),
            True,
        ),
        Need(
            "qdisc bfifo",
            "queues of shaped links, limited in bytes",
            True,
            "a kernel with CONFIG_NET_SCH_FIFO, which CONFIG_NET_SCHED selects",
            _tried(f"{added} bfifo limit 3028"),
            True,
        ),
        Need(
            "qdisc tbf",
            "shaped links with shaping = tbf; slot rates of flows that do not pace themselves",
            False,
            "a kernel with CONFIG_NET_SCH_TBF",
            _tried(f"{added} tbf rate 1mbit burst 2k latency 10ms"),
            True,
        ),
    ]


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
        return "on" if _JIT.read_text(encoding="utf-8").strip() != "0" else None
    except OSError:  # only the machine's own network namespace has the file, so containers do not
        return "on" if os.geteuid() == 0 and _is_compiled() else None


def _is_compiled() -> bool:
    """Return whether the kernel compiles a program that it loads."""
    from ebpf import Object, compile_cached, libbpf
    from hostbpf.rates.meter import SOURCE

    try:
        with Object.open(compile_cached(SOURCE)) as program:
            program.load()
            information = (ctypes.c_uint32 * 64)()  # struct bpf_prog_info, with jited_prog_len at byte 16
            size = ctypes.c_uint32(ctypes.sizeof(information))
            fd = program.programs["measure"].fd
            failed = libbpf.lib().bpf_obj_get_info_by_fd(fd, information, ctypes.byref(size))
            return not failed and bool(information[4])
    except (EntrainError, OSError):
        return False


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
            "docs/softswitch-programs.md says how to build it on Debian",
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
        return subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=patience(30), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
