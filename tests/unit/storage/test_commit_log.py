"""What scope_commit lists of a commit: the kinds of its parts, whose ids stand in the rows they wrote."""

from uuid import UUID

import pytest

from agentloom_worker.storage.commit_log import kind_of

ID = UUID("01a3185c-5000-7004-89a5-9c25ff50a0e5")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (f"accept:{ID}", "accept"),
        (f"prepare:{ID}:12", "prepare"),
        (f"input-project:{ID}:{ID}", "input-project"),
        (f"model-freeze:{ID}", "model-freeze"),
        (f"first-output:{ID}/1", "first-output"),
        (f"raw:{ID}/3", "raw"),
        (f"model:{ID}:accept", "model:accept"),
        (f"batch:{ID}:deliver", "batch:deliver"),
        (f"settle:{ID}", "settle"),
        (f"finalize:{ID}", "finalize"),
        (f"cleanup:{ID}:run", "cleanup:run"),
        (f"stop:{ID}", "stop"),
        ("1", ""),
    ],
)
def test_a_key_loses_its_ids_and_keeps_its_kind(key: str, kind: str) -> None:
    assert kind_of(key) == kind
