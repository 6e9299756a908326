"""Frozen requests: built again from their recipes they hash the same, fit, pair, and hold the user's words."""

from collections.abc import Iterator

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.audit.history import FrozenRequest, History
from agentloom_worker.canonical import effective_text, parse, sha256
from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Payload
from agentloom_worker.ids import InputId
from agentloom_worker.storage.audit import list_input_bodies


def check_hashes(facts: RunFacts) -> Iterator[Fault]:
    """What was frozen can be sent again, the same bytes (U1)."""
    for context, history in facts.histories:
        if history.damage is not None:
            at = history.damage.operation_id
            subject = f"context {context.context_id}" if at is None else f"operation {at}"
            yield Fault(subject, f"cannot be built from its records: {history.damage.detail}")
        for request in history.requests:
            if request.rebuilt_hash != request.frozen_hash:
                yield Fault(
                    f"operation {request.operation_id}",
                    f"was frozen as {request.frozen_hash.hex()[:16]}…, is built as {request.rebuilt_hash.hex()[:16]}…",
                )


def check_budgets(facts: RunFacts) -> Iterator[Fault]:
    """No request above the input budget was ever frozen, and its estimate was that of its bytes."""
    for _, history in facts.histories:
        for request in history.requests:
            subject = f"operation {request.operation_id}"
            if request.recipe.tokens != request.estimate_tokens:
                yield Fault(
                    subject,
                    f"was estimated at {request.recipe.tokens} tokens, its bytes at {request.estimate_tokens}",
                )
            if request.recipe.tokens > request.budget_tokens:
                yield Fault(subject, f"was frozen with {request.recipe.tokens} of {request.budget_tokens} tokens")


def check_inputs(facts: RunFacts) -> Iterator[Fault]:
    """Each input up to the cutoff stands in the request once, in its order and word for word (R13, A11)."""
    try:
        words = _words(facts)
    except DAMAGED as error:
        yield Fault(facts.subject, f"an input cannot be read: {describe(error)}")
        return
    for context, history in facts.histories:
        records = facts.records_of(context.context_id)
        # Where a provider takes no system message in the middle, what the runtime says is a text of the user as well.
        notes = {record.context_seq for record in records if record.message_kind == MessageKind.FEEDBACK}
        shown = [
            (at, message.text_hash)
            for at, message in enumerate(history.own)
            if message.role is Role.USER and at + 1 not in notes
        ]
        for request in history.requests:
            missing = _first_difference(facts, request, words, shown, len(records))
            if missing is not None:
                yield Fault(f"operation {request.operation_id}", missing)


def _words(facts: RunFacts) -> dict[InputId, bytes]:
    """The hash of the effective text of each input."""
    store, owner_id = facts.ports.store, facts.run.owner_id
    found = {}
    with store.read() as conn:
        for row in list_input_bodies(conn, facts.run.run_id):
            body = store.load_payload(owner_id, Payload(row.inline, row.blob_id))
            found[row.input_id] = sha256(effective_text(parse(body))[0].encode())
    return found


def _first_difference(
    facts: RunFacts,
    request: FrozenRequest,
    words: dict[InputId, bytes],
    shown: list[tuple[int, bytes]],
    records: int,
) -> str | None:
    """`shown` are the places and hashes of the context's user messages, without those of the runtime."""
    expected = [
        words[row.input_id]
        for row in sorted(facts.rows.deliveries, key=lambda row: row.context_seq or 0)
        if row.input_seq <= request.recipe.input_cutoff
    ]
    found = [text_hash for at, text_hash in shown if at < request.record_count]
    if found != expected:
        return f"shows {len(found)} input(s), not the {len(expected)} up to its cutoff, in order and word for word"
    unknown = set(request.recipe.claimed) - words.keys()
    if unknown:
        return f"claims {len(unknown)} input(s) that its run was not asked to deliver"
    if not request.record_count == request.recipe.record_head <= records:
        return f"holds {request.record_count} messages of {request.recipe.record_head} records"
    return None


def check_pairing(facts: RunFacts) -> Iterator[Fault]:
    """In every request each call is followed by its result, by wire id and in order, and no result stands alone."""
    for _, history in facts.histories:
        whole = _whole_prefixes(history)
        for request in history.requests:
            if not whole[min(request.message_count - history.settled, len(whole) - 1)]:
                yield Fault(
                    f"operation {request.operation_id}",
                    "holds a call without its result, or a result without its call",
                )


def _whole_prefixes(history: History) -> list[bool]:
    """For each number of messages from the settled ones on, whether calls and results among so many pair."""
    pairing = history.pairing
    whole = [pairing.whole]
    for message in history.messages:
        pairing = pairing.after(message)
        whole.append(pairing.whole)
    return whole
