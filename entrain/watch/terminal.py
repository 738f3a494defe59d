"""`entrain watch` on a terminal, with Textual."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from entrain.watch.source import JobView, Latest, LinkView, Snapshot, SwitchView
from machine.errors import EntrainError
from machine.palette import job as job_colour

MEASURED, PLANNED = "#4DA3DC", "#D55E00"
"""Colours of what is measured and what is planned; the page has the same."""
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDE = 100
"""Columns from which links also show how they were used."""

Cell = str | float | int | Text | None


@dataclass(frozen=True)
class Column:
    """A column: its heading, the value that rows are sorted by, and how it is shown."""

    heading: str
    value: Callable[[Snapshot, str], Cell]
    show: Callable[[Cell], Text] = lambda value: plain(value)


@dataclass(frozen=True)
class View:
    """One kind of thing: its name, the names of its rows, its columns, and how one of them is told."""

    name: str
    rows: Callable[[Snapshot], Sequence[str]]
    columns: Callable[[int], Sequence[Column]]
    tell: Callable[[Snapshot, str], Text] | None = None
    remark: Callable[[Snapshot], str] = lambda _: ""


def plain(value: Cell) -> Text:
    """Return a cell: numbers on the right, with one digit; `-` where there is none."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", justify="right", style="dim")
    if isinstance(value, str):
        return Text(value)
    return Text(f"{value:.1f}" if isinstance(value, float) else str(value), justify="right")


def spark(values: Sequence[float | None], top: float, style: str) -> Text:
    """Return a bar per value, as high as its part of `top`; a space where there is none or next to none."""
    bars = ""
    for value in values:
        part = 0.0 if value is None or not top else min(value / top, 1.0)
        bars += " " if part < 0.005 else _LEVELS[min(int(part * len(_LEVELS)), len(_LEVELS) - 1)]
    return Text(bars, style=style)


def percent(value: Cell) -> Text:
    """Return a part as percent; a nearly full link stands out, also without colour."""
    if not isinstance(value, float):
        return plain(None)
    return Text(f"{value:.0%}", justify="right", style="bold reverse" if value > 0.9 else "")


def times(value: Cell) -> Text:
    """Return a ratio, such as `1.25x`."""
    return Text(f"{value:.2f}x", justify="right") if isinstance(value, float) else plain(None)


# -- what there is to see


def _link(snapshot: Snapshot, name: str) -> LinkView:
    return next(link for link in snapshot.links if link.name == name)


def _job(snapshot: Snapshot, name: str) -> JobView:
    return next(job for job in snapshot.jobs if job.name == name)


def _switch(snapshot: Snapshot, name: str) -> SwitchView:
    return next(switch for switch in snapshot.switches if switch.name == name)


def _slots(snapshot: Snapshot, name: str) -> Text:
    link = _link(snapshot, name)
    return spark(link.slots, link.capacity_mbps, PLANNED)


def _past(snapshot: Snapshot, name: str) -> Text:
    samples = snapshot.history.get(name, ())[-30:]
    return spark([each.measured_mbps for each in samples], _link(snapshot, name).capacity_mbps, MEASURED)


def _kilobytes(held: int | None) -> float | None:
    return None if held is None else held / 1e3


def _by_queues(snapshot: Snapshot, switch: str) -> dict[str, int]:
    """Return the packets that a switch's full queues have dropped, by link, where any."""
    return {
        link.name: link.dropped_packets
        for link in snapshot.links
        if link.source == switch and link.dropped_packets
    }


