"""How long views take in a browser, in one run of pytest-benchmark:

    pytest -o addopts= tests/tools/bench_views.py

Drawing a register view is counted in the page, of the frames while four mebibytes scroll each one is told; a frame of a
screen lasts 16.7 ms, and reading along needs 33 ms at most.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from blank_page import BlankPage, browser
from playwright.sync_api import Browser
from test_register_view import wide
from test_views_browser import scrolled

from npulab.notebook.widgets import RegisterView


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.mark.parametrize("words", [34, 128])
def test_registers_drawn(benchmark: Any, started: Browser, words: int) -> None:
    view, times = RegisterView(wide(words)), []

    def drawn() -> None:
        with BlankPage(started, view) as page:
            times.append(page.render_ms)

    benchmark.pedantic(drawn, rounds=5)
    benchmark.extra_info |= {"render_ms": min(times)}


def test_bytes_scrolled(benchmark: Any, started: Browser) -> None:
    times, costs = benchmark.pedantic(scrolled, (started,))
    benchmark.extra_info |= {"frame_ms": statistics.median(times), "cost_ms": statistics.median(costs)}
