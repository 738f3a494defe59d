"""`python -m softswitch`: run one switch, with simple_switch_grpc's arguments."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from machine.address import check_address
from machine.errors import BadInput, EntrainError
from machine.limits import check_limits, limits_named
from machine.text import escaped
from machine.tls import Identity, check_local

if TYPE_CHECKING:
    from softswitch.kernel.datapath import Datapath

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
# Options of simple_switch_grpc that have no effect here, and how many values each takes.
_IGNORED = {
    "--thrift-port": 1,
    "--nanolog": 1,
    "--notifications-addr": 1,
    "--max-port-count": 1,
    "--log-flush": 0,
}

log = logging.getLogger("softswitch")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see python -m softswitch --help")


class _Formatter(logging.Formatter):
    """Escapes control characters and indents continuation lines, so controllers cannot forge log entries."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), but="\n\t").replace("\n", "\n\t")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m softswitch",
        description="Run a P4 program (BMv2 JSON from p4c) in the kernel, and serve P4Runtime.",
        epilog="`--`, which simple_switch_grpc needs before its target's options, is ignored.",
    )
    parser.add_argument("program", nargs="?", metavar="PROGRAM.json", type=Path, help="program to start with")
    parser.add_argument(
        "--no-p4", action="store_true", help="start without a program, until a controller sets one"
    )
    parser.add_argument(
        "--device-id", type=int, default=0, metavar="N", help="P4Runtime device id (default 0)"
    )
    parser.add_argument(
        "-i", "--interface", action="append", default=[], metavar="PORT@IFACE", help="add a port"
    )
    parser.add_argument(
        "--port-rate",
        action="append",
        default=[],
        metavar="PORT@MBPS[:PACKETS]",
        help="rate at which the port's virtual queue drains, and the queue's length",
    )
    parser.add_argument(
        "--express-ethertype",
        type=lambda text: int(text, 0),
        metavar="N",
        help="frames of this EtherType bypass the virtual queues, for links that send them first",
    )
    parser.add_argument(
        "--grpc-server-addr",
        default="127.0.0.1:9559",
        metavar="HOST:PORT|unix:PATH",
        help="serve P4Runtime here (default 127.0.0.1:9559); beyond this machine only with certificates",
    )
    parser.add_argument(
        "--grpc-server-ssl", action="store_true", help="serve over TLS, with the next three files (PEM)"
    )
    parser.add_argument("--grpc-server-cacert", type=Path, metavar="FILE", help="authority of clients")
    parser.add_argument("--grpc-server-cert", type=Path, metavar="FILE", help="this switch's certificate")
    parser.add_argument("--grpc-server-key", type=Path, metavar="FILE", help="its key")
    parser.add_argument(
        "--grpc-server-with-client-auth",
        action="store_true",
        help="serve only clients with a certificate of that authority; TLS needs this",
    )
    parser.add_argument(
        "--client-name",
        action="append",
        default=[],
        metavar="NAME",
        help="of those, serve only clients whose certificate has this subject alternative name",
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="NAME",
        help="also accept controllers of this P4Runtime role; every role has full access",
    )
    parser.add_argument(
        "--max-request-mib", type=int, default=16, metavar="N", help="largest request (default 16 MiB)"
    )
    parser.add_argument(
        "--max-state-mib",
        type=int,
        default=256,
        metavar="N",
        help="memory limit for a program's tables, registers, counters and meters (default 256 MiB)",
    )
    parser.add_argument("--cpu-port", type=int, metavar="N", help="port for packet-in and packet-out")
    parser.add_argument("--drop-port", type=int, default=511, metavar="N")
    parser.add_argument("--name", default=None, help="the switch's name in the log (default s<device id>)")
    parser.add_argument("--log-file", type=Path, metavar="FILE")
    parser.add_argument("-L", "--log-level", choices=_LEVELS, default="info")
    parser.add_argument("--log-console", action="store_true", help="log to stderr")
    for option, values in _IGNORED.items():
        if values:
            parser.add_argument(option, help=argparse.SUPPRESS)
        else:
            parser.add_argument(option, action="store_true", default=None, help=argparse.SUPPRESS)
    return parser


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    options = _parser().parse_args([word for word in argv if word != "--"])
    if options.no_p4 and options.program is not None:
        raise BadInput(f"give either --no-p4 or {options.program}, not both")
    if options.program is None and not options.no_p4:
        raise BadInput("give PROGRAM.json, or --no-p4 to let a controller set the program")
    if options.device_id < 0:
        raise BadInput(f"--device-id {options.device_id}: it must not be negative")
    check_address(options.grpc_server_addr, "--grpc-server-addr")
    _check_tls(options)
    for name, limit in (("max_request_mib", 2047), ("max_state_mib", 1 << 20)):
        if not 0 < getattr(options, name) <= limit:
            option = "--" + name.replace("_", "-")
            raise BadInput(f"{option} {getattr(options, name)}: it must be in 1..{limit}")
    if options.express_ethertype is not None and not 0x600 <= options.express_ethertype < 1 << 16:
        raise BadInput(f"--express-ethertype {options.express_ethertype:#x}: it must be in 0x600..0xffff")
    if options.cpu_port is not None and not 0 < options.cpu_port <= 510:
        raise BadInput(f"--cpu-port {options.cpu_port}: it must be in 1..510")
    return options