def _link_columns(width: int) -> Sequence[Column]:
    columns = [
        Column("link", lambda _, name: name),
        Column("used", lambda s, name: _link(s, name).used, percent),
        Column("Mbit/s", lambda s, name: _link(s, name).measured_mbps),
        Column("planned", lambda s, name: _link(s, name).planned_mbps),
        Column("next slots", _slots),
    ]
    if width >= _WIDE:
        columns.insert(4, Column("capacity", lambda s, name: _link(s, name).capacity_mbps))
        columns.insert(5, Column("queue KB", lambda s, name: _kilobytes(_link(s, name).backlog_bytes)))
        columns.insert(6, Column("dropped", lambda s, name: _link(s, name).dropped_packets))
        columns.insert(7, Column("used before", _past))
    return columns


def _job_columns(width: int) -> Sequence[Column]:
    def done(snapshot: Snapshot, name: str) -> Cell:
        job = _job(snapshot, name)
        return None if job.done is None else f"{job.done}" + (f"/{job.iterations}" if job.iterations else "")

    def where(snapshot: Snapshot, name: str) -> Cell:
        job = _job(snapshot, name)
        return job.note or " ".join(job.hosts)

    columns = [
        Column("job", lambda s, name: Text(name, style=job_style(s, name))),
        Column("state", lambda s, name: _job(s, name).state),
        Column("iteration", done),
        Column("ms", lambda s, name: _job(s, name).iteration_ms),
        Column("over ideal", lambda s, name: _job(s, name).over_ideal, times),
    ]
    if width >= _WIDE:
        columns.append(
            Column("hosts, or why it waits", lambda s, n: _job(s, n).note or " ".join(_job(s, n).hosts))
        )
    return columns


def _switch_columns(_: int) -> Sequence[Column]:
    return [
        Column("switch", lambda _, name: name),
        Column("target", lambda s, name: _switch(s, name).target),
        Column("entries", lambda s, name: sum(_switch(s, name).tables.values())),
        Column("dropped", lambda s, n: sum([*_switch(s, n).drops.values(), *_by_queues(s, n).values()])),
        Column("status", lambda s, name: _switch(s, name).status),
    ]


def _agent_columns(_: int) -> Sequence[Column]:
    def of(snapshot: Snapshot, name: str) -> dict[str, Cell]:
        return vars(next(agent for agent in snapshot.agents if agent.host == name))

    return [
        Column("host", lambda _, name: name),
        Column("flows", lambda s, name: of(s, name)["flows"]),
        Column("negotiation ms", lambda s, name: of(s, name)["negotiation_ms"]),
        Column("decision ms", lambda s, name: of(s, name)["decision_ms"]),
        Column("state", lambda s, name: of(s, name)["problem"] or of(s, name)["enforcer"] or "answers"),
    ]


def _circuit_columns(_: int) -> Sequence[Column]:
    def of(snapshot: Snapshot, name: str) -> dict[str, Cell]:
        return vars(next(each for each in snapshot.circuits if f"{each.a}={each.b}" == name))

    return [
        Column("port", lambda s, name: of(s, name)["a"]),
        Column("port", lambda s, name: of(s, name)["b"]),
        Column("job", lambda s, name: of(s, name)["job"] or "-"),
    ]


def _event_columns(_: int) -> Sequence[Column]:
    def of(snapshot: Snapshot, name: str) -> tuple[str, str]:
        event = snapshot.events[int(name)]
        return time.strftime("%H:%M:%S", time.localtime(event.unix_s)), event.text

    return [
        Column("time", lambda s, name: of(s, name)[0]),
        Column("what", lambda s, name: of(s, name)[1]),
    ]


def job_style(snapshot: Snapshot, name: str) -> str:
    """Return the colour of a job, by its place among the jobs."""
    return job_colour([job.name for job in snapshot.jobs].index(name))


