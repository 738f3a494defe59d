"""What indexed and direct meters share (spec 9.4)."""

from __future__ import annotations

from typing import Any

from grpc import StatusCode

from softswitch.contract import MeterConfig
from softswitch.p4runtime.status import Refused, invalid


def meter_config(message: Any, what: str) -> MeterConfig:
    """The configuration that a MeterConfig describes; raises Refused where it makes no two-rate meter."""
    if message.eburst:
        raise invalid(f"{what}: eburst belongs to single-rate meters; this one has two rates")
    config = MeterConfig(message.cir, message.cburst, message.pir, message.pburst)
    if min(config.cir, config.cburst, config.pir, config.pburst) < 0:
        raise invalid(f"{what}: rates and bursts are not negative")
    if config.pir < config.cir:
        raise invalid(f"{what}: the peak rate {config.pir} is below the committed rate {config.cir}")
    return config


def fill_meter(config: MeterConfig, message: Any) -> None:
    """Write `config` into a MeterConfig."""
    message.cir, message.cburst = config.cir, config.cburst
    message.pir, message.pburst = config.pir, config.pburst


def refuse_colours(message: Any, field: str, what: str) -> None:
    """Counters per colour are an optional part of P4Runtime that v1model's meters do not have."""
    if message.HasField(field):
        raise Refused(StatusCode.UNIMPLEMENTED, f"{what}: meters do not count packets per colour")
