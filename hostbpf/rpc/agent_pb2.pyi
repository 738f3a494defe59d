from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Flow(_message.Message):
    __slots__ = ("source", "source_port", "destination", "destination_port", "protocol")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PORT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_PORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    source: str
    source_port: int
    destination: str
    destination_port: int
    protocol: int
    def __init__(self, source: _Optional[str] = ..., source_port: _Optional[int] = ..., destination: _Optional[str] = ..., destination_port: _Optional[int] = ..., protocol: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("interface", "process_id", "slot_ns", "slot", "flows", "carriers", "controls", "scheduling", "enforcer", "enforcer_reason", "carrier_bytes", "skews")
    class CarriersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SkewsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Skew
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Skew, _Mapping]] = ...) -> None: ...
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_NS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    CARRIERS_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    ENFORCER_FIELD_NUMBER: _ClassVar[int]
    ENFORCER_REASON_FIELD_NUMBER: _ClassVar[int]
    CARRIER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKEWS_FIELD_NUMBER: _ClassVar[int]
    interface: str
    process_id: int
    slot_ns: int
    slot: int
    flows: int
    carriers: _containers.ScalarMap[str, int]
    controls: _containers.RepeatedScalarFieldContainer[str]
    scheduling: Scheduling
    enforcer: str
    enforcer_reason: str
    carrier_bytes: int
    skews: _containers.MessageMap[str, Skew]
    def __init__(self, interface: _Optional[str] = ..., process_id: _Optional[int] = ..., slot_ns: _Optional[int] = ..., slot: _Optional[int] = ..., flows: _Optional[int] = ..., carriers: _Optional[_Mapping[str, int]] = ..., controls: _Optional[_Iterable[str]] = ..., scheduling: _Optional[_Union[Scheduling, _Mapping]] = ..., enforcer: _Optional[str] = ..., enforcer_reason: _Optional[str] = ..., carrier_bytes: _Optional[int] = ..., skews: _Optional[_Mapping[str, Skew]] = ...) -> None: ...

class Skew(_message.Message):
    __slots__ = ("low_ms", "high_ms")
    LOW_MS_FIELD_NUMBER: _ClassVar[int]
    HIGH_MS_FIELD_NUMBER: _ClassVar[int]
    low_ms: float
    high_ms: float
    def __init__(self, low_ms: _Optional[float] = ..., high_ms: _Optional[float] = ...) -> None: ...

class Scheduling(_message.Message):
    __slots__ = ("counts", "events", "negotiation_ms", "decision_ms", "late_ms", "link_s")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LinkSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEGOTIATION_MS_FIELD_NUMBER: _ClassVar[int]
    DECISION_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    LINK_S_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.ScalarMap[str, int]
    events: _containers.RepeatedScalarFieldContainer[str]
    negotiation_ms: _containers.RepeatedScalarFieldContainer[float]
    decision_ms: _containers.RepeatedScalarFieldContainer[float]
    late_ms: _containers.RepeatedScalarFieldContainer[float]
    link_s: _containers.ScalarMap[str, float]
    def __init__(self, counts: _Optional[_Mapping[str, int]] = ..., events: _Optional[_Iterable[str]] = ..., negotiation_ms: _Optional[_Iterable[float]] = ..., decision_ms: _Optional[_Iterable[float]] = ..., late_ms: _Optional[_Iterable[float]] = ..., link_s: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SetScheduleRequest(_message.Message):
    __slots__ = ("flow", "slot", "rates_mbps")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    RATES_MBPS_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    slot: int
    rates_mbps: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ..., slot: _Optional[int] = ..., rates_mbps: _Optional[_Iterable[float]] = ...) -> None: ...

class SetScheduleResponse(_message.Message):
    __slots__ = ("number", "slot")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    number: int
    slot: int
    def __init__(self, number: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class ClearScheduleRequest(_message.Message):
    __slots__ = ("flow",)
    FLOW_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ...) -> None: ...

class ClearScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchFeedbackRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("flow", "base_slot", "hops", "bytes_received", "bytes_onward", "slots")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    BASE_SLOT_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_ONWARD_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    base_slot: int
    hops: int
    bytes_received: int
    bytes_onward: int
    slots: _containers.RepeatedCompositeFieldContainer[PathSlot]
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ..., base_slot: _Optional[int] = ..., hops: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_onward: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[PathSlot, _Mapping]]] = ...) -> None: ...

class PathSlot(_message.Message):
    __slots__ = ("slot", "load_mbps", "headroom_mbps")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LOAD_MBPS_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_MBPS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    load_mbps: float
    headroom_mbps: float
    def __init__(self, slot: _Optional[int] = ..., load_mbps: _Optional[float] = ..., headroom_mbps: _Optional[float] = ...) -> None: ...

class WatchFlowsRequest(_message.Message):
    __slots__ = ("bin_ms",)
    BIN_MS_FIELD_NUMBER: _ClassVar[int]
    bin_ms: float
    def __init__(self, bin_ms: _Optional[float] = ...) -> None: ...

class FlowCounts(_message.Message):
    __slots__ = ("bin_ns", "first_bin", "end_bin", "flows")
    BIN_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BIN_FIELD_NUMBER: _ClassVar[int]
    END_BIN_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    bin_ns: int
    first_bin: int
    end_bin: int
    flows: _containers.RepeatedCompositeFieldContainer[CountedFlow]
    def __init__(self, bin_ns: _Optional[int] = ..., first_bin: _Optional[int] = ..., end_bin: _Optional[int] = ..., flows: _Optional[_Iterable[_Union[CountedFlow, _Mapping]]] = ...) -> None: ...

class CountedFlow(_message.Message):
    __slots__ = ("flow", "mark", "job", "bins", "bytes", "begins")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    mark: int
    job: str
    bins: _containers.RepeatedScalarFieldContainer[int]
    bytes: _containers.RepeatedScalarFieldContainer[int]
    begins: _containers.RepeatedCompositeFieldContainer[IterationBegin]
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ..., mark: _Optional[int] = ..., job: _Optional[str] = ..., bins: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Iterable[int]] = ..., begins: _Optional[_Iterable[_Union[IterationBegin, _Mapping]]] = ...) -> None: ...

class IterationBegin(_message.Message):
    __slots__ = ("iteration", "time_ns")
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    time_ns: int
    def __init__(self, iteration: _Optional[int] = ..., time_ns: _Optional[int] = ...) -> None: ...

class Params(_message.Message):
    __slots__ = ("slope", "intercept", "total_bytes", "gap_ms", "scale_decrease")
    SLOPE_FIELD_NUMBER: _ClassVar[int]
    INTERCEPT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GAP_MS_FIELD_NUMBER: _ClassVar[int]
    SCALE_DECREASE_FIELD_NUMBER: _ClassVar[int]
    slope: float
    intercept: float
    total_bytes: int
    gap_ms: float
    scale_decrease: bool
    def __init__(self, slope: _Optional[float] = ..., intercept: _Optional[float] = ..., total_bytes: _Optional[int] = ..., gap_ms: _Optional[float] = ..., scale_decrease: _Optional[bool] = ...) -> None: ...

class SetJobRequest(_message.Message):
    __slots__ = ("job", "params")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    job: int
    params: Params
    def __init__(self, job: _Optional[int] = ..., params: _Optional[_Union[Params, _Mapping]] = ...) -> None: ...

class SetJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: int
    def __init__(self, job: _Optional[int] = ...) -> None: ...

class RemoveJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Jobs(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job", "params", "states")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    job: int
    params: Params
    states: _containers.RepeatedCompositeFieldContainer[JobState]
    def __init__(self, job: _Optional[int] = ..., params: _Optional[_Union[Params, _Mapping]] = ..., states: _Optional[_Iterable[_Union[JobState, _Mapping]]] = ...) -> None: ...

class JobState(_message.Message):
    __slots__ = ("netns", "iteration", "bytes", "last_bytes", "learned_total_bytes", "learned_gap_ms")
    NETNS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEARNED_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEARNED_GAP_MS_FIELD_NUMBER: _ClassVar[int]
    netns: int
    iteration: int
    bytes: int
    last_bytes: int
    learned_total_bytes: int
    learned_gap_ms: float
    def __init__(self, netns: _Optional[int] = ..., iteration: _Optional[int] = ..., bytes: _Optional[int] = ..., last_bytes: _Optional[int] = ..., learned_total_bytes: _Optional[int] = ..., learned_gap_ms: _Optional[float] = ...) -> None: ...

class SetPaceRequest(_message.Message):
    __slots__ = ("job", "pace")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    job: str
    pace: Pace
    def __init__(self, job: _Optional[str] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("anchor_ns", "period_ns", "bound_ns")
    ANCHOR_NS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    BOUND_NS_FIELD_NUMBER: _ClassVar[int]
    anchor_ns: int
    period_ns: int
    bound_ns: int
    def __init__(self, anchor_ns: _Optional[int] = ..., period_ns: _Optional[int] = ..., bound_ns: _Optional[int] = ...) -> None: ...

class SetPaceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClearPaceRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ClearPaceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListStartsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Starts(_message.Message):
    __slots__ = ("now_ns", "processes")
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    now_ns: int
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStarts]
    def __init__(self, now_ns: _Optional[int] = ..., processes: _Optional[_Iterable[_Union[ProcessStarts, _Mapping]]] = ...) -> None: ...

class ProcessStarts(_message.Message):
    __slots__ = ("job", "process_id", "paced", "starts", "started_ns", "waited_ms", "shifts", "corrections", "recent")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    PACED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    SHIFTS_FIELD_NUMBER: _ClassVar[int]
    CORRECTIONS_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    job: str
    process_id: int
    paced: bool
    starts: int
    started_ns: int
    waited_ms: float
    shifts: int
    corrections: int
    recent: _containers.RepeatedCompositeFieldContainer[Start]
    def __init__(self, job: _Optional[str] = ..., process_id: _Optional[int] = ..., paced: _Optional[bool] = ..., starts: _Optional[int] = ..., started_ns: _Optional[int] = ..., waited_ms: _Optional[float] = ..., shifts: _Optional[int] = ..., corrections: _Optional[int] = ..., recent: _Optional[_Iterable[_Union[Start, _Mapping]]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("number", "lasted_ms", "drift_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LASTED_MS_FIELD_NUMBER: _ClassVar[int]
    DRIFT_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    lasted_ms: float
    drift_ms: float
    def __init__(self, number: _Optional[int] = ..., lasted_ms: _Optional[float] = ..., drift_ms: _Optional[float] = ...) -> None: ...

class ListTransfersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Transfers(_message.Message):
    __slots__ = ("transfers",)
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    transfers: _containers.RepeatedCompositeFieldContainer[Transfer]
    def __init__(self, transfers: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("flow", "job", "role", "iteration", "total", "ready", "done", "carried")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    job: str
    role: int
    iteration: int
    total: int
    ready: int
    done: int
    carried: int
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ..., job: _Optional[str] = ..., role: _Optional[int] = ..., iteration: _Optional[int] = ..., total: _Optional[int] = ..., ready: _Optional[int] = ..., done: _Optional[int] = ..., carried: _Optional[int] = ...) -> None: ...

class SetRatesRequest(_message.Message):
    __slots__ = ("lease_ms", "rates")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    lease_ms: float
    rates: _containers.RepeatedCompositeFieldContainer[FlowRate]
    def __init__(self, lease_ms: _Optional[float] = ..., rates: _Optional[_Iterable[_Union[FlowRate, _Mapping]]] = ...) -> None: ...

class FlowRate(_message.Message):
    __slots__ = ("flow", "mbps")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    MBPS_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    mbps: float
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ..., mbps: _Optional[float] = ...) -> None: ...

class SetRatesResponse(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedRate]
    def __init__(self, refused: _Optional[_Iterable[_Union[RefusedRate, _Mapping]]] = ...) -> None: ...

class RefusedRate(_message.Message):
    __slots__ = ("flow", "reason")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    reason: str
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...
