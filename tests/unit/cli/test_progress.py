"""What is said of a run that is left while it lives."""

from types import SimpleNamespace
from typing import Any

import pytest

from agentloom_worker.cli.progress import Progress, follow


@pytest.mark.parametrize(
    ("runs_steps", "words"),
    [(True, "goes on at the next start: "), (False, "goes on with those who run its steps; to watch it: ")],
)
def test_a_sigterm_says_who_goes_on_with_the_run(
    capsys: pytest.CaptureFixture[str], runs_steps: bool, words: str
) -> None:
    def terminated(*_arguments: object, **_options: object) -> None:
        raise SystemExit(143)

    loom: Any = SimpleNamespace(
        run=lambda run: SimpleNamespace(run_id=run, deadline_at=0), events=terminated, runs_steps=runs_steps
    )
    with pytest.raises(SystemExit):
        follow(loom, "R", Progress(shown=False), option="--embedded state", timeout_s=1)
    assert capsys.readouterr().err == f"run R {words}agentloom run --resume R --embedded state\n"
