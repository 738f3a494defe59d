"""What a Tofino gets: Stratum's message, from p4c's files wherever they lie; and what Stratum refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import finsy as fy
import grpc
import pytest
from finsy.proto import U128, p4r
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from controlplane.bf_pipeline_pb2 import BfPipelineConfig
from controlplane.entries import ecmp
from controlplane.p4client import Refused, SwitchClient
from controlplane.pipeline import BUILD, Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.tofino import COMPILE, pack
from controlplane.topology import leaf_spine, load_topology
from machine.errors import BadInput
from tests.controlplane.stratum_switch import StratumSwitch, compiled, packed_pipeline
from tests.controlplane.test_fabric import run

ROOT = Path(__file__).resolve().parents[2]
P4INFO = BUILD / "fabric.p4info.txtpb"

STRATUM: dict[str, Sequence[tuple[str, int, str, bool]]] = {
    "BfPipelineConfig.Profile": (
        ("profile_name", 1, "STRING", False),
        ("context", 2, "BYTES", False),
        ("binary", 3, "BYTES", False),
        ("pipe_scope", 4, "UINT32", True),
    ),
    "BfPipelineConfig": (
        ("p4_name", 1, "STRING", False),
        ("bfruntime_info", 2, "BYTES", False),
        ("profiles", 3, "MESSAGE", True),
    ),
}
"""The messages of stratum/hal/lib/barefoot/bf.proto: name, number, type and whether repeated, by field."""


def stratums_message() -> Any:
    """The class of BfPipelineConfig as Stratum defines it, made from `STRATUM`."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="bf.proto", package="stratum.hal.barefoot", syntax="proto3"
    )
    config = file.message_type.add(name="BfPipelineConfig")
    messages = {
        "BfPipelineConfig": config,
        "BfPipelineConfig.Profile": config.nested_type.add(name="Profile"),
    }
    for name, fields in STRATUM.items():
        for field, number, kind, repeated in fields:
            made = messages[name].field.add(
                name=field,
                number=number,
                type=getattr(kinds, f"TYPE_{kind}"),
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            )
            if kind == "MESSAGE":
                made.type_name = ".stratum.hal.barefoot.BfPipelineConfig.Profile"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("stratum.hal.barefoot.BfPipelineConfig")
    )


def test_the_message_has_stratums_fields() -> None:
    ours = descriptor_pb2.DescriptorProto()
    BfPipelineConfig.DESCRIPTOR.CopyToProto(ours)
    theirs = descriptor_pb2.DescriptorProto()
    stratums_message().DESCRIPTOR.CopyToProto(theirs)
    for message in (ours, theirs):
        for field in message.field:
            field.ClearField("type_name")
    assert ours == theirs


def test_stratum_reads_what_p4c_has_written(tmp_path: Path) -> None:
    conf = compiled(tmp_path / "out")
    read = stratums_message().FromString(pack(conf))
    assert (read.p4_name, read.bfruntime_info) == ("fabric", (tmp_path / "out/bfrt.json").read_bytes())
    (profile,) = read.profiles
    assert (profile.profile_name, list(profile.pipe_scope)) == ("pipe", [0, 1, 2, 3])
    assert profile.context == (tmp_path / "out/pipe/context.json").read_bytes()
    assert profile.binary == (tmp_path / "out/pipe/tofino2.bin").read_bytes()


def test_moved_files_are_the_same_pipeline_and_changed_ones_another(tmp_path: Path) -> None:
    here = Pipeline.load(P4INFO, compiled(tmp_path / "out"))
    shutil.copytree(tmp_path / "out", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "out")
    there = Pipeline.load(P4INFO, tmp_path / "elsewhere/fabric.conf")
    assert there.cookie == here.cookie
    (tmp_path / "elsewhere/pipe/tofino2.bin").write_bytes(b"another")
    assert Pipeline.load(P4INFO, tmp_path / "elsewhere/fabric.conf").cookie != here.cookie


def test_compressed_files_are_the_same_pipeline(tmp_path: Path) -> None:
    conf = compiled(tmp_path / "out")
    whole = pack(conf)
    for name in ("context.json", "tofino2.bin"):
        path = tmp_path / "out/pipe" / name
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert pack(conf) == whole
    (tmp_path / "out/pipe/tofino2.bin.gz").write_bytes(b"no gzip")
    with pytest.raises(BadInput, match=r"tofino2\.bin\.gz: cannot be decompressed"):
        pack(conf)


