"""Every rule that the code cites is explained."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ID = re.compile(r"\b([RTAUN]\d{1,2})\b")


def test_every_cited_ruling_stands_in_the_rules() -> None:
    explained = set(re.findall(r"\*\*([RTAUN]\d{1,2})\*\*", (ROOT / "docs" / "rules.md").read_text()))
    missing: dict[str, str] = {}
    seen = 0
    for path in sorted((ROOT / "agentloom_worker").rglob("*.py")):
        for line in path.read_text().splitlines():
            if "RULINGS" not in line:
                continue
            for cited in _ID.findall(line.split("RULINGS", 1)[1]):
                seen += 1
                if cited not in explained:
                    missing[cited] = f"{path.relative_to(ROOT)}: {line.strip()}"
    assert seen > 50
    assert not missing
