"""Errors of the loader, with the relevant part of the verifier's log."""

from __future__ import annotations

import errno
import os
import platform
import re

from machine.errors import EntrainError

_CONTEXT_LINES, _CONTEXT_WIDTH = 20, 160  # the verifier writes all registers into one line

# Remedies, by a regular expression for the message of the verifier or libbpf.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"invalid access to packet",
        "compare the pointer plus the accessed size with data_end first, and again after every helper that "
        "may move the packet (adjust_room, change_tail, store_bytes, pull_data)",
    ),
    (
        r"invalid mem access '\w+_or_null_?'",
        "check the result of the map lookup or helper for NULL before using it",
    ),
    (
        r"invalid mem access '(scalar|inv)'",
        "the verifier lost track of this pointer: load it again, and keep it out of arithmetic",
    ),
    (
        r"unbounded (memory access|min value)|min value is negative|outside of the allowed memory range",
        "bound the offset before the access (mask it or compare it), on the same register the access uses",
    ),
    (
        r"BPF program is too large|program too large|complexity limit",
        "the verifier follows more than a million instructions: bound or share loops (bpf_loop), split the "
        "program with tail calls, or move branches out of loops",
    ),
    (
        r"(combined )?stack (size|frame|of)|stack limit|Looks like the BPF stack limit",
        "move large variables from the stack to a per-CPU array map",
    ),
    (r"infinite loop detected|back-edge", "give the loop a bound that the verifier can see, or use bpf_loop"),
    (
        r"[Uu]nreleased reference|reference has not been acquired",
        "release what the helper acquired on every path",
    ),
    (
        r"function calls are not allowed while holding a lock|bpf_spin_unlock is missing",
        "only plain loads and stores may stand between bpf_spin_lock and bpf_spin_unlock",
    ),
    (
        r"unknown func unknown#195896080|invalid func unknown#195896080",
        "a field or type that this program needs does not exist in the running kernel: guard it with "
        "bpf_core_field_exists",
    ),
    (
        r"(unknown func|program of this type cannot use helper|cannot use helper)",
        "this program type, or this kernel, does not have the helper: check the kernel's version",
    ),
    (
        r"calling kernel function \S+ is not allowed",
        "this program type may not call that kernel function on this kernel",
    ),
    (r"invalid bpf_context access", "this program type may not read or write that field of its context"),
    (
        r"failed to find valid kernel BTF|Error loading vmlinux BTF|kernel BTF is missing",
        "the kernel has no BTF: run one built with CONFIG_DEBUG_INFO_BTF=y",
    ),
    (
        r"extern \(func ksym\) '?\w+'?: not found|failed to resolve kernel function",
        "the running kernel does not export this function to BPF programs",
    ),
    (
        r"kern_type->size|struct_ops init_kern",
        "the struct_ops definition does not fit the running kernel's: compare the members of both",
    ),
)

_ERRNO_REMEDIES: dict[int, str] = {
    errno.EPERM: "run as root, or with the capabilities that docs/security.md lists; in a container, run it "
    "privileged; lockdown also refuses programs (/sys/kernel/security/lockdown)",
    errno.ENOSYS: "the kernel lacks the bpf system call",
    errno.E2BIG: "the map is full or the program is too large",
}


class EbpfError(EntrainError):
    """Compiling, opening, loading or attaching a BPF object, or an operation on a map, failed.

    `errno` is the kernel's error number, or 0. `log` is libbpf's whole log, including the verifier's.
    """

    def __init__(self, message: str, *, errno: int = 0, log: str = "") -> None:
        super().__init__(message)
        self.errno = errno
        self.log = log


class CompilerError(EbpfError):
    """The compiler rejected a program. The message has the compiler's output."""


def describe(action: str, error: int, log: str = "") -> EbpfError:
    """Return the error for a failed `action` with positive error number `error` and libbpf's `log`."""
    parts = [f"{action}: {os.strerror(error)}" if error else action]
    if verifier_excerpt(log):
        parts.append(refusal(error, log))
    else:
        parts += [line for line in log.splitlines() if line.strip()][-5:]
        hint = remedy(log, error)
        if hint:
            parts.append(f"remedy: {hint}")
    return EbpfError("\n".join(parts), errno=error, log=log)


def refusal(error: int, log: str) -> str:
    """Return what the kernel said, its version, and for a refused program where to report it.

    Empty when neither says anything. It quotes the program's source, and nothing else of this machine.
    """
    excerpt = verifier_excerpt(log)
    if not excerpt and not error:
        return ""
    parts = [excerpt or os.strerror(error)]
    hint = remedy(log, error)
    if hint:
        parts.append(f"remedy: {hint}")
    parts.append(f"kernel: Linux {platform.release()} ({platform.machine()})")
    if excerpt:
        parts.append("report: to the maintainers (CONTRIBUTING.md), with this message and the program")
    return "\n".join(parts)


def remedy(log: str, error: int = 0) -> str | None:
    """Return the remedy for a failure, or None if its cause is unknown."""
    for pattern, text in _REMEDIES:
        if re.search(pattern, log):
            return text
    return _ERRNO_REMEDIES.get(error)


def verifier_excerpt(log: str) -> str:
    """Return the verifier's complaint, the source line it is about, and the last instructions before it.

    Empty when `log` holds no verifier log.
    """
    begin = re.search(r"prog '([^']*)': -- BEGIN PROG LOAD LOG --\n", log)
    if begin is None:
        return ""
    body = log[begin.end() :].partition("-- END PROG LOAD LOG --")[0]
    lines = [line for line in body.splitlines() if line and not line.startswith(("processed ", "libbpf:"))]
    if not lines:
        return f"program '{begin[1]}' was rejected without a log"
    lines = [line if len(line) <= _CONTEXT_WIDTH else f"{line[:_CONTEXT_WIDTH]}..." for line in lines]
    source = next((line[1:].strip() for line in reversed(lines) if line.startswith(";")), "")
    text = [f"program '{begin[1]}' was rejected by the verifier: {lines[-1].strip()}"]
    if source:
        text.append(f"at: {source}")
    text += [f"  {line}" for line in lines[-_CONTEXT_LINES:]]
    return "\n".join(text)
