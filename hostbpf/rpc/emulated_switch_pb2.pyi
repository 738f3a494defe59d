from hostbpf.rpc import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hop(_message.Message):
    __slots__ = ("flow", "port")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    flow: _agent_pb2.Flow
    port: int
    def __init__(self, flow: _Optional[_Union[_agent_pb2.Flow, _Mapping]] = ..., port: _Optional[int] = ...) -> None: ...

class FetchFeedbackRequest(_message.Message):
    __slots__ = ("slot", "hops")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    hops: _containers.RepeatedCompositeFieldContainer[Hop]
    def __init__(self, slot: _Optional[int] = ..., hops: _Optional[_Iterable[_Union[Hop, _Mapping]]] = ...) -> None: ...

class FetchFeedbackResponse(_message.Message):
    __slots__ = ("instance", "loads")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    loads: _containers.RepeatedCompositeFieldContainer[LinkLoad]
    def __init__(self, instance: _Optional[int] = ..., loads: _Optional[_Iterable[_Union[LinkLoad, _Mapping]]] = ...) -> None: ...

class LinkLoad(_message.Message):
    __slots__ = ("capacity", "load")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    load: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, capacity: _Optional[int] = ..., load: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateScheduleRequest(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("hop", "slot", "rates")
    HOP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    hop: Hop
    slot: int
    rates: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hop: _Optional[_Union[Hop, _Mapping]] = ..., slot: _Optional[int] = ..., rates: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetFlowRequest(_message.Message):
    __slots__ = ("flows",)
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Flow]
    def __init__(self, flows: _Optional[_Iterable[_Union[_agent_pb2.Flow, _Mapping]]] = ...) -> None: ...

class ForgetFlowResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
