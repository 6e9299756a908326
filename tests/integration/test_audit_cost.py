"""What the audit of a long session reads: in proportion to its runs, whatever their order and whatever was carried."""

from collections import Counter
from typing import Any

import pytest

from agentloom_worker.audit import history, run_audit
from agentloom_worker.audit.earlier import Earlier
from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.request import check_pairing
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.ids import SessionId
from agentloom_worker.llm.adapters.scripted import TextTurn
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.storage import audit_scan
from agentloom_worker.storage.audit import load_run_rows
from agentloom_worker.storage.store import Store
from tests.conversation import Conversation, breaks_off, calls, converse
from tests.factories import python_tool, release_document

READS = ("list_ended_runs", "load_view_rows", "load_operations", "load_bodies")


def _rows_read(monkeypatch: pytest.MonkeyPatch, conversation: Conversation) -> int:
    """The rows of earlier runs that one audit reads; it finds nothing."""
    read: Counter[str] = Counter()

    def counted(name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            found = real(*arguments, **options)
            read[name] += len(found)
            return found

        return call

    with monkeypatch.context() as patched:
        for name in READS:
            patched.setattr(Store, name, counted(name, getattr(Store, name)))
        assert run_audit(conversation.ports) == ()
    assert set(read) == set(READS), "a read of the history that is not counted"
    return sum(read.values())


def _live(conversation: Conversation, runs: int) -> None:
    """Runs that answer, call, break off and are stopped, with words that are carried on through several of them."""
    for _ in range(runs):
        number = len(conversation.runs)
        match number % 4:
            case 0:
                conversation.ask(f"question {number}", calls("a", "b"), TextTurn("done"))
            case 1:
                conversation.ask(f"question {number}", breaks_off("half"))
            case 2:
                conversation.add(f"waits {number}")
                conversation.ask(f"question {number}")
                conversation.stop()
                continue
            case _:
                conversation.ask(f"question {number}", TextTurn("plain"))
                conversation.add(f"added {number}")
        conversation.finish()


@pytest.mark.parametrize("recent", [0, 2])
def test_the_audit_reads_a_session_in_proportion_to_its_runs(
    clean_sqlite: str, monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    conversation = converse(clean_sqlite, context={"recent_runs": recent})
    _live(conversation, 24)
    some = _rows_read(monkeypatch, conversation)
    _live(conversation, 48)
    thrice = _rows_read(monkeypatch, conversation)
    assert thrice <= 3.2 * some, (some, thrice)


@pytest.mark.parametrize("recent", [0, 1, 3])
def test_what_is_kept_of_earlier_runs_leads_to_what_is_read_anew(
    clean_sqlite: str, monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    """Runs in another order than their questions, words that wait for long, and releases that take turns."""
    conversation = converse(clean_sqlite, on_busy=OnBusy.INTERRUPT, context={"recent_runs": recent})
    ports = conversation.ports
    for number in range(24):
        prompt = {"prompt": f"prompt {number % 3}"} if number % 2 else {}
        document = release_document(tools={"echo": python_tool()}, context={"recent_runs": recent}, agent=prompt)
        publish_release(ports, document)
        conversation.ask(f"question {number}", *([breaks_off()] if number % 5 == 0 else []))
        if number % 4 == 1:
            for late in range(number % 3 + 1):
                conversation.queue(f"interrupts {number} {late}")
        if number % 5 == 0:
            conversation.add(f"waits {number}")
        conversation.worker.drive()
        conversation.runs[-1] = max(ports.store.list_runs(session_id=conversation.session_id), key=_run_no).run_id
    assert run_audit(ports) == ()
    anew: list[object] = []
    walk = history._walk

    def noted(*arguments: Any) -> Any:
        if arguments[-1] is None and arguments[2].record_head:
            anew.append(arguments)
        return walk(*arguments)

    earlier = Earlier()
    runs = sorted(ports.store.list_runs(session_id=conversation.session_id), key=_run_no)
    assert [run.question_seq for run in runs] != sorted(run.question_seq for run in runs)
    for run in runs:
        with ports.store.read() as conn:
            rows = load_run_rows(conn, run.run_id)
        assert rows is not None
        kept = RunFacts(ports, rows, earlier)
        with monkeypatch.context() as patched:
            patched.setattr(history, "_walk", noted)
            ((_, found),) = kept.histories
        ((_, whole),) = ((context, walk(ports, run, context, _frozen(rows), None)) for context in rows.contexts)
        assert (found.own, found.requests, found.damage) == (whole.own, whole.requests, whole.damage)
        assert found.messages == whole.messages[found.settled :]
        assert list(check_pairing(kept)) == []
    assert anew == []


def test_the_walk_goes_session_by_session_through_every_page(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = converse(database_url)
    store = conversation.ports.store
    sessions = [conversation.session_id, *(SessionId(conversation.ports.ids.new()) for _ in range(2))]
    owner = store.find_owner("assistant")
    assert owner is not None
    for session_id in sessions[1:]:
        store.open_session(session_id, owner)
    for number in range(9):
        conversation.session_id = sessions[number % 3]
        conversation.ask(f"question {number}")
        conversation.finish()
    monkeypatch.setattr(audit_scan, "AUDIT_PAGE_ROWS", 2)
    with store.read() as conn:
        walked = list(audit_scan.list_run_ids(conn))
    expected = [(run.session_id, run.run_no, run.run_id) for run in store.list_runs()]
    assert walked == [run_id for _, _, run_id in sorted(expected)]


def test_a_session_without_runs_is_audited(clean_sqlite: str) -> None:
    conversation = converse(clean_sqlite)
    conversation.add("for later")
    assert run_audit(conversation.ports) == ()


def _run_no(run: Any) -> int:
    return int(run.run_no)


def _frozen(rows: Any) -> list[Any]:
    return sorted((row for row in rows.operations if row.request is not None), key=lambda row: row.loop_no)
