"""Interleaved timings and their summaries."""

from __future__ import annotations

from flipout.export.timing import summarize_times, time_interleaved


def test_functions_are_timed_in_rotation() -> None:
    calls: list[str] = []
    taken = time_interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, warm_up=0)
    assert calls == ["a", "a", "b", "b", "b", "b", "a", "a"]  # the first one changes
    assert set(taken) == {"a", "b"}


def test_median_and_quartiles() -> None:
    assert (summarize_times([3.0]).low, summarize_times([3.0]).high) == (3, 3)
    spread = summarize_times([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (spread.low, spread.median, spread.high) == (2, 3, 4)
    assert spread.quartiles == "2.00 to 4.00"
    assert summarize_times([0.0123]).quartiles == "0.012 to 0.012"