def _check_tls(options: argparse.Namespace) -> None:
    files = (options.grpc_server_cacert, options.grpc_server_cert, options.grpc_server_key)
    if not options.grpc_server_ssl:
        if any(files) or options.grpc_server_with_client_auth or options.client_name:
            raise BadInput("--grpc-server-ssl is missing, without which certificates have no effect")
        remedy = "use certificates (`entrain certs`, --grpc-server-ssl), or an address on loopback"
        check_local(options.grpc_server_addr, "--grpc-server-addr", remedy)
    elif not all(files):
        raise BadInput(
            "--grpc-server-ssl needs --grpc-server-cacert, --grpc-server-cert and --grpc-server-key"
        )
    elif not options.grpc_server_with_client_auth:
        raise BadInput(
            "--grpc-server-ssl without --grpc-server-with-client-auth would serve everybody; add it"
        )


def _identity(options: argparse.Namespace) -> Identity | None:
    if not options.grpc_server_ssl:
        return None
    return Identity(options.grpc_server_cacert, options.grpc_server_cert, options.grpc_server_key)


def _log_to(options: argparse.Namespace, name: str) -> None:
    handlers: list[logging.Handler] = []
    if options.log_console:
        handlers.append(logging.StreamHandler())
    if options.log_file is not None:
        try:
            handlers.append(logging.FileHandler(options.log_file))
        except OSError as error:
            raise BadInput(f"--log-file {options.log_file}: {error.strerror}") from error
    for handler in handlers:
        handler.setFormatter(_Formatter(f"%(asctime)s {name} %(levelname)s %(message)s"))
    logging.basicConfig(level=_LEVELS[options.log_level], handlers=handlers or [logging.NullHandler()])


async def _serve(options: argparse.Namespace, name: str) -> None:
    """Set up the switch, announce it, and serve until a signal. Raises EntrainError if set-up fails."""
    # Imported late, so that wrong arguments are reported at once.
    from machine.record import Record, clean_stale
    from softswitch.kernel.ports import Ports, parse_port, parse_rate
    from softswitch.p4runtime import server
    from softswitch.p4runtime.packet_io import CpuPort
    from softswitch.p4runtime.switch import Switch

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)

    interfaces: dict[int, str] = {}
    for port, interface in map(parse_port, options.interface):
        if port in interfaces or port in (options.cpu_port, options.drop_port):
            raise BadInput(f"-i {port}@{interface}: port {port} is already taken")
        interfaces[port] = interface
    rates = dict(map(parse_rate, options.port_rate))
    program = _read(options.program) if options.program is not None else None

    def load(config: bytes) -> Datapath:
        from softswitch.compiler.ir import load_program
        from softswitch.kernel.datapath import Datapath

        return Datapath.load(
            load_program(config),
            name=name,
            drop_port=options.drop_port,
            express=options.express_ethertype,
            record=record,
            max_state=options.max_state_mib << 20,
        )

    clean_stale()
    async with contextlib.AsyncExitStack() as owned:
        record = owned.enter_context(Record(f"softswitch-{name}"))
        cpu = None
        if options.cpu_port is not None:
            cpu = owned.enter_context(contextlib.closing(CpuPort()))
            interfaces[options.cpu_port] = cpu.interface
        ports = owned.enter_context(contextlib.closing(Ports(interfaces, rates)))
        switch = owned.enter_context(contextlib.closing(Switch(ports, load)))
        ports.changed = switch.port_changed
        service = server.P4RuntimeService(options.device_id, switch, cpu, options.role, options.client_name)
        grpc_server, port = server.listen(
            service, options.grpc_server_addr, options.max_request_mib << 20, _identity(options)
        )
        owned.push_async_callback(grpc_server.stop, None)
        if program is not None:
            try:
                switch.start(program)
            except EntrainError as error:
                raise type(error)(f"{options.program}: {error}") from error
        loop.add_reader(ports.fileno(), ports.poll)
        owned.callback(loop.remove_reader, ports.fileno())
        if cpu is not None:
            loop.add_reader(cpu.fileno(), service.packets_in)
            owned.callback(loop.remove_reader, cpu.fileno())
        await grpc_server.start()
        address = options.grpc_server_addr
        if not address.startswith("unix:"):
            address = f"{address.rpartition(':')[0]}:{port}"
        log.info("ready at %s, device %d, ports %s", address, options.device_id, sorted(interfaces))
        print(f"ready grpc={address} device-id={options.device_id}", flush=True)
        await stop.wait()
        log.info("stopping; %d messages to slow controllers were dropped", service.dropped)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run a switch until SIGTERM, SIGINT or SIGHUP and return the exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise its C core writes to stderr, too
    try:
        options = _arguments(sys.argv[1:] if argv is None else argv)
        name = options.name or f"s{options.device_id}"
        _log_to(options, name)
        for option in _IGNORED:
            if getattr(options, option[2:].replace("-", "_")) is not None:
                log.warning("%s is ignored: it has no effect in softswitch", option)
        with limits_named():
            check_limits()
            asyncio.run(_serve(options, name))
    except EntrainError as error:
        if logging.root.handlers:  # without one, Python would print it, too
            log.error("%s", error)
        print(f"softswitch: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    except KeyboardInterrupt:  # interrupted before anything needed cleaning up
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
