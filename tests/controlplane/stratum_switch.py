"""A P4Runtime server that keeps to the rules of Stratum on a Tofino, without either.

Each rule names the place that it comes from. Paths are those of github.com/stratum/stratum at its last commit
(f8f7130, 2024-07), below `stratum/hal/lib/`. Two rules come from the vendor's driver, to which Stratum passes
what it gets: `bf-drivers` is `pkgsrc/bf-drivers/src/` in github.com/p4lang/open-p4studio (1f97778, 2025-02).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import U128, p4i, p4r
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from controlplane.bf_pipeline_pb2 import BfPipelineConfig
from controlplane.pipeline import BUILD, Pipeline
from tests.controlplane.fake_switch import FakeSwitch

MAX_PRIORITY = (1 << 24) - 1  # barefoot/bfrt_constants.h, kMaxPriority
MAX_PIPES = 4  # barefoot/bf_sde_wrapper.cc, AddDevice: scope_size() <= MAX_P4_PIPELINES
MAX_CONTROLLERS = 5  # common/p4_service.cc, FLAGS_max_num_controllers_per_node

_TERNARY = (p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL)
_FIELDS = {
    "exact": p4i.MatchField.EXACT,
    "ternary": p4i.MatchField.TERNARY,
    "lpm": p4i.MatchField.LPM,
    "range": p4i.MatchField.RANGE,
}


def compiled(directory: Path, p4info: Path = BUILD / "fabric.p4info.txtpb") -> Path:
    """Write what p4c would to `directory`, for the program that `p4info` describes. Return its .conf.

    The contents of context.json and of the binary matter to the chip alone.
    """
    info = text_format.Parse(p4info.read_text(), p4i.P4Info())
    entities = (*info.tables, *info.action_profiles, *info.counters, *info.registers)
    tables = [{"name": f"pipe.{each.preamble.name}", "id": each.preamble.id} for each in entities]
    (directory / "pipe").mkdir(parents=True)
    (directory / "bfrt.json").write_text(json.dumps({"schema_version": "1.0.0", "tables": tables}))
    (directory / "pipe/context.json").write_text(json.dumps({"tables": []}))
    (directory / "pipe/tofino2.bin").write_bytes(bytes(range(256)))
    # As p4c's driver writes it, when it was run in another folder: backends/tofino/scripts/p4c-gen-conf.
    pipeline = {
        "p4_pipeline_name": "pipe",
        "context": "out/pipe/context.json",
        "config": "out/pipe/tofino2.bin",
        "pipe_scope": [0, 1, 2, 3],
        "path": "out",
    }
    program = {"program-name": "fabric", "bfrt-config": "out/bfrt.json", "p4_pipelines": [pipeline]}
    conf = {
        "chip_list": [{"chip_family": "tofino2", "instance": 0}],
        "p4_devices": [{"device-id": 0, "p4_programs": [program]}],
    }
    path = directory / "fabric.conf"
    path.write_text(json.dumps(conf))
    return path


def packed_pipeline(directory: Path) -> Pipeline:
    """Return the fabric's P4Info with a configuration for Tofino that nothing has compiled."""
    return Pipeline.load(BUILD / "fabric.p4info.txtpb", compiled(directory))