@pytest.mark.parametrize("file", ["bfrt.json", "pipe/context.json", "pipe/tofino2.bin"])
def test_a_missing_file_is_named_with_the_command_that_makes_it(file: str, tmp_path: Path) -> None:
    conf = compiled(tmp_path / "out")
    (tmp_path / "out" / file).unlink()
    with pytest.raises(BadInput) as error:
        Pipeline.load(P4INFO, conf)
    assert str(tmp_path / "out" / file) in str(error.value)
    assert COMPILE in str(error.value)


def _edited(conf: Path, edit: Callable[[Any], Any]) -> None:
    document = json.loads(conf.read_text())
    edit(document)
    conf.write_text(json.dumps(document))


def test_another_file_than_p4cs_is_refused(tmp_path: Path) -> None:
    conf = compiled(tmp_path / "out")
    whole = conf.read_text()
    for edit, told in (
        (lambda d: d.pop("p4_devices"), r"p4_devices: Field required"),
        (lambda d: d["p4_devices"][0]["p4_programs"].clear(), r"p4_programs: .*at least 1"),
        (lambda d: d["p4_devices"].append(d["p4_devices"][0]), r"p4_devices: .*at most 1"),
        (lambda d: d["p4_devices"][0]["p4_programs"][0].pop("bfrt-config"), r"bfrt-config: Field required"),
    ):
        conf.write_text(whole)
        _edited(conf, edit)
        with pytest.raises(BadInput, match=rf"{conf}: .*{told}"):
            Pipeline.load(P4INFO, conf)
    conf.write_bytes(bytes(range(256)))
    with pytest.raises(BadInput, match=f"{conf}: the file: Invalid JSON"):
        Pipeline.load(P4INFO, conf)


def test_a_p4info_of_another_program_is_refused(tmp_path: Path) -> None:
    conf, other = compiled(tmp_path / "out"), tmp_path / "other.txtpb"
    for name in ("route", "ecmp_selector", "drops"):
        other.write_text(P4INFO.read_text().replace(f'"FabricIngress.{name}"', '"FabricIngress.another"'))
        with pytest.raises(BadInput, match=r"does not fit .*fabric.conf: it has .* FabricIngress.another"):
            Pipeline.load(other, conf)


def test_a_raw_binary_is_refused_in_stratums_words(tmp_path: Path) -> None:
    raw = replace(packed_pipeline(tmp_path / "out"))
    raw.schema._p4blob = bytes(range(256))

    async def test() -> None:
        fake = StratumSwitch(1)
        await fake.start()
        switch = replace(leaf_spine(1, 1, 1).switches[0], grpc_port=fake.port)
        client = SwitchClient(switch, raw)
        try:
            await client.connect(5)
            with pytest.raises(Refused, match="Unknown format for p4_device_config"):
                await client.set_pipeline(force=True)
        finally:
            await client.close()
            await fake.stop()

    run(test)


def test_a_group_says_its_size_and_its_members_weigh_one(tmp_path: Path) -> None:
    """A driver refuses a group of size 0, and Stratum hands it what it gets."""
    schema = packed_pipeline(tmp_path / "out").schema
    groups = [
        entity.action_profile_group
        for entity in (each.encode(schema) for each in ecmp({(1, 2): 7, (3,): 8}))
        if entity.HasField("action_profile_group")
    ]
    limit = schema.action_profiles["ecmp_selector"].pbuf.max_group_size
    assert [(group.group_id, group.max_size) for group in groups] == [(7, limit), (8, limit)]
    assert {(m.weight, m.WhichOneof("watch_kind")) for g in groups for m in g.members} == {(1, None)}


def test_more_equal_paths_than_a_group_takes_are_refused_before_any_switch() -> None:
    with pytest.raises(BadInput, match="leaf1: 65 equally near ports do not fit a group of 64"):
        desired_state(leaf_spine(2, 65, 1))


def test_ports_are_those_of_the_target(tmp_path: Path) -> None:
    file = tmp_path / "rack.toml"
    text = (
        '[[switch]]\nname = "s1"\ntarget = "{}"\n[[host]]\nname = "h1"\n'
        '[[link]]\na = "s1"\na_port = 440\nb = "h1"\n'
    )
    file.write_text(text.format("tofino"))
    assert load_topology(file).switches[0].ports[0].number == 440
    file.write_text(text.format("softswitch"))
    with pytest.raises(
        BadInput, match="a_port: must be at most 254 on a switch of target softswitch, not 440"
    ):
        load_topology(file)


