"""The incident's release is one that can be published."""

from agentloom_worker.capabilities.declare import declare_python
from agentloom_worker.domain.capability import Effect
from agentloom_worker.domain.release import tool_retry
from agentloom_worker.examples.incident import RELEASE
from agentloom_worker.wire.release import parse_release


def test_the_release_has_no_problem_and_each_tool_declares_itself() -> None:
    release = parse_release(RELEASE.read_bytes())
    specs = [
        declare_python(
            key,
            tool.handler,
            model_name=key,
            effect=Effect(tool.effect),
            timeout_ms=tool.timeout_ms,
            retry=tool_retry(release, key),
        )
        for key, tool in release.tools.items()
    ]
    assert [spec.key for spec in specs] == list(release.agent.tools)
    assert {spec.effect for spec in specs} == {Effect.READ}
    assert [spec.input_schema["required"] for spec in specs] == [
        ["pattern"], ["column", "group_by"], ["start", "end"],
    ]  # fmt: skip
    assert all(len(spec.description) > 100 for spec in specs)
