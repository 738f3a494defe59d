from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetNetworkRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Network(_message.Message):
    __slots__ = ("name", "routing", "namespace", "process_id", "switches", "topology_hash", "program", "hosts", "events", "run", "fabric", "ports")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_HASH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    routing: str
    namespace: str
    process_id: int
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    topology_hash: str
    program: str
    hosts: _containers.RepeatedCompositeFieldContainer[Host]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    run: str
    fabric: bool
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    def __init__(self, name: _Optional[str] = ..., routing: _Optional[str] = ..., namespace: _Optional[str] = ..., process_id: _Optional[int] = ..., switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ..., topology_hash: _Optional[str] = ..., program: _Optional[str] = ..., hosts: _Optional[_Iterable[_Union[Host, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., run: _Optional[str] = ..., fabric: _Optional[bool] = ..., ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ...) -> None: ...

class Port(_message.Message):
    __slots__ = ("link", "switch", "peer", "interface")
    LINK_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    link: str
    switch: str
    peer: str
    interface: str
    def __init__(self, link: _Optional[str] = ..., switch: _Optional[str] = ..., peer: _Optional[str] = ..., interface: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("unix_ns", "text")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    text: str
    def __init__(self, unix_ns: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("name", "address", "interface", "switch", "port", "process_id", "agent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    interface: str
    switch: str
    port: int
    process_id: int
    agent: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., interface: _Optional[str] = ..., switch: _Optional[str] = ..., port: _Optional[int] = ..., process_id: _Optional[int] = ..., agent: _Optional[str] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "role", "target", "device_id", "grpc_address", "status", "certificates", "tables")
    class TablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    target: str
    device_id: int
    grpc_address: str
    status: str
    certificates: str
    tables: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., target: _Optional[str] = ..., device_id: _Optional[int] = ..., grpc_address: _Optional[str] = ..., status: _Optional[str] = ..., certificates: _Optional[str] = ..., tables: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DeployRequest(_message.Message):
    __slots__ = ("routing", "p4info", "program")
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    P4INFO_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    routing: str
    p4info: str
    program: str
    def __init__(self, routing: _Optional[str] = ..., p4info: _Optional[str] = ..., program: _Optional[str] = ...) -> None: ...

class Deployed(_message.Message):
    __slots__ = ("switches", "seconds")
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[Applied]
    seconds: float
    def __init__(self, switches: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("name", "pipeline_set", "inserted", "modified", "deleted", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_SET_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pipeline_set: bool
    inserted: int
    modified: int
    deleted: int
    seconds: float
    def __init__(self, name: _Optional[str] = ..., pipeline_set: _Optional[bool] = ..., inserted: _Optional[int] = ..., modified: _Optional[int] = ..., deleted: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class WatchLoadsRequest(_message.Message):
    __slots__ = ("interval_ms", "counters")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    counters: bool
    def __init__(self, interval_ms: _Optional[int] = ..., counters: _Optional[bool] = ...) -> None: ...

class Loads(_message.Message):
    __slots__ = ("unix_ns", "ports", "problem", "queues", "lacking")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    ports: _containers.RepeatedCompositeFieldContainer[PortLoad]
    problem: str
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    lacking: str
    def __init__(self, unix_ns: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[PortLoad, _Mapping]]] = ..., problem: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ..., lacking: _Optional[str] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("node", "port", "link", "place", "dropped_packets", "backlog_packets", "backlog_bytes", "limit_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_PACKETS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    port: int
    link: str
    place: str
    dropped_packets: int
    backlog_packets: int
    backlog_bytes: int
    limit_bytes: int
    def __init__(self, node: _Optional[str] = ..., port: _Optional[int] = ..., link: _Optional[str] = ..., place: _Optional[str] = ..., dropped_packets: _Optional[int] = ..., backlog_packets: _Optional[int] = ..., backlog_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class PortLoad(_message.Message):
    __slots__ = ("switch", "port", "peer", "capacity_mbps", "slots", "link", "counters", "refused")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_MBPS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    switch: str
    port: int
    peer: str
    capacity_mbps: float
    slots: _containers.RepeatedCompositeFieldContainer[SlotLoad]
    link: str
    counters: Counters
    refused: _containers.ScalarMap[str, int]
    def __init__(self, switch: _Optional[str] = ..., port: _Optional[int] = ..., peer: _Optional[str] = ..., capacity_mbps: _Optional[float] = ..., slots: _Optional[_Iterable[_Union[SlotLoad, _Mapping]]] = ..., link: _Optional[str] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("monotonic_ns", "received_packets", "received_bytes", "sent_packets", "sent_bytes")
    MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_PACKETS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    monotonic_ns: int
    received_packets: int
    received_bytes: int
    sent_packets: int
    sent_bytes: int
    def __init__(self, monotonic_ns: _Optional[int] = ..., received_packets: _Optional[int] = ..., received_bytes: _Optional[int] = ..., sent_packets: _Optional[int] = ..., sent_bytes: _Optional[int] = ...) -> None: ...

class SlotLoad(_message.Message):
    __slots__ = ("slot", "load_mbps")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LOAD_MBPS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    load_mbps: float
    def __init__(self, slot: _Optional[int] = ..., load_mbps: _Optional[float] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("name", "gpus", "pattern", "duration_s", "deadline_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    gpus: int
    pattern: str
    duration_s: float
    deadline_s: float
    def __init__(self, name: _Optional[str] = ..., gpus: _Optional[int] = ..., pattern: _Optional[str] = ..., duration_s: _Optional[float] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("name", "ended")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    ended: bool
    def __init__(self, name: _Optional[str] = ..., ended: _Optional[bool] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("past",)
    PAST_FIELD_NUMBER: _ClassVar[int]
    past: bool
    def __init__(self, past: _Optional[bool] = ...) -> None: ...

class WatchJobsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListCircuitsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Jobs(_message.Message):
    __slots__ = ("jobs", "problem", "strategy", "queue", "gpus", "free_gpus")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    FREE_GPUS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    problem: str
    strategy: str
    queue: str
    gpus: int
    free_gpus: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., problem: _Optional[str] = ..., strategy: _Optional[str] = ..., queue: _Optional[str] = ..., gpus: _Optional[int] = ..., free_gpus: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "gpus", "pattern", "arrival_s", "duration_s", "deadline_s", "phase", "step", "placement", "start_s", "end_s", "circuits_changed", "waiting", "waited", "problem", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    CIRCUITS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    gpus: int
    pattern: str
    arrival_s: float
    duration_s: float
    deadline_s: float
    phase: str
    step: str
    placement: Placement
    start_s: float
    end_s: float
    circuits_changed: int
    waiting: Wait
    waited: _containers.RepeatedCompositeFieldContainer[Wait]
    problem: str
    owner: str
    def __init__(self, name: _Optional[str] = ..., gpus: _Optional[int] = ..., pattern: _Optional[str] = ..., arrival_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., phase: _Optional[str] = ..., step: _Optional[str] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., circuits_changed: _Optional[int] = ..., waiting: _Optional[_Union[Wait, _Mapping]] = ..., waited: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., problem: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("from_s", "to_s", "cause", "behind")
    FROM_S_FIELD_NUMBER: _ClassVar[int]
    TO_S_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    from_s: float
    to_s: float
    cause: str
    behind: str
    def __init__(self, from_s: _Optional[float] = ..., to_s: _Optional[float] = ..., cause: _Optional[str] = ..., behind: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("gpus", "hosts", "leaves", "spines", "leaf_names", "spine_names", "links", "circuits", "virtual_leaves", "virtual_spines", "stage", "vrf")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    SPINES_FIELD_NUMBER: _ClassVar[int]
    LEAF_NAMES_FIELD_NUMBER: _ClassVar[int]
    SPINE_NAMES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    CIRCUITS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_LEAVES_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_SPINES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VRF_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    leaves: _containers.RepeatedScalarFieldContainer[int]
    spines: _containers.RepeatedScalarFieldContainer[int]
    leaf_names: _containers.RepeatedScalarFieldContainer[str]
    spine_names: _containers.RepeatedScalarFieldContainer[str]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    circuits: _containers.RepeatedCompositeFieldContainer[Circuit]
    virtual_leaves: int
    virtual_spines: int
    stage: int
    vrf: int
    def __init__(self, gpus: _Optional[_Iterable[int]] = ..., hosts: _Optional[_Iterable[str]] = ..., leaves: _Optional[_Iterable[int]] = ..., spines: _Optional[_Iterable[int]] = ..., leaf_names: _Optional[_Iterable[str]] = ..., spine_names: _Optional[_Iterable[str]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., circuits: _Optional[_Iterable[_Union[Circuit, _Mapping]]] = ..., virtual_leaves: _Optional[int] = ..., virtual_spines: _Optional[int] = ..., stage: _Optional[int] = ..., vrf: _Optional[int] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("leaf", "spine", "number")
    LEAF_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    leaf: int
    spine: int
    number: int
    def __init__(self, leaf: _Optional[int] = ..., spine: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class CircuitPort(_message.Message):
    __slots__ = ("kind", "switch", "port", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    switch: int
    port: int
    name: str
    def __init__(self, kind: _Optional[str] = ..., switch: _Optional[int] = ..., port: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Circuit(_message.Message):
    __slots__ = ("a", "b")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    a: CircuitPort
    b: CircuitPort
    def __init__(self, a: _Optional[_Union[CircuitPort, _Mapping]] = ..., b: _Optional[_Union[CircuitPort, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("placement", "circuits_changed", "waiting", "problem")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CIRCUITS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    placement: Placement
    circuits_changed: int
    waiting: Wait
    problem: str
    def __init__(self, placement: _Optional[_Union[Placement, _Mapping]] = ..., circuits_changed: _Optional[int] = ..., waiting: _Optional[_Union[Wait, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class Circuits(_message.Message):
    __slots__ = ("circuits", "failures")
    CIRCUITS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    circuits: _containers.RepeatedCompositeFieldContainer[OwnedCircuit]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, circuits: _Optional[_Iterable[_Union[OwnedCircuit, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...

class OwnedCircuit(_message.Message):
    __slots__ = ("circuit", "job")
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    circuit: Circuit
    job: str
    def __init__(self, circuit: _Optional[_Union[Circuit, _Mapping]] = ..., job: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("what", "reason")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    what: str
    reason: str
    def __init__(self, what: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Training(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[TrainingJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[TrainingJob, _Mapping]]] = ...) -> None: ...

class TrainingJob(_message.Message):
    __slots__ = ("name", "hosts", "iterations", "done", "ideal_ms", "ideal", "recent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    IDEAL_MS_FIELD_NUMBER: _ClassVar[int]
    IDEAL_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    iterations: int
    done: int
    ideal_ms: float
    ideal: str
    recent: _containers.RepeatedCompositeFieldContainer[TrainingIteration]
    def __init__(self, name: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., iterations: _Optional[int] = ..., done: _Optional[int] = ..., ideal_ms: _Optional[float] = ..., ideal: _Optional[str] = ..., recent: _Optional[_Iterable[_Union[TrainingIteration, _Mapping]]] = ...) -> None: ...

class TrainingIteration(_message.Message):
    __slots__ = ("number", "start_ns", "compute_end_ns", "end_ns")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_END_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    number: int
    start_ns: int
    compute_end_ns: int
    end_ns: int
    def __init__(self, number: _Optional[int] = ..., start_ns: _Optional[int] = ..., compute_end_ns: _Optional[int] = ..., end_ns: _Optional[int] = ...) -> None: ...

class ListDropsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Drops(_message.Message):
    __slots__ = ("switches", "queues", "too_long", "lacking")
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOO_LONG_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchDrops]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    too_long: _containers.RepeatedCompositeFieldContainer[TooLong]
    lacking: str
    def __init__(self, switches: _Optional[_Iterable[_Union[SwitchDrops, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ..., too_long: _Optional[_Iterable[_Union[TooLong, _Mapping]]] = ..., lacking: _Optional[str] = ...) -> None: ...

class TooLong(_message.Message):
    __slots__ = ("switch", "port", "link", "mtu", "packets")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    MTU_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    port: int
    link: str
    mtu: int
    packets: int
    def __init__(self, switch: _Optional[str] = ..., port: _Optional[int] = ..., link: _Optional[str] = ..., mtu: _Optional[int] = ..., packets: _Optional[int] = ...) -> None: ...

class SwitchDrops(_message.Message):
    __slots__ = ("name", "packets")
    class PacketsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    packets: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., packets: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShuttingDown(_message.Message):
    __slots__ = ("process_id",)
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    def __init__(self, process_id: _Optional[int] = ...) -> None: ...
