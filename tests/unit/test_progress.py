"""Lines of progress where stderr is no terminal."""

import pytest

from cpembed.cli import output


def test_a_log_has_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(output.time, "perf_counter", lambda: clock[0])
    with output.Bar("tuning", 8, completed=2) as bar, output.ProgressLine() as line:
        for second in range(12):
            clock[0] = 100.0 + 10 * second
            bar("choosing kernels", second, 12)
            line("search", second)
    lines = capsys.readouterr().err.splitlines()
    # Two that report, each after 30, 60 and 90 seconds.
    assert lines[0] == "cpembed: choosing kernels 3 of 12 (30 s)"
    assert [text.rsplit("(", 1)[1] for text in lines] == [
        *("30 s)", "30 s)", "60 s)", "60 s)", "90 s)", "90 s)")
    ]


def test_a_short_command_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with output.Bar() as bar, output.ProgressLine() as line:
        bar("compiling", 1, 2)
        line("search", 1)
    assert not capsys.readouterr().err
