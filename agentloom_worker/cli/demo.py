"""`agentloom demo`: an agent does real work through the real runtime, embedded; no key and no service needed."""

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.cli.audit import Verdict, reach_verdict
from agentloom_worker.cli.output import document, note, print_json, print_text
from agentloom_worker.cli.place import AsJson, Place, locate, terminable
from agentloom_worker.cli.progress import Progress, follow
from agentloom_worker.cli.run import tell
from agentloom_worker.cli.steps import print_steps, step_documents
from agentloom_worker.client import Agentloom, RunResult, StepRow
from agentloom_worker.devmodel import DevModel, load_script
from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.errors import InvariantError
from agentloom_worker.examples import incident
from agentloom_worker.runtime.inspect import total_tokens
from agentloom_worker.wire.release_source import read_source


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model that the demo talks to; the dev-model where no URL is given."""

    base_url: str | None
    model: str | None
    api_key_env: str | None
    context_window_tokens: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that the demo shows."""

    result: RunResult
    steps: tuple[StepRow, ...]
    verdict: Verdict


def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the store here, to look at it afterwards.")
    ] = None,
    model_url: Annotated[
        str | None, typer.Option("--model-url", metavar="URL", help="Ask a real OpenAI-compatible provider.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="ID", help="The provider's id of the model.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the key.")
    ] = None,
    context_window: Annotated[
        int | None, typer.Option("--context-window", metavar="TOKENS", min=1, help="The model's context window.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch an agent investigate an incident: each step as it happens, then answer, steps, tokens and audit."""
    endpoint = _endpoint(model_url, model, api_key_env, context_window)
    progress = Progress(shown=not as_json)
    with ExitStack() as stack:
        stack.enter_context(terminable())
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentloom-demo-")))
        place = locate(folder, None)
        if not as_json:
            note(f"question: {incident.QUESTION}\n")
        outcome = _play(stack, place, endpoint, progress)
    if as_json:
        print_json(_document(outcome, progress, keep))
    else:
        _print(outcome, keep)
    if not tell(outcome.result, quiet=True, option=place.option) or not outcome.verdict.ok:
        raise typer.Exit(1)


def _endpoint(model_url: str | None, model: str | None, api_key_env: str | None, window: int | None) -> Endpoint:
    if (model_url is None) != (model is None):
        raise typer.BadParameter("--model-url and --model belong together")
    if model_url is None and (api_key_env is not None or window is not None):
        raise typer.BadParameter("--api-key-env and --context-window need --model-url")
    if api_key_env is not None and not os.environ.get(api_key_env):
        raise typer.BadParameter(f"the variable {api_key_env} is empty", param_hint="--api-key-env")
    return Endpoint(model_url, model, api_key_env, window)


def _play(stack: ExitStack, place: Place, endpoint: Endpoint, progress: Progress) -> Outcome:
    base_url = endpoint.base_url
    if base_url is None:
        base_url = stack.enter_context(DevModel(load_script(incident.SCRIPT))).base_url
    assert place.file is not None, "the demo is embedded"
    with Agentloom.embedded(place.file) as loom:
        release = loom.publish(_release(endpoint, base_url))
        receipt = loom.ask(loom.open_session(release), incident.QUESTION, release)
        result = follow(loom, receipt, progress, option=place.option)
        steps = loom.steps(receipt)
    return Outcome(result, steps, reach_verdict(place))


def _release(endpoint: Endpoint, base_url: str) -> dict[str, object]:
    """The example's release with the endpoint put in."""
    tree = read_source(incident.RELEASE.read_bytes()).tree
    models = tree.get("models") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(models, dict):
        raise InvariantError("the example's release has no models")
    changes: dict[str, object] = {"base_url": base_url}
    if endpoint.model is not None:
        changes["model"] = endpoint.model
    if endpoint.api_key_env is not None:
        changes["credential"] = f"env:{endpoint.api_key_env}"
    if endpoint.context_window_tokens is not None:
        changes["context_window_tokens"] = endpoint.context_window_tokens
    return {**tree, "models": {**models, "main": {**models["main"], **changes}}}


def _calls(outcome: Outcome) -> int:
    return sum(step.kind is OperationKind.TOOL for step in outcome.steps)


def _elapsed_ms(result: RunResult) -> int | None:
    return None if result.ended_at is None else (result.ended_at - result.created_at) // 1000


def _document(outcome: Outcome, progress: Progress, keep: Path | None) -> dict[str, object]:
    return {
        "question": incident.QUESTION,
        "run": document(outcome.result),
        "elapsed_ms": _elapsed_ms(outcome.result),
        "events": document(progress.events),
        "steps": step_documents(outcome.steps),
        "tool_calls": _calls(outcome),
        "tokens": document(total_tokens(outcome.steps)),
        "audit": document(outcome.verdict),
        "kept": str(keep) if keep else None,
    }


def _print(outcome: Outcome, keep: Path | None) -> None:
    if outcome.result.answer is not None:
        print_text(f"\nANSWER\n{outcome.result.answer}")
    print_text("STEPS")
    print_steps(outcome.steps)
    print_text("")
    tokens, elapsed_ms = total_tokens(outcome.steps), _elapsed_ms(outcome.result)
    took = "" if elapsed_ms is None else f" in {elapsed_ms / 1000:.1f} s"
    print_text(f"{outcome.result.loops} loops, {_calls(outcome)} tool calls{took}")
    print_text(f"tokens: {tokens.input_tokens} in, {tokens.output_tokens} out")
    print_text(outcome.verdict.words)
    if keep is not None:
        print_text(f"kept: agentloom runs show {outcome.result.run_id} --embedded {keep}")
