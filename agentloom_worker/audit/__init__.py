"""The invariants of a database, checked by reading it: `agentloom audit`.

INVARIANTS is the table: a new invariant is one check in the file of its noun, one line here, and a test that
breaks it. A run is read in one snapshot, so rows that move meanwhile are no findings.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from itertools import islice

from agentloom_worker import limits
from agentloom_worker.audit import (
    blob,
    commit,
    context,
    dispatch,
    operation,
    orphan,
    release,
    request,
    run,
    session,
)
from agentloom_worker.audit.earlier import Earlier
from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.finding import Finding, Invariant, OfDatabase, OfRun, OfSession
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.runtime.ports import BoundedCache, Ports
from agentloom_worker.storage.audit import load_run_rows, load_session_rows
from agentloom_worker.storage.audit_scan import REFERENCES, list_run_ids, list_session_ids

INVARIANTS: dict[str, Invariant] = {
    "run.event_sequence": Invariant(
        "run_seq is gapless from 1 and ends at event_head", "RUNTIME 3, 8", OfRun(run.check_event_sequence)
    ),
    "run.lifecycle": Invariant(
        "events begin with run.accepted and end with the one terminal event of a terminal run",
        "RULINGS U9",
        OfRun(run.check_lifecycle),
    ),
    "run.end": Invariant("the status follows from the first cause", "RULINGS A4, R3", OfRun(run.check_end)),
    "run.cleanup": Invariant("cleanup_state fits the status", "RUNTIME 6, RULINGS R15", OfRun(run.check_cleanup)),
    "run.answer": Invariant(
        "a run that succeeded names its completed answer, no other run does", "RUNTIME 6", OfRun(run.check_answer)
    ),
    "run.tree": Invariant(
        "one graph, invocation, node and context, which settle together", "RUNTIME 6", OfRun(run.check_tree)
    ),
    "run.continuation": Invariant(
        "what to do next can be read and names rows of the run", "RUNTIME 6", OfRun(run.check_continuation)
    ),
    "run.loops": Invariant("the loop counters are what the tickets say", "RULINGS A19", OfRun(run.check_loops)),
    "run.quota": Invariant("loops used and reserved stay within max_loops", "RUNTIME 6", OfRun(run.check_quota)),
    "run.tickets": Invariant(
        "each frozen model operation has one ticket, of its loop", "RULINGS A19", OfRun(run.check_tickets)
    ),
    "run.ticket_states": Invariant(
        "no ticket is reserved after the end, released where something may have left, or consumed where not",
        "RULINGS A3, A19",
        OfRun(run.check_ticket_states),
    ),
    "operation.outcome": Invariant(
        "a settled operation has an outcome, an open one none", "RUNTIME 6", OfRun(operation.check_outcome)
    ),
    "operation.executed": Invariant(
        "what may have been executed says so", "RULINGS A3, A20, R11", OfRun(operation.check_executed)
    ),
    "operation.attempts": Invariant(
        "attempts are numbered 1 to attempts_made; internal operations have none",
        "RUNTIME 6, RULINGS A23",
        OfRun(operation.check_attempts),
    ),
    "operation.intents": Invariant(
        "only the newest attempt of an open operation of a live run is open",
        "RUNTIME 6, RULINGS A3",
        OfRun(operation.check_intents),
    ),
    "operation.attempt_ends": Invariant(
        "an ended attempt says when and why", "RUNTIME 6", OfRun(operation.check_attempt_ends)
    ),
    "operation.epochs": Invariant(
        "no attempt has an epoch that its run has not reached", "RULINGS R4", OfRun(operation.check_epochs)
    ),
    "operation.frozen": Invariant(
        "each attempted model operation has a recipe and its hash", "RULINGS A13", OfRun(operation.check_frozen)
    ),
    "operation.members": Invariant(
        "a batch has `size` members by ordinal, each call the id of its place",
        "RUNTIME 6, RULINGS A24",
        OfRun(operation.check_members),
    ),
    "operation.settled": Invariant(
        "a batch counts its settled members and is delivered after the last",
        "RULINGS A8, T1",
        OfRun(operation.check_settled),
    ),
    "context.record_sequence": Invariant(
        "context_seq is gapless from 1 and ends at record_head", "RUNTIME 8", OfRun(context.check_record_sequence)
    ),
    "context.sources": Invariant(
        "a record is of its run and shows what its kind shows", "RUNTIME 2", OfRun(context.check_sources)
    ),
    "context.revisions": Invariant(
        "effective revisions are gapless and cover every record", "RULINGS R8", OfRun(context.check_revisions)
    ),
    "context.manifest": Invariant(
        "the manifest's hash chain recomputes from the entries", "RUNTIME 2, 8", OfRun(context.check_manifest)
    ),
    "context.entries": Invariant(
        "a record has an entry from the revision that appended it, none before",
        "RUNTIME 2",
        OfRun(context.check_entries),
    ),
    "context.effective_hashes": Invariant(
        "effective_hash is that of the body", "RUNTIME 2", OfRun(context.check_effective_hashes)
    ),
    "context.feedback": Invariant(
        "a rejected answer is followed by what is wrong with it, and nothing else is",
        "seed 004, 6.3",
        OfRun(context.check_feedback),
    ),
    "context.results": Invariant(
        "each call has one result in its place once its batch is delivered, none before",
        "RUNTIME 8",
        OfRun(context.check_results),
    ),
    "context.calls": Invariant(
        "each call of a message is a member of its batch", "RUNTIME 6", OfRun(context.check_calls)
    ),
    "context.tokens": Invariant(
        "an entry's estimate is that of its fragment", "CONTEXT, Constant cost", OfRun(context.check_tokens)
    ),
    "request.hashes": Invariant(
        "each frozen request is built again with the same hash", "RULINGS U1, A13", OfRun(request.check_hashes)
    ),
    "request.budgets": Invariant(
        "each frozen request is within the input budget by the estimate of its bytes",
        "seed 000, 7",
        OfRun(request.check_budgets),
    ),
    "request.inputs": Invariant(
        "each frozen request holds every protected input, verbatim and in order",
        "RUNTIME 8, RULINGS R13, A11",
        OfRun(request.check_inputs),
    ),
    "request.pairing": Invariant(
        "no frozen request holds an orphan call or result", "CASES W01", OfRun(request.check_pairing)
    ),
    "dispatch.live_runs": Invariant(
        "a live run has a row that can move it", "RUNTIME 1, 8", OfRun(dispatch.check_live_runs)
    ),
    "dispatch.terminal_runs": Invariant(
        "a run that is over has no row but its cleanup's", "RUNTIME 8", OfRun(dispatch.check_terminal_runs)
    ),
    "dispatch.epochs": Invariant("a row has its run's epoch", "RULINGS R4", OfRun(dispatch.check_epochs)),
    "dispatch.scopes": Invariant("a run's row stands in the run's scope", "RUNTIME 4", OfRun(dispatch.check_scopes)),
    "dispatch.claims": Invariant(
        "a claim is token, holder and end together", "RULINGS T7, T10", OfRun(dispatch.check_claims)
    ),
    "dispatch.parked": Invariant("a parked row says why", "RUNTIME 4", OfRun(dispatch.check_parked)),
    "dispatch.intents": Invariant(
        "an open intent of a run that goes on has a row", "RUNTIME 6, RULINGS A1", OfRun(dispatch.check_intents)
    ),
    "dispatch.subjects": Invariant(
        "a row's subject is there, in the state that its step takes up", "RUNTIME 8", OfRun(dispatch.check_subjects)
    ),
    "session.projected": Invariant(
        "an input stands in the context where its delivery says", "seed 000, 2", OfRun(session.check_projected)
    ),
    "session.input_heads": Invariant(
        "a run knows each input that it has to deliver, and none that its session does not have",
        "RULINGS A6",
        OfRun(session.check_input_heads),
    ),
    "session.input_sequence": Invariant(
        "input_seq is gapless from 1 and ends at input_head", "RUNTIME 8", OfSession(session.check_input_sequence)
    ),
    "session.delivery_heads": Invariant(
        "each input has one newest delivery, none while it waits in the queue",
        "RUNTIME 8",
        OfSession(session.check_delivery_heads),
    ),
    "session.carried": Invariant(
        "a delivery is carried exactly where one of the same supplement follows it",
        "seed 004, 3.2",
        OfSession(session.check_carried),
    ),
    "session.delivered_once": Invariant(
        "an input that is delivered waits nowhere, and is delivered once",
        "seed 004, C08",
        OfSession(session.check_delivered_once),
    ),
    "session.waiting": Invariant(
        "an input waits for the next run only while no run can take it",
        "RULINGS A9",
        OfSession(session.check_waiting),
    ),
    "session.left_behind": Invariant(
        "no supplement stays undelivered with a run that is over", "seed 004, 3.2", OfSession(session.check_left_behind)
    ),
    "session.queue": Invariant(
        "a question waits in its place, behind a live run that knows of it, or has become a run",
        "RULINGS A10",
        OfSession(session.check_queue),
    ),
    "session.run_sequence": Invariant(
        "run_no is gapless from 1 and ends at run_head, each run answers a question that it was given",
        "seed 004, 3.1",
        OfSession(session.check_run_sequence),
    ),
    "session.claimed": Invariant(
        "a claimed delivery names the frozen request that claimed it", "RULINGS A7", OfSession(session.check_claimed)
    ),
    "session.delivered": Invariant(
        "a delivered delivery names an attempt with a first output", "RULINGS R2", OfSession(session.check_delivered)
    ),
    "session.one_live_run": Invariant(
        "a session has at most one run that has not ended", "RUNTIME 6", OfSession(session.check_one_live_run)
    ),
    "blob.contents": Invariant(
        "a blob decompresses to its size, digest and id", "RUNTIME 2", OfDatabase(blob.check_contents)
    ),
    "blob.owners": Invariant(
        "a referenced blob exists and is the referrer's owner's",
        "RUNTIME 2, RULINGS T14",
        OfDatabase(blob.check_owners),
    ),
    "release.digests": Invariant("a release is what its digest says", "RULINGS A25", OfDatabase(release.check_digests)),
    "commit.hashes": Invariant(
        "a committed key is not empty and has a command hash", "RULINGS A24", OfDatabase(commit.check_hashes)
    ),
    "commit.receipts": Invariant(
        "a client's key answers with what its command made", "RULINGS R6", OfDatabase(commit.check_receipts)
    ),
    **{
        f"orphan.{reference.table}.{reference.column}": Invariant(
            f"every {reference.table}.{reference.column} names a row of {' or '.join(reference.parents)}",
            "RUNTIME 8",
            OfDatabase(orphan.check_reference(reference)),
        )
        for reference in REFERENCES
    },
}


def run_audit(
    ports: Ports, *, run_id: RunId | None = None, limit: int = limits.AUDIT_FINDINGS_MAX
) -> tuple[Finding, ...]:
    """Check every invariant by reading; an empty tuple is a clean database.

    With `run_id` only that run and its session are read. Stops after `limit` findings. Raises
    RequestError(RUN_NOT_FOUND) for an unknown run, PersistenceUnavailableError where the store cannot be read.
    """
    # Caches of its own, so that everything is read from the database and checked there.
    size = limits.RELEASE_CACHE
    ports = replace(ports, releases=BoundedCache(size), heads=BoundedCache(size), views=BoundedCache(1))
    with closing(_audit(ports) if run_id is None else _audit_run(ports, run_id)) as findings:
        return tuple(islice(findings, limit))


def _audit(ports: Ports) -> Generator[Finding]:
    for name, invariant in INVARIANTS.items():
        if isinstance(invariant.scope, OfDatabase):
            yield from (Finding(name, fault.subject, fault.detail) for fault in invariant.scope.check(ports))
    with ports.store.read() as conn:
        session_ids = list_session_ids(conn)
        for session_id in session_ids:
            yield from _check_session(ports, session_id)
    with ports.store.read() as conn:
        run_ids = list_run_ids(conn)
        earlier = Earlier()
        for run_id in run_ids:
            yield from _check_run(ports, run_id, earlier)


def _audit_run(ports: Ports, run_id: RunId) -> Generator[Finding]:
    run = ports.store.load_run(run_id)
    if run is None:
        raise RequestError(Code.RUN_NOT_FOUND, f"there is no run {run_id}")
    yield from _check_session(ports, run.session_id)
    yield from _check_run(ports, run_id, Earlier())


def _check_session(ports: Ports, session_id: SessionId) -> Generator[Finding]:
    with ports.store.snapshot() as store, store.read() as conn:
        rows = load_session_rows(conn, session_id)
        if rows is None:
            return
        for name, invariant in INVARIANTS.items():
            if isinstance(invariant.scope, OfSession):
                yield from (Finding(name, fault.subject, fault.detail) for fault in invariant.scope.check(rows))


def _check_run(ports: Ports, run_id: RunId, earlier: Earlier) -> Generator[Finding]:
    with ports.store.snapshot() as store, store.read() as conn:
        rows = load_run_rows(conn, run_id)
        if rows is None:
            return
        facts = RunFacts(replace(ports, store=store), rows, earlier)
        for name, invariant in INVARIANTS.items():
            if isinstance(invariant.scope, OfRun):
                yield from (Finding(name, fault.subject, fault.detail) for fault in invariant.scope.check(facts))


__all__ = ["INVARIANTS", "Finding", "Invariant", "run_audit"]
