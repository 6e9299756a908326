"""Requests of a release: their constant head, and building one again from its recipe."""

from dataclasses import replace

from agentloom_worker.context.request import hash_request
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.domain.operation import Operation
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.release import FrozenRelease
from agentloom_worker.errors import Code, InvariantError, RequestError
from agentloom_worker.runtime.ports import CachedView, Ports, RequestHead
from agentloom_worker.runtime.slice import adapter_of, build_view, load_owned_release


def head_of(ports: Ports, release: FrozenRelease) -> RequestHead:
    """Parameters and tools of a release's requests, encoded once per process."""
    head = ports.heads.get(release.digest)
    if head is None:
        adapter = adapter_of(ports, release)
        schemas = tuple(spec.tool_schema for spec in release.catalog.capabilities)
        parameters = RequestParameters(
            release.model.model, release.max_output_tokens, release.model.parameters
        )
        head = RequestHead(parameters, adapter.encode_tools(schemas), len(schemas))
        ports.heads.put(release.digest, head)
    return head


def rebuild_request(ports: Ports, operation: Operation) -> bytes:
    """The bytes of a frozen request, from its recipe and the records; proves its hash.

    Raises RequestError for an operation that was never frozen, InvariantError(REQUEST_HASH_MISMATCH) where
    the rebuilt request is not the one that was frozen.
    """
    if operation.request is None or operation.request_hash is None:
        raise RequestError(
            Code.OPERATION_NOT_FOUND, f"operation {operation.operation_id} has no frozen request"
        )
    recipe = Recipe.from_bytes(operation.request)
    rows = ports.store.load_slice(operation.run_id)
    if rows is None:
        raise InvariantError(f"run {operation.run_id} is missing")
    release = load_owned_release(ports, rows.run.release_id).release
    adapter, head = adapter_of(ports, release), head_of(ports, release)
    if adapter.version != recipe.adapter:
        raise InvariantError(
            f"operation {operation.operation_id} was frozen by adapter {recipe.adapter}, this version has"
            f" {adapter.version}",
            Code.REQUEST_HASH_MISMATCH,
        )
    context = replace(rows.context, effective_revision=recipe.revision, record_head=recipe.record_head)
    view = build_view(ports, rows.run, context, release, CachedView(0, 0, View()))
    found = hash_request(adapter, recipe.parameters, head.tools, view)
    if found != operation.request_hash:
        raise InvariantError(
            f"operation {operation.operation_id}: the rebuilt request hashes to {found.hex()}, frozen was"
            f" {operation.request_hash.hex()}",
            Code.REQUEST_HASH_MISMATCH,
        )
    return adapter.join_body(recipe.parameters, view.fragments(), head.tools)