class StratumSwitch(FakeSwitch):
    """A fake switch with Stratum's rules. What breaks one is refused in Stratum's words."""

    def _info(self) -> Any:
        return self.config.p4info

    # -- common/p4_service.cc

    def _forget(self) -> None:
        """A restart: PushSavedForwardingPipelineConfigs sets the pipeline again, from a file."""
        config = self.config
        super()._forget()
        self.config = config

    def _arbitrate(self, queue: Any, update: Any) -> None:
        # StreamChannel: no device id, no election id; AddOrModifyController: too many controllers
        if not update.device_id:
            queue.put_nowait("Invalid node (aka device) ID.")
        elif not U128.decode(update.election_id):
            queue.put_nowait("Invalid election ID.")
        elif queue not in self._streams and len(self._streams) >= MAX_CONTROLLERS:
            queue.put_nowait(f"Cannot have more than {MAX_CONTROLLERS} controllers for node (aka device)")
        else:
            super()._arbitrate(queue, update)

    async def _check(self, request: Any, context: Any, *, pipeline: bool = True) -> None:
        if not request.device_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Invalid device ID.")
        if pipeline and self.config is None:  # DoGetForwardingPipelineConfig
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "No valid forwarding pipeline config has been pushed for any node so far.",
            )
        await super()._check(request, context, pipeline=False)

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.action == p4r.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "RECONCILE_AND_COMMIT action not supported yet"
            )
        if (problem := _pipeline_problem(request.config)) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        return await super().SetForwardingPipelineConfig(request, context)

    async def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        # barefoot/bfrt_node.cc, WriteForwardingEntries
        if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
            name = p4r.WriteRequest.Atomicity.Name(request.atomicity)
            await context.abort(grpc.StatusCode.INTERNAL, f"Request atomicity {name} is not supported.")
        return await super().Write(request, context)

    async def Read(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await self._check(request, context)
        self.reads += 1
        for wanted in request.entities:
            if (problem := self._unreadable(wanted)) is not None:
                await context.abort(grpc.StatusCode.UNKNOWN, f"One or more read operations failed. {problem}")
            yield p4r.ReadResponse(entities=self._found(wanted))
        yield p4r.ReadResponse()  # barefoot/bfrt_node.cc, ReadForwardingEntries: an empty one at the end

    # -- barefoot/bfrt_table_manager.cc

    def _unreadable(self, entity: Any) -> str | None:
        profiles = {profile.preamble.id for profile in self._info().action_profiles}
        match entity.WhichOneof("entity"):
            case "table_entry":  # ReadAllTableEntries
                entry = entity.table_entry
                if entry.match or entry.priority or entry.HasField("action") or entry.metadata:
                    return "Match filters on wildcard reads are not supported."
            case "action_profile_member":  # ReadActionProfileMember
                if not entity.action_profile_member.action_profile_id:
                    return "Reading all action profiles is not supported yet."
            case "action_profile_group":  # ReadActionProfileGroup: the profile's id is looked up first
                if (id_ := entity.action_profile_group.action_profile_id) not in profiles:
                    return f"Unable to find bfrt id from p4info id: {id_}"
            case "counter_entry":  # barefoot/bfrt_counter_manager.cc, ReadIndirectCounterEntry
                if not entity.counter_entry.counter_id:
                    return "Querying an indirect counter without counter id is not supported."
            case "register_entry" | "meter_entry" | "digest_entry" | "direct_counter_entry":
                pass
            case "packet_replication_engine_entry" | "extern_entry":
                pass
            case other:  # barefoot/bfrt_node.cc, ReadForwardingEntries
                return f"Unsupported entity type: {other}"
        return None

    def _found(self, wanted: Any) -> list[Any]:
        kind = wanted.WhichOneof("entity")
        field = "table_id" if kind == "table_entry" else "action_profile_id"
        ids = getattr(getattr(wanted, kind), field, 0)
        kept = (entity for entity in self.entities.values() if entity.WhichOneof("entity") == kind)
        return [entity for entity in kept if not ids or getattr(getattr(entity, kind), field) == ids]

    def _apply(self, update: Any) -> str | None:
        entity = update.entity
        match entity.WhichOneof("entity"):
            case "table_entry":
                problem = self._entry_problem(update.type, entity.table_entry)
            case "action_profile_group":
                problem = self._group_problem(update.type, entity.action_profile_group)
            case "action_profile_member":
                problem = None
            case other:  # barefoot/bfrt_node.cc, WriteForwardingEntries
                problem = f"Unsupported entity type: {other}"
        return problem or super()._apply(update)

    def _entry_problem(self, kind: int, entry: Any) -> str | None:
        tables = {table.preamble.id: table for table in self._info().tables}
        if (table := tables.get(entry.table_id)) is None:
            return f"Unable to find bfrt id from p4info id: {entry.table_id}"
        if table.is_const_table:  # WriteTableEntry
            return f"Can't write to const table {table.preamble.name} because it has const entries."
        fields = {field.id: field for field in table.match_fields}
        for match in entry.match:  # BuildTableKey
            how = match.WhichOneof("field_match_type")
            if _FIELDS.get(how) != fields[match.field_id].match_type:
                return f"Found match field of type {how} does not fit match field {fields[match.field_id]}"
            if (how == "lpm" and not match.lpm.prefix_len) or (
                how == "ternary" and not any(match.ternary.mask)
            ):
                return f"Don't care match {match} must be omitted."
        needs_priority = any(field.match_type in _TERNARY for field in table.match_fields)
        if needs_priority and not entry.priority:
            return "Zero priority for ternary/range/optional match."
        if entry.priority and not needs_priority:
            return "Non-zero priority for exact/LPM match."
        if entry.priority > MAX_PRIORITY:  # barefoot/utils.cc, ConvertPriorityFromP4rtToBfrt
            return f"'priority <= kMaxPriority' is false: {entry.priority}"
        if kind != p4r.Update.DELETE:  # BuildTableData
            if entry.action.WhichOneof("type") in (None, "action_profile_action_set"):
                return f"Unsupported action type: {entry.action.WhichOneof('type')}"
            if entry.HasField("meter_config"):
                return "Meter configs on TableEntries are not supported."
        return None

    def _group_problem(self, kind: int, group: Any) -> str | None:
        profiles = {profile.preamble.id: profile for profile in self._info().action_profiles}
        if (profile := profiles.get(group.action_profile_id)) is None:
            return f"Unable to find bfrt id from p4info id: {group.action_profile_id}"
        for member in group.members:  # WriteActionProfileGroup
            if member.WhichOneof("watch_kind") is not None:
                return "Watch ports are not supported."
            if member.weight == 0:
                return "Zero member weights are not allowed."
            if member.weight != 1:
                return "Member weights greater than 1 are not supported."
        if kind == p4r.Update.DELETE:
            return None
        # bf-drivers, pipe_mgr/pipe_mgr_select_tbl.c: a group has room for 1 member at least, and for no more
        # than the selector's groups have; a group of 0 is not one of any size.
        if not 1 <= group.max_size <= profile.max_group_size:
            return f"max_size {group.max_size} is not in 1..{profile.max_group_size}: Invalid argument"
        if len(group.members) > group.max_size:
            return f"{len(group.members)} members in a group of {group.max_size}: No space"
        return None

    # -- barefoot/bfrt_packetio_manager.cc

    def _packet(self, packet: Any) -> Any | None:
        problem = self._packet_problem(packet)
        if problem is None:
            return super()._packet(packet)
        return p4r.StreamMessageResponse(error=p4r.StreamError(message=problem))

    def _packet_problem(self, packet: Any) -> str | None:
        """DeparsePacketOut: every field of the header, padding too, and none wider than it is."""
        (header,) = (h for h in self._info().controller_packet_metadata if h.preamble.name == "packet_out")
        values = {metadata.metadata_id: metadata.value for metadata in packet.metadata}
        for field in header.metadata:
            if field.id not in values:
                return f"Missing metadata with Id {field.id} in PacketOut"
            if int.from_bytes(values[field.id]) >> field.bitwidth:
                return f"Bytestring {values[field.id].hex()} overflows bit width {field.bitwidth}."
        return None


def _pipeline_problem(config: Any) -> str | None:
    # barefoot/bfrt_node.cc, VerifyForwardingPipelineConfig
    if not config.HasField("p4info"):
        return "Missing P4 info"
    if not config.p4_device_config:
        return "Missing P4 device config"
    try:  # barefoot/bf_pipeline_utils.cc, ExtractBfPipelineConfig
        given = BfPipelineConfig.FromString(config.p4_device_config)
    except DecodeError:
        return "Unknown format for p4_device_config."
    # barefoot/bf_sde_wrapper.cc, AddDevice
    if not given.profiles:
        return "'program.pipelines_size() > 0' is false."
    if any(len(profile.pipe_scope) > MAX_PIPES for profile in given.profiles):
        return "'pipeline.scope_size() <= MAX_P4_PIPELINES' is false."
    # barefoot/bfrt_id_mapper.cc, BuildMapping: by id, or by a name that contains P4Info's
    tables = json.loads(given.bfruntime_info)["tables"]
    info = config.p4info
    for entity in (*info.tables, *info.action_profiles, *info.counters, *info.registers):
        name, id_ = entity.preamble.name, entity.preamble.id
        if not any(table["id"] == id_ or name in table["name"] for table in tables):
            return f"Unable to find bfrt ID for P4Info entity {name} with ID {id_}."
    for profile in given.profiles:  # BuildActionProfileMapping
        json.loads(profile.context)
    # barefoot/bfrt_packetio_manager.cc, BuildMetadataMapping
    for header in info.controller_packet_metadata:
        if sum(field.bitwidth for field in header.metadata) % 8:
            return f"{header.preamble.name} header size must be multiple of 8 bits."
    return None
