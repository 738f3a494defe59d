"""JSON schemas of the files that users write, so that editors complete and check their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from machine.explain import is_plain_list


class _Schema(GenerateJsonSchema):
    """A single value may stand for a list of plain values (`machine.toml.Strict`)."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        for key, field in model.model_fields.items():
            if is_plain_list(field.annotation) and key in made.get("properties", {}):
                _or_one(made["properties"][key])
        return made


def _or_one(key: dict[str, Any]) -> None:
    """Let a list be a single value."""
    for part in key.get("anyOf", [key]):
        if part.get("type") == "array":
            key["anyOf"] = [*key.pop("anyOf", [dict(part)]), part["items"]]
            if part is key:
                for name in ("type", "items", "minItems", "maxItems"):
                    key.pop(name, None)
            return


def _topology() -> type[BaseModel]:
    from controlplane.roles import ControllerTable
    from controlplane.topology import TopologyFile
    from entrain.live_cluster import NetworkClusterTable

    return create_model(
        "Topology",
        __base__=TopologyFile,
        cluster=(NetworkClusterTable | None, None),
        controller=(ControllerTable | None, None),
    )


def _experiment() -> Any:
    from controlplane.topology import TopologyFile
    from entrain.experiment import file_model
    from entrain.trials.slot_rates import SlotRatesFile

    network: dict[str, Any] = {
        name: (field.annotation, field) for name, field in TopologyFile.model_fields.items()
    }
    return create_model("Experiment", __base__=file_model(), **network) | SlotRatesFile


def _job() -> type[BaseModel]:
    from entrain.jobs import JobFile

    return JobFile


KINDS: Mapping[str, Callable[[], Any]] = {
    "topology": _topology,
    "experiment": _experiment,
    "job": _job,
}
"""The kinds of files, and their models."""


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a kind of file. What keys ask of each other is checked on reading only."""
    made = TypeAdapter(KINDS[kind]()).json_schema(schema_generator=_Schema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **made, "title": f"entrain {kind} file"}