def tell_link(snapshot: Snapshot, name: str) -> Text:
    """Return all about one link."""
    link = _link(snapshot, name)
    text = Text(f"{name}, {link.capacity_mbps:g} Mbit/s\n\n", style="bold")
    text.append("measured  ", style="not bold " + MEASURED)
    text.append(f"{_mbps(link.measured_mbps)}\n", style="not bold")
    text.append("planned   ", style="not bold " + PLANNED)
    text.append(f"{_mbps(link.planned_mbps)}\n", style="not bold")
    if link.backlog_bytes is not None:
        text.append(f"queue     {link.backlog_bytes / 1e3:.1f} KB, ", style="not bold")
        text.append(f"{link.dropped_packets} packets dropped\n", style="not bold")
    text.append("\n")
    samples = snapshot.history.get(name, ())[-50:]
    for heading, values, style in (
        ("measured", [each.measured_mbps for each in samples], MEASURED),
        ("planned", [each.planned_mbps for each in samples], PLANNED),
    ):
        text.append(f"{heading:9} ", style="not bold")
        text.append_text(spark(values, link.capacity_mbps, "not bold " + style))
        text.append("\n")
    text.append(f"\nplanned from now, by slot of {snapshot.slot_ms:g} ms\n", style="not bold")
    for later, mbps in enumerate(link.slots):
        text.append(f"  +{later:<3}{mbps:8.1f} Mbit/s  ", style="not bold")
        text.append("█" * round(20 * min(mbps / link.capacity_mbps, 1)) + "\n", style="not bold " + PLANNED)
    if not link.slots:
        text.append("  nothing: switches plan only what they send\n", style="not bold")
    return text


def tell_job(snapshot: Snapshot, name: str) -> Text:
    """Return all about one job."""
    job = _job(snapshot, name)
    lines = [f"{name}: {job.state}{', ' + job.note if job.note else ''}", ""]
    lines.append(f"hosts       {' '.join(job.hosts) or '-'}")
    if job.done is not None:
        lines.append(f"iterations  {job.done}" + (f" of {job.iterations}" if job.iterations else ""))
    if job.iteration_ms is not None:
        lines.append(f"iteration   {job.iteration_ms:.1f} ms (median of the latest ten)")
    if job.ideal_ms:
        how = "measured alone" if job.ideal == "alone" else "computed bound"
        lines.append(f"ideal       {job.ideal_ms:.1f} ms ({how})")
    if job.over_ideal is not None:
        lines.append(f"over ideal  {job.over_ideal:.2f}x")
    if job.phases:
        lines += ["", "latest iterations of its first rank", "     number  compute ms  communicate ms"]
        lines += [
            f"  {phase.number:9d}{1e3 * (phase.compute_end_s - phase.start_s):12.1f}"
            f"{1e3 * (phase.end_s - phase.compute_end_s):16.1f}"
            for phase in job.phases[-12:]
        ]
    return Text("\n".join(lines))


def tell_switch(snapshot: Snapshot, name: str) -> Text:
    """Return all about one switch."""
    switch = _switch(snapshot, name)
    lines = [f"{name}: {switch.role} ({switch.target}), {switch.status}", "", "entries by table"]
    lines += [f"  {table:34}{count:6d}" for table, count in switch.tables.items()]
    lines += ["", "packets dropped by a rule of the network"]
    lines += [f"  {reason:34}{count:6d}" for reason, count in switch.drops.items() if count] or ["  none"]
    lines += ["", "packets dropped because a queue was full"]
    lines += [f"  {link:34}{count:6d}" for link, count in _by_queues(snapshot, name).items()] or ["  none"]
    lines += ["", "port    received MB      sent MB  packets sent"]
    lines += [
        f"{port:4d}{counted.received_bytes / 1e6:15.3f}{counted.sent_bytes / 1e6:13.3f}"
        f"{counted.sent_packets:14d}"
        for port, counted in switch.ports.items()
    ]
    return Text("\n".join(lines))


def _mbps(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} Mbit/s"


def _no_agents(snapshot: Snapshot) -> str:
    if snapshot.agents:
        return ""
    if snapshot.run:
        return "none: this run's policy has no agents"
    return "none: `entrain-agent` starts one on a host"


