"""Generates arrival and the traffic manager, around parser and pipelines, after BMv2's simple_switch.cpp."""

from __future__ import annotations

from softswitch.compiler.codegen.actions import Actions
from softswitch.compiler.codegen.expressions import Expressions
from softswitch.compiler.codegen.fields import mask
from softswitch.compiler.codegen.parser import Parser
from softswitch.compiler.layout import Layout
from softswitch.compiler.program import (
    Unsupported,
    fields_read,
)


class Traffic:
    """Generates the program's entry point."""

    def __init__(self, layout: Layout, actions: Actions, parser: Parser, drop_port: int) -> None:
        self.layout = layout
        self.program = layout.program
        self.actions = actions
        self.parser = parser
        self.drop_port = drop_port
        self.expressions = Expressions(layout)
        self.read = fields_read(self.program)
        ops = {p.op for a in self.program.actions for p in a.primitives}
        mcast = self.program.standard("intrinsic_metadata.mcast_grp")
        self.multicasts = mcast is not None and any(
            p.args and p.args[0] == mcast
            for a in self.program.actions
            for p in a.primitives
            if p.op == "assign"
        )
        self.clones_ingress = "clone_ingress_pkt_to_egress" in ops
        self.clones_egress = "clone_egress_pkt_to_egress" in ops
        self.resubmits = "resubmit" in ops
        self.recirculates = "recirculate" in ops
        self.truncates = "truncate" in ops
        self.asserts = bool(ops & {"assert", "assume"})
        self.learns = "generate_digest" in ops and bool(self.program.learn_lists)

    @property
    def reinjects(self) -> bool:
        return (
            self.multicasts
            or self.clones_ingress
            or self.clones_egress
            or self.resubmits
            or self.recirculates
        )

    def _set(self, name: str, code: str, *, always: bool = False) -> list[str]:
        """Return C that sets a standard field, if the program has it and reads it."""
        ref = self.program.standard(name)
        if ref is None or not (always or ref in self.read):
            return []
        bits = self.program.field_type(ref).bits
        if bits > 64:
            raise Unsupported(f"softswitch cannot run {name} of {bits} bits")
        if bits not in (8, 16, 32, 64):
            code = f"({code}) & {mask(bits)}"
        return [self.expressions.store(ref, code)]

    def _get(self, name: str) -> str:
        ref = self.program.standard(name)
        if ref is None:
            raise Unsupported(
                f"softswitch cannot run a program without {name}: it was not compiled for v1model"
            )
        return self.expressions.reduced(ref, min(64, self.program.field_type(ref).bits))

    # --- the entry point ---

    def entry(self) -> str:
        lines = [
            'SEC("tc")',
            "int softswitch(struct __sk_buff *skb)",
            "{",
            "\tu32 zero = 0, kind = ARRIVAL, port, replica = 0;",
            "\tstruct state *st = bpf_map_lookup_elem(&states, &zero);",
            "\tif (!st)",
            "\t\treturn TC_ACT_SHOT;",
            "\tstruct phv *phv = &st->phv;",
            "\tst->have = CTX(skb, len);",
            "\tst->now = 0;",
            "\tif (netless) {",
            "\t\tkind = CTX(skb, cb[0]) & 0xff;",
            "\t\tport = CTX(skb, cb[0]) >> 8;",
            "\t\tif (CTX(skb, cb[4]) < st->have)",
            "\t\t\tst->have = CTX(skb, cb[4]);",
            "\t} else {",
            "\t\tint found = port_of(skb);",
            "\t\tport = found;",
            "\t\tif (found < 0) {",
            "\t\t\ttally(NOT_A_PORT);",
            "\t\t\treturn TC_ACT_SHOT;",
            "\t\t}",
            "\t\tif (found == LOOP_PORT) {",
            "\t\t\tkind = CTX(skb, cb[0]) & 0xff;",
            "\t\t\tport = CTX(skb, cb[0]) >> 8;",
            "\t\t\tif (kind == ARRIVAL || CTX(skb, cb[4]) != loop_secret)",
            "\t\t\t\treturn TC_ACT_SHOT;",
            "\t\t}",
            "\t\tif (CTX(skb, vlan_present)) {",
            "\t\t\tif (restore_vlan(skb)) {",
            "\t\t\t\ttally(DROPPED_RESIZE);",
            "\t\t\t\treturn TC_ACT_SHOT;",
            "\t\t\t}",
            "\t\t\tst->have = CTX(skb, len);",
            "\t\t}",
            "\t}",
        ]
        body = [*self._reentry(), *self._arrival(), *self._ingress(), *self._egress()]
        lines += [f"\t{line}" for line in body]
        return "\n".join([*lines, "}"])

    def _clear(self) -> list[str]:
        return ["CLEAR_TO(phv, headers);", "phv->truncated = ~0U;"]

    def _clear_metadata(self) -> list[str]:
        """Return C that sets up a clone: the packet's headers, and empty metadata."""
        lines = ["CLEAR_TO(phv, packet);"]
        for header in self.layout.copies:
            slot = self.layout.slots[header.name]
            lines += [f"{slot.valid} = 0;", f"phv->varbit[{slot.index}] = 0;"]
        return lines

    def _reentry(self) -> list[str]:
        """Return C that restores the stashed state of a reinjected packet."""
        if not self.reinjects:
            return ["if (kind != ARRIVAL)", "\treturn TC_ACT_SHOT;"]
        lines = [
            "const struct stash *old = 0;",
            "u32 instance = INSTANCE_NORMAL;",
            "if (kind != ARRIVAL) {",
            "\tu32 at = CTX(skb, cb[1]), tag = CTX(skb, cb[2]);",
            "\treplica = CTX(skb, cb[3]);",
            "\told = bpf_map_lookup_elem(&stashes, &at);",
            "\tif (!old || old->tag != tag) {",
            "\t\ttally(DROPPED_STASH);",
            "\t\treturn TC_ACT_SHOT;",
            "\t}",
        ]
        if self.multicasts or self.clones_egress:
            lines += [
                "\tif (kind == REPLICA || kind == EGRESS_CLONE) {",
                "\t\tcopy_many(phv, &old->phv, sizeof(struct phv) / 8);",
                "\t\tbarrier();",
                "\t\tif (old->tag != tag) {",
                "\t\t\ttally(DROPPED_STASH);",
                "\t\t\treturn TC_ACT_SHOT;",
                "\t\t}",
                "\t\tphv->truncated = ~0U;",  # BMv2's copies are whole
                "\t\tif (kind == EGRESS_CLONE) {",
                "\t\t\tu32 list = phv->clone_list;",
                *(f"\t\t\t{x}" for x in self._clear_metadata()),
                "\t\t\tpreserve(phv, &old->phv, list);",
                "\t\t\tif (old->phv.cut)",
                "\t\t\t\tphv->truncated = old->phv.cut;",
                *(
                    f"\t\t\t{x}"
                    for x in self._set("standard_metadata.instance_type", "INSTANCE_EGRESS_CLONE")
                ),
                "\t\t} else {",
                "\t\t\tCLEAR(phv, control, packet);",
                "\t\t}",
                "\t\tgoto egress;",
                "\t}",
            ]
        return [*lines, "}"]

    def _arrival(self) -> list[str]:
        buffer = self.parser.buffer_bytes
        lines = [
            *self._clear(),
            "phv->length = phv->arrived = st->have;",
            "phv->segments = CTX(skb, gso_segs) > 1 ? CTX(skb, gso_segs) : 1;",
        ]
        if self.reinjects:
            lines += [
                "if (kind == ARRIVAL) {",
                *(f"\t{x}" for x in self._set("standard_metadata.ingress_port", "port")),
                *(f"\t{x}" for x in self._set("intrinsic_metadata.ingress_global_timestamp", "time_us(st)")),
                "} else if (kind != INGRESS_CLONE) {",
                "\tinstance = kind == RESUBMITTED ? INSTANCE_RESUBMITTED : INSTANCE_RECIRCULATED;",
                "\tpreserve(phv, &old->phv,",
                "\t\t kind == RESUBMITTED ? old->phv.resubmit_list : old->phv.recirculate_list);",
                *(f"\t{x}" for x in self._set("standard_metadata.instance_type", "instance")),
                "}",
                *self._set("standard_metadata.packet_length", "phv->length"),
            ]
        else:
            lines += [
                *self._set("standard_metadata.ingress_port", "port"),
                *self._set("intrinsic_metadata.ingress_global_timestamp", "time_us(st)"),
                *self._set("standard_metadata.packet_length", "phv->length"),
            ]
        lines += [
            "{",
            f"\tu32 bytes = st->have < {buffer} ? st->have : {buffer};",
            f"\tif (bytes && load_bytes(skb, 0, st->buffer, bytes, {buffer}))",
            "\t\treturn TC_ACT_SHOT;",
            "}",
            "if (parse(skb, st)) {",
            "\ttally(PARSER_TOO_DEEP);",
            "\treturn TC_ACT_SHOT;",
            "}",
        ]
        lines += [
            "/* the kernel clears gso_segs when a packet shrinks */",
            "if (CTX(skb, gso_size) && !CTX(skb, gso_segs))",
            "\tphv->segments = 1 + (st->have - phv->parsed) / CTX(skb, gso_size);",
        ]
        if self.parser.reorders:
            lines.append("phv->dirty = 1;")
        lines.append("verify_checksums(skb, st);")
        lines += self._set("standard_metadata.checksum_error", "phv->checksum_error")
        if self.clones_ingress:
            lines += [
                "if (kind == INGRESS_CLONE) {",
                *(f"\t{x}" for x in self._clear_metadata()),
                "\tpreserve(phv, &old->phv, old->phv.clone_list);",
                *(f"\t{x}" for x in self._set("standard_metadata.instance_type", "INSTANCE_INGRESS_CLONE")),
                "\tphv->arrived = old->phv.arrived;",
                "\tif (old->phv.cut)",
                "\t\tphv->truncated = old->phv.cut;",
                "\tgoto egress;",
                "}",
            ]
        return lines

    def _ingress(self) -> list[str]:
        lines = ["ingress(skb, st);", "phv->exits = 0;"]
        if self.asserts:
            lines += self._failed()
        if self.clones_ingress:
            lines += [
                "if (phv->clone_session) {",
                "\treplicate(skb, st, 0x80000000 | (phv->clone_session & 0x7fff), INGRESS_CLONE);",
                "\tphv->clone_session = phv->clone_list = 0;",
                "}",
            ]
        if self.learns:
            lines += ["if (phv->digest_list)", "\tlearn(st);"]
        if self.resubmits:
            lines += [
                "if (phv->resubmit_list) {",
                "\tu32 slot, tag;",
                "\tif (stash(st, &slot, &tag))",
                "\t\treturn TC_ACT_SHOT;",
                "\treturn again(skb, st, RESUBMITTED, 0, 0, slot, tag, 1);",
                "}",
            ]
        if self.multicasts:
            lines += [
                f"u32 group = {self._get('intrinsic_metadata.mcast_grp')};",
                "if (group) {",
                *(f"\t{x}" for x in self._set("standard_metadata.instance_type", "INSTANCE_REPLICATION")),
                "\treplicate(skb, st, group, REPLICA);",
                "\treturn TC_ACT_SHOT;",
                "}",
            ]
        return [
            *lines,
            f"port = {self._get('standard_metadata.egress_spec')};",
            f"if (port == {self.drop_port}) {{",
            "\ttally(DROPPED_INGRESS);",
            "\treturn TC_ACT_SHOT;",
            "}",
            *self._set("standard_metadata.instance_type", "INSTANCE_NORMAL"),
        ]

    def _failed(self) -> list[str]:
        return ["if (phv->failed) {", "\ttally(DROPPED_ASSERTION);", "\treturn TC_ACT_SHOT;", "}"]

    def _egress(self) -> list[str]:
        names = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")
        queueing = all(self.program.standard(f"queueing_metadata.{n}") is not None for n in names)
        lines = [
            "egress: __attribute__((unused))",
            "{",
            "\tu64 delay;",
            "\ts64 depth = queue_enter(skb, st, port, phv->length, &delay);",
            "\tif (depth < 0) {",
            "\t\ttally(DROPPED_QUEUE_FULL);",
            "\t\tOPAQUE(port);",
            "\t\tif (port < MOST_PORTS) {",
            "\t\t\t__sync_fetch_and_add(&shared.lost[port].packets, 1);",
            "\t\t\t__sync_fetch_and_add(&shared.lost[port].bytes, phv->length);",
            "\t\t}",
            "\t\treturn TC_ACT_SHOT;",
            "\t}",
        ]
        if queueing:
            lines += [
                *(f"\t{x}" for x in self._set("queueing_metadata.enq_timestamp", "time_us(st)")),
                *(f"\t{x}" for x in self._set("queueing_metadata.enq_qdepth", "depth")),
                *(f"\t{x}" for x in self._set("queueing_metadata.deq_timedelta", "delay / 1000")),
                *(f"\t{x}" for x in self._set("queueing_metadata.deq_qdepth", "depth")),
            ]
        lines += [
            "}",
            *self._set("intrinsic_metadata.egress_global_timestamp", "time_us(st)"),
            *self._set("intrinsic_metadata.egress_rid", "replica"),
            *self._set("standard_metadata.egress_port", "port"),
            *self._set("standard_metadata.egress_spec", "0", always=True),
            *self._set("standard_metadata.packet_length", "phv->length"),
            "egress(skb, st);",
        ]
        if self.asserts:
            lines += self._failed()
        if self.clones_egress:
            lines += [
                "if (phv->clone_session)",
                "\treplicate(skb, st, 0x80000000 | (phv->clone_session & 0x7fff), EGRESS_CLONE);",
            ]
        lines += [
            f"if ({self._get('standard_metadata.egress_spec')} == {self.drop_port}) {{",
            "\ttally(DROPPED_EGRESS);",
            "\treturn TC_ACT_SHOT;",
            "}",
            "update_checksums(skb, st);",
            *[line for p in self.program.deparse_calls for line in self.actions.inline(p)],
        ]
        if self.recirculates:
            lines += [
                "if (phv->recirculate_list) {",
                "\tu32 slot, tag;",
                "\tdeparse(skb, st);",
                "\tif (stash(st, &slot, &tag))",
                "\t\treturn TC_ACT_SHOT;",
                "\tif (!netless && rewrite(skb, st, ~0U)) {",
                "\t\ttally(DROPPED_RESIZE);",
                "\t\treturn TC_ACT_SHOT;",
                "\t}",
                "\treturn again(skb, st, RECIRCULATED, 0, 0, slot, tag, 1);",
                "}",
            ]
        return [
            *lines,
            "if (!phv->dirty)",
            "\treturn send(skb, st, port, 0);",
            "deparse(skb, st);",
            "return send(skb, st, port, 1);",
        ]
