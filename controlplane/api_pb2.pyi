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
    __slots__ = ("name", "routing", "namespace", "process_id", "switches", "topology_hash", "program")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_HASH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    name: str
    routing: str
    namespace: str
    process_id: int
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    topology_hash: str
    program: str
    def __init__(self, name: _Optional[str] = ..., routing: _Optional[str] = ..., namespace: _Optional[str] = ..., process_id: _Optional[int] = ..., switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ..., topology_hash: _Optional[str] = ..., program: _Optional[str] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "role", "target", "device_id", "grpc_address", "status")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    target: str
    device_id: int
    grpc_address: str
    status: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., target: _Optional[str] = ..., device_id: _Optional[int] = ..., grpc_address: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class Loads(_message.Message):
    __slots__ = ("unix_ns", "ports", "problem")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    ports: _containers.RepeatedCompositeFieldContainer[PortLoad]
    problem: str
    def __init__(self, unix_ns: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[PortLoad, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class PortLoad(_message.Message):
    __slots__ = ("switch", "port", "peer", "capacity_mbps", "slots")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_MBPS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    port: int
    peer: str
    capacity_mbps: float
    slots: _containers.RepeatedCompositeFieldContainer[SlotLoad]
    def __init__(self, switch: _Optional[str] = ..., port: _Optional[int] = ..., peer: _Optional[str] = ..., capacity_mbps: _Optional[float] = ..., slots: _Optional[_Iterable[_Union[SlotLoad, _Mapping]]] = ...) -> None: ...

class SlotLoad(_message.Message):
    __slots__ = ("slot", "load_mbps")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LOAD_MBPS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    load_mbps: float
    def __init__(self, slot: _Optional[int] = ..., load_mbps: _Optional[float] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShuttingDown(_message.Message):
    __slots__ = ("process_id",)
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    def __init__(self, process_id: _Optional[int] = ...) -> None: ...