def test_the_topology_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = (ROOT / "docs/tofino.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "rack.toml").write_text(text)
    topology = load_topology(tmp_path / "rack.toml")
    assert {switch.grpc_address for switch in topology.switches} == {"192.0.2.11:9559", "192.0.2.21:9559"}
    states = desired_state(topology)
    assert all(states[switch.name] for switch in topology.switches)


def _set(**fields: Any) -> Callable[[Any], Any]:
    """A change of an entry, or of the first member of a group, or of a request."""

    def change(message: Any) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return change


BROKEN: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a watched port": ("group", lambda g: _set(watch_port=b"\1")(g.members[0]), "Watch ports are not"),
    "a weight of 2": ("group", lambda g: _set(weight=2)(g.members[0]), "greater than 1 are not supported"),
    "a weight of 0": ("group", lambda g: _set(weight=0)(g.members[0]), "Zero member weights"),
    "a group of any size": ("group", _set(max_size=0), "max_size 0 is not in 1..64"),
    "a group of 65": ("group", _set(max_size=65), "max_size 65 is not in 1..64"),
    "another profile's group": ("group", _set(action_profile_id=7), "Unable to find bfrt id"),
    "a priority of an exact match": ("link", _set(priority=1), "Non-zero priority"),
    "no priority of a ternary match": ("source_route", _set(priority=0), "Zero priority"),
    "too high a priority": ("source_route", _set(priority=1 << 24), "kMaxPriority"),
    "a match on anything": (
        "route",
        lambda entry: _set(prefix_len=0)(entry.match[1].lpm),
        "must be omitted",
    ),
    "an entry without an action": ("link", lambda entry: entry.ClearField("action"), "Unsupported action"),
    "atomicity": ("request", _set(atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR), "is not supported"),
}


@pytest.mark.parametrize(("what", "change", "told"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_a_rule_of_stratum_is_refused(
    what: str, change: Callable[[Any], Any], told: str, tmp_path: Path
) -> None:
    """Each rule of the fake refuses something, and nothing that the controller writes itself."""
    pipeline = packed_pipeline(tmp_path / "out")
    topology = leaf_spine(2, 2, 2)
    entities = [e.encode(pipeline.schema) for e in desired_state(topology, FabricPolicy("source"))["leaf1"]]
    entities += [entity.encode(pipeline.schema) for entity in ecmp({(1, 2): 7})]
    first = {
        pipeline.schema.tables[e.table_entry.table_id].alias: e.table_entry
        for e in reversed(entities)
        if e.HasField("table_entry")
    }
    request = p4r.WriteRequest(device_id=1)
    broken: Any = request
    if what == "group":
        request.updates.extend(p4r.Update(type=p4r.Update.INSERT, entity=e) for e in entities)
        broken = next(
            u.entity.action_profile_group
            for u in request.updates
            if u.entity.HasField("action_profile_group")
        )
    elif what != "request":
        request.updates.add(type=p4r.Update.INSERT).entity.table_entry.CopyFrom(first[what])
        broken = request.updates[0].entity.table_entry
    else:
        request.updates.add(type=p4r.Update.INSERT).entity.table_entry.CopyFrom(first["link"])

    async def answer(request: Any) -> str:
        fake = StratumSwitch(1)
        fake.config = pipeline.schema.get_pipeline_config()
        await fake.start()
        switch = replace(topology.switches[0], grpc_port=fake.port)
        client = SwitchClient(switch, pipeline)
        try:
            await client.connect(5)
            request.election_id.CopyFrom(U128.encode(client.primary_id))
            await client._stub.Write(request)
        except grpc.aio.AioRpcError as error:
            return f"{error.details()} {fy.P4ClientError(error, 'Write').details}"
        finally:
            await client.close()
            await fake.stop()
        return ""

    sound = p4r.WriteRequest()
    sound.CopyFrom(request)
    assert asyncio.run(answer(sound)) == ""
    change(broken)
    assert told in asyncio.run(answer(request))


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (fy.P4ActionProfileMember(), "Reading all action profiles is not supported yet"),
        (fy.P4ActionProfileGroup(), "Unable to find bfrt id from p4info id: 0"),
        (fy.P4CounterEntry(), "without counter id is not supported"),
        (fy.P4DirectMeterEntry(), "Unsupported entity type"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_stratum_does_not_read_is_refused(wanted: Any, told: str, tmp_path: Path) -> None:
    pipeline = packed_pipeline(tmp_path / "out")

    async def test() -> None:
        fake = StratumSwitch(1)
        fake.config = pipeline.schema.get_pipeline_config()
        await fake.start()
        client = SwitchClient(replace(leaf_spine(1, 1, 1).switches[0], grpc_port=fake.port), pipeline)
        try:
            await client.connect(5)
            with pytest.raises(Refused, match=told):
                await client.read([wanted])
        finally:
            await client.close()
            await fake.stop()

    run(test)