def _no_jobs(snapshot: Snapshot) -> str:
    return (
        ""
        if snapshot.jobs or snapshot.run
        else "none: `entrain run`, `entrain jobs run` and `entrain submit` start jobs"
    )


VIEWS = (
    View("links", lambda s: [link.name for link in s.links], _link_columns, tell_link),
    View("jobs", lambda s: [job.name for job in s.jobs], _job_columns, tell_job, _no_jobs),
    View("switches", lambda s: [switch.name for switch in s.switches], _switch_columns, tell_switch),
    View("agents", lambda s: [agent.host for agent in s.agents], _agent_columns, None, _no_agents),
    View(
        "circuits",
        lambda s: [f"{each.a}={each.b}" for each in s.circuits],
        _circuit_columns,
        None,
        lambda s: "" if s.circuits else "none: no optical circuit switch",
    ),
    View("events", lambda s: [str(number) for number in range(len(s.events))][::-1], _event_columns),
)


def headline(snapshot: Snapshot) -> Text:
    """Return what is watched, in one line, and below it what cannot be read or shown."""
    what = f"run {snapshot.run}" if snapshot.run else f"network {snapshot.network}"
    how = f"program {snapshot.program}" if snapshot.lacking else f"{snapshot.routing} routing"
    text = Text(f"{what}, {how}, slot {snapshot.slot}", overflow="ellipsis")
    text.no_wrap = not (snapshot.problem or snapshot.lacking)
    if snapshot.problem:
        text.append(f"\n{snapshot.problem}", style="bold")
    elif snapshot.lacking:
        text.append(f"\n{snapshot.lacking}", style="not bold")
    return text


