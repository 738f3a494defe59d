"""What a host's flows have sent, as messages."""

from __future__ import annotations

from typing import Any

from hostbpf.counting import Counts, FlowCount
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.calls import flow_of, message_of


def counts_message(counts: Counts) -> Any:
    """The message with `counts`."""
    return pb.FlowCounts(
        bin_ns=counts.bin_ns,
        first_bin=counts.first,
        end_bin=counts.end,
        flows=[
            pb.CountedFlow(
                flow=message_of(flow),
                mark=count.mark,
                job=count.job,
                bins=count.sent.keys(),
                bytes=count.sent.values(),
                begins=[
                    pb.IterationBegin(iteration=number, time_ns=time_ns)
                    for number, time_ns in count.begins.items()
                ],
            )
            for flow, count in counts.flows.items()
        ],
    )


def counts_of(message: Any) -> Counts:
    """The counts that a message has."""
    flows = {
        flow_of(each.flow): FlowCount(
            each.mark,
            each.job,
            dict(zip(each.bins, each.bytes, strict=True)),
            {begin.iteration: begin.time_ns for begin in each.begins},
        )
        for each in message.flows
    }
    return Counts(message.bin_ns, message.first_bin, message.end_bin, flows)
