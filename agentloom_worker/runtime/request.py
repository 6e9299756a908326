"""Requests of a release: their constant head, and building one again from its recipe."""

from agentloom_worker.context.request import hash_request
from agentloom_worker.context.view import View
from agentloom_worker.domain.damage import DAMAGED
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.domain.operation import Operation, OperationKind
from agentloom_worker.domain.recipe import Recipe, RequestBinding
from agentloom_worker.domain.release import FrozenRelease
from agentloom_worker.domain.run import Run
from agentloom_worker.errors import Code, InvariantError, RequestError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ports import CachedView, Ports, RequestHead
from agentloom_worker.runtime.release import adapter_of, load_owned_release
from agentloom_worker.runtime.slice import load_response
from agentloom_worker.runtime.view import build_view


def bind_requests(ports: Ports, release: FrozenRelease) -> RequestBinding:
    """What every request of a new run will be made with; fixed when the run is accepted."""
    parameters = RequestParameters(release.model.model, release.max_output_tokens, release.model.parameters)
    return RequestBinding(
        parameters,
        release.catalog.catalog_hash,
        release.protocol,
        adapter_of(ports, release).version,
        release.estimator,
    )


def head_of(ports: Ports, run: Run, release: FrozenRelease) -> RequestHead:
    """Parameters and tools of a run's requests, encoded once per process.

    Raises InvariantError where this process would make other bytes than the run was accepted with.
    """
    head = ports.heads.get(run.binding)
    if head is None:
        binding, adapter = RequestBinding.from_bytes(run.binding), adapter_of(ports, release)
        if (binding.adapter, binding.catalog_hash) != (adapter.version, release.catalog.catalog_hash):
            raise InvariantError(
                f"run {run.run_id} was accepted with adapter {binding.adapter}, this process has {adapter.version}",
                Code.REQUEST_HASH_MISMATCH,
            )
        schemas = tuple(spec.tool_schema for spec in release.catalog.capabilities)
        head = RequestHead(binding.parameters, adapter.encode_tools(schemas), len(schemas))
        ports.heads.put(run.binding, head)
    return head


def rebuild_request(ports: Ports, operation: Operation) -> bytes:
    """The bytes of a frozen request, from its recipe and the records; proves its hash.

    Raises RequestError for an operation that was never frozen, InvariantError(REQUEST_HASH_MISMATCH) where
    the rebuilt request is not the one that was frozen.
    """
    if operation.request is None or operation.request_hash is None:
        raise RequestError(Code.OPERATION_NOT_FOUND, f"operation {operation.operation_id} has no frozen request")
    recipe = Recipe.from_bytes(operation.request)
    rows = ports.store.load_slice(operation.run_id)
    if rows is None:
        raise InvariantError(f"run {operation.run_id} is missing")
    release = load_owned_release(ports, rows.run.release_id).release
    adapter, head = adapter_of(ports, release), head_of(ports, rows.run, release)
    context = replace(rows.context, effective_revision=recipe.revision, record_head=recipe.record_head)
    view = build_view(ports, rows.run, context, release, CachedView(0, 0, View()), history=recipe.history)
    found = hash_request(adapter, head.parameters, head.tools, view)
    if found != operation.request_hash:
        raise InvariantError(
            f"operation {operation.operation_id}: the rebuilt request hashes to {found.hex()}, frozen was"
            f" {operation.request_hash.hex()}",
            Code.REQUEST_HASH_MISMATCH,
        )
    return adapter.frame_body(head.parameters, view, head.tools).join()


def served_model(ports: Ports, run: Run, operation: Operation) -> str | None:
    """The model that the provider says it answered with, where that is not the name it was asked for; else None.

    None also while there is no answer, and for one that cannot be read: what was asked can be shown all the same, and
    the audit names the damage.
    """
    if operation.kind is not OperationKind.MODEL or (operation.effective or operation.raw) is None:
        return None
    try:
        return load_response(ports, run, operation).served_model
    except DAMAGED:
        return None