class _Detail(Screen[None]):
    """All about one thing."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "app.pop_screen", "Back")]

    def __init__(self, view: View, name: str) -> None:
        super().__init__()
        self._view, self._thing = view, name

    def compose(self) -> ComposeResult:
        yield Static(id="ended")
        with VerticalScroll():
            yield Static(id="told")
        yield Footer()

    def show(self, snapshot: Snapshot) -> None:
        assert self._view.tell is not None, "only views that tell have details"
        if self._thing in self._view.rows(snapshot):
            told = self._view.tell(snapshot, self._thing)
        else:
            told = Text(f"{self._thing} is gone; Esc goes back")
        self.query_one("#told", Static).update(told)

    def on_mount(self) -> None:
        assert isinstance(self.app, Watch) and self.app.snapshot is not None
        self.show(self.app.snapshot)
        if self.app.ended is not None:
            tell_end(self, self.app.ended)


def tell_end(screen: Screen[None], why: str) -> None:
    """Show on a screen why nothing on it changes any more."""
    ended = screen.query_one("#ended", Static)
    leave = "go back" if isinstance(screen, _Detail) else "quit"
    ended.update(f"{why}. Press q to {leave}.")
    ended.styles.display = "block"


class Watch(App[str]):
    """The whole screen. Returns why there is nothing more to see, or None."""

    TITLE = "entrain watch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { height: auto; padding: 0 1; text-style: bold; }
    #ended { height: auto; padding: 0 1; display: none; text-style: reverse; }
    TabbedContent, ContentSwitcher, TabPane, DataTable { height: 1fr; }
    TabPane { padding: 0; }
    .remark { padding: 0 1; display: none; }
    VerticalScroll { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"view('{view.name}')", view.name, show=False)
            for number, view in enumerate(VIEWS, 1)
        ),
        ("s", "sort", "Sort"),
        ("r", "reverse", "Reverse"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, latest: Latest) -> None:
        super().__init__()
        self.snapshot: Snapshot | None = None
        self.ended: str | None = None
        self._latest = latest
        self._sorted: dict[str, int | None] = {view.name: None for view in VIEWS}
        self._reversed: dict[str, bool] = {view.name: False for view in VIEWS}

    def compose(self) -> ComposeResult:
        yield Static("waiting for the first reading", id="headline")
        yield Static(id="ended")
        with TabbedContent(id="views"):
            for number, view in enumerate(VIEWS, 1):
                with TabPane(f"{number} {view.name}", id=view.name):
                    yield Static(id=f"{view.name}-remark", classes="remark")
                    yield DataTable(id=f"{view.name}-table", cursor_type="row", cell_padding=1)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#links-table").focus()
        self.run_worker(self._follow, thread=True)

    def _follow(self) -> None:
        number = 0
        try:
            while self.is_running:
                number, snapshot = self._latest.wait(number, 1.0)
                self.call_from_thread(self.show, snapshot)
        except EntrainError as error:
            if self.is_running:
                self.call_from_thread(self.end, str(error))

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        if not self.query("#headline"):
            return  # the screen is being taken down
        self.snapshot = snapshot
        self.query_one("#headline", Static).update(headline(snapshot))
        for view in VIEWS:
            self._fill(view, snapshot)
        if isinstance(self.screen, _Detail) and self.screen.is_mounted:
            self.screen.show(snapshot)

    def end(self, why: str) -> None:
        """Keep the last snapshot, and say why there is none after it."""
        self.ended = why
        if self.snapshot is None:
            self.exit(why)
            return
        for screen in self.screen_stack:
            tell_end(screen, why)

    def _fill(self, view: View, snapshot: Snapshot) -> None:
        base = self.screen_stack[0]
        table = base.query_one(f"#{view.name}-table", DataTable)
        remark = base.query_one(f"#{view.name}-remark", Static)
        remark.update(view.remark(snapshot))
        remark.styles.display = "block" if view.remark(snapshot) else "none"
        columns = view.columns(self.size.width)
        place = self._sorted[view.name]
        names = list(view.rows(snapshot))
        if place is not None and place < len(columns):
            value = columns[place].value
            names.sort(key=lambda name: _order(value(snapshot, name)))
        if self._reversed[view.name]:
            names.reverse()
        chosen = None
        if table.row_count and table.is_valid_coordinate(table.cursor_coordinate):
            chosen = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        headings = [
            each.heading + (("▲", "▼")[self._reversed[view.name]] if number == place else "")
            for number, each in enumerate(columns)
        ]
        offset = table.scroll_offset
        if [str(column.label) for column in table.ordered_columns] != headings:
            table.clear(columns=True)
            table.add_columns(*headings)
        else:
            table.clear()
        for name in names:
            table.add_row(*(column.show(column.value(snapshot, name)) for column in columns), key=name)
        if chosen in names:
            table.move_cursor(row=names.index(chosen), scroll=False, animate=False)
        table.scroll_to(offset.x, offset.y, animate=False)

    # -- keys

    def _current(self) -> View:
        active = self.query_one(TabbedContent).active
        return next(view for view in VIEWS if view.name == active)

    def action_view(self, name: str) -> None:
        """Show one kind of thing."""
        self.query_one(TabbedContent).active = name
        self.query_one(f"#{name}-table").focus()

    def action_sort(self) -> None:
        """Sort by the next column."""
        view = self._current()
        place = self._sorted[view.name]
        number = len(view.columns(self.size.width))
        self._sorted[view.name] = 0 if place is None else place + 1 if place + 1 < number else None
        self._again(view)

    def action_reverse(self) -> None:
        """Turn the order round."""
        view = self._current()
        self._reversed[view.name] = not self._reversed[view.name]
        self._again(view)

    def _again(self, view: View) -> None:
        if self.snapshot is not None:
            self._fill(view, self.snapshot)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        view, name = self._current(), event.row_key.value
        if view.tell is not None and name is not None:
            self.push_screen(_Detail(view, name))

    def on_resize(self) -> None:
        if self.snapshot is not None:
            self.show(self.snapshot)


def _order(value: Cell) -> tuple[int, float, str]:
    """Return what a cell is sorted by: numbers first, then words, then nothing."""
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)
