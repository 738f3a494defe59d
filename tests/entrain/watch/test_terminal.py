"""The terminal shows what was read, at any width, with and without colour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.widgets import DataTable, Static, TabbedContent

from controlplane.client import RunningNetwork
from entrain.watch.source import Latest, Source
from entrain.watch.terminal import VIEWS, Watch
from tests.entrain.watch.network import JOB, Controller

Watched = tuple[RunningNetwork, Controller]
Act = Callable[[Watch], Awaitable[None]]


pytestmark = pytest.mark.sockets


def play(network: RunningNetwork, act: Act, width: int = 80) -> None:
    """Run the app without a terminal until `act` is done."""

    async def all_of_it() -> None:
        latest = Latest(Source(network, 200))
        latest.wait(2, 100)
        app = Watch(latest)
        async with app.run_test(size=(width, 30)):
            await until(lambda: app.snapshot is not None)
            await act(app)

    asyncio.run(all_of_it())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def press(app: Watch, *keys: str) -> None:
    for key in keys:
        app.simulate_key(key)


def screen(app: Watch) -> str:
    """What stands on the screen."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def names(app: Watch, view: str) -> list[str]:
    table = app.query_one(f"#{view}-table", DataTable)
    return [str(row.value) for row in table.rows]


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("width", [60, 100, 120])
def test_links_fit_the_terminal(
    watched: Watched, width: int, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")

    async def look(app: Watch) -> None:
        table = app.query_one("#links-table", DataTable)
        assert table.virtual_size.width <= width, "nothing is beyond the right edge"
        await until(lambda: "95%" in screen(app))
        shown = screen(app)
        line = next(line for line in shown.splitlines() if line.strip().startswith("leaf1->spine1"))
        assert "40%" in line and "60.0" in line and "▅" in line
        assert ("used before" in shown) == ("queue KB" in shown) == (width >= 100)
        full = next(line for line in shown.splitlines() if line.strip().startswith("leaf2->spine1"))
        assert ({"6.0", "12"} <= set(full.split())) == (width >= 100)

    play(watched[0], look, width)


def test_what_a_program_lacks_is_shown_whole(watched: Watched) -> None:
    watched[1].lacking = "has no load tables; entrain's program has: `entrain deploy --target softswitch …`"

    async def look(app: Watch) -> None:
        await until(lambda: watched[1].lacking in " ".join(screen(app).split()))  # not cut at the edge
        assert "program fabric" in screen(app) and "routing" not in screen(app)

    play(watched[0], look, 60)


def test_keys_sort_and_turn_the_order_round(watched: Watched) -> None:
    async def act(app: Watch) -> None:
        press(app, "s", "s")  # the second column: how full links are
        await until(lambda: names(app, "links")[-1] == "leaf2->spine1")
        press(app, "r")
        await until(lambda: names(app, "links")[:2] == ["leaf2->spine1", "leaf1->spine1"])

    play(watched[0], act)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("1", ["leaf1->spine1, 100 Mbit/s", "+0      60.0 Mbit/s"]),
        ("2", [f"{JOB}: running", "50 of 100", "over ideal  1.25x", "computed bound"]),
        ("3", ["leaf1: leaf (softswitch), ready", "NO_ROUTE", "because a queue was full"]),
    ],
)
def test_one_thing_is_told_in_full(watched: Watched, key: str, told: list[str]) -> None:
    async def act(app: Watch) -> None:
        press(app, key)
        view = app.query_one(TabbedContent)
        await until(lambda: view.active == VIEWS[int(key) - 1].name)
        await until(lambda: app.focused is app.query_one(f"#{view.active}-table"))
        press(app, "enter")
        await until(lambda: len(app.screen_stack) == 2)
        for text in told:
            await until(lambda text=text: text in screen(app))
        press(app, "escape")
        await until(lambda: len(app.screen_stack) == 1)

    play(watched[0], act)


def test_agents_circuits_and_events_have_their_places(watched: Watched) -> None:
    async def act(app: Watch) -> None:
        for key, text in (("4", "pacing"), ("5", "leaf1-eth3"), ("6", "<img src=x")):
            press(app, key)
            await until(lambda text=text: text in screen(app))

    play(watched[0], act)


def test_when_the_run_ends_the_last_reading_stays_and_the_end_is_told(watched: Watched) -> None:
    network, controller = watched

    async def act(app: Watch) -> None:
        controller.ended.set()
        await until(lambda: app.ended is not None)
        await until(lambda: "Press q to quit" in screen(app))
        assert "leaf1->spine1" in screen(app)
        assert "its run is over" in str(app.query_one("#ended", Static).render())

    play(network, act)


def test_the_end_is_told_in_front_of_one_things_screen_too(watched: Watched) -> None:
    network, controller = watched

    async def act(app: Watch) -> None:
        await until(lambda: app.focused is app.query_one("#links-table"))
        press(app, "enter")
        await until(lambda: len(app.screen_stack) == 2)
        controller.ended.set()
        await until(lambda: "Press q to go back" in screen(app))
        press(app, "q")
        await until(lambda: "Press q to quit" in screen(app))

    play(network, act)
