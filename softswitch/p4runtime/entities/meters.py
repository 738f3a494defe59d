"""Conversion of meter configurations, for indexed and direct meters (spec 9.4)."""

from __future__ import annotations

from typing import Any

from grpc import StatusCode

from softswitch.contract import MeterConfig
from softswitch.p4runtime.status import Refused, invalid


def meter_config(message: Any, what: str) -> MeterConfig:
    """Return the configuration in a MeterConfig. Raises Refused if it is not valid for a two-rate meter."""
    if message.eburst:
        raise invalid(f"{what}: eburst belongs to single-rate meters; this one has two rates")
    config = MeterConfig(message.cir, message.cburst, message.pir, message.pburst)
    if min(config.cir, config.cburst, config.pir, config.pburst) < 0:
        raise invalid(f"{what}: rates and bursts must not be negative")
    if config.pir < config.cir:
        raise invalid(f"{what}: the peak rate {config.pir} is below the committed rate {config.cir}")
    return config


def fill_meter(config: MeterConfig, message: Any) -> None:
    """Write `config` into a MeterConfig."""
    message.cir, message.cburst = config.cir, config.cburst
    message.pir, message.pburst = config.pir, config.pburst


def refuse_colours(message: Any, field: str, what: str) -> None:
    """Raise Refused if `field` is set: v1model's meters have no counters per colour, which are optional."""
    if message.HasField(field):
        raise Refused(StatusCode.UNIMPLEMENTED, f"{what}: meters do not count packets per colour")
