"""The sizes of the long cases in one table; AGENTLOOM_SOAK_SCALE, a fraction, makes counts and times smaller."""

import os
from dataclasses import dataclass

from agentloom_worker import limits
from agentloom_worker.runtime.ports import Settings

SCALE = float(os.environ.get("AGENTLOOM_SOAK_SCALE", "1"))
assert 0 < SCALE <= 1, "AGENTLOOM_SOAK_SCALE is a fraction"


def _seconds(full: float, least: float) -> float:
    return max(least, full * SCALE)


def _count(full: int, least: int) -> int:
    return max(least, round(full * SCALE))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Full size is what CASES.md says; the least is what the case still means something with."""

    # Claims: the defaults at full size, shortened with the times that are compared with them.
    claim_ttl_s: float = _seconds(limits.CLAIM_TTL_S, 3.0)
    claim_renew_s: float = _seconds(limits.CLAIM_RENEW_S, 0.5)
    suspect_grace_s: float = _seconds(limits.SUSPECT_GRACE_S, 1.0)
    # D01
    stream_s: float = _seconds(600.0, 10.0)
    redelivery_s: float = _seconds(5.0, 0.5)
    # D02
    stopped_ttls: float = 2.0
    # D03
    short_runs: int = _count(10_000, 200)
    workers: int = 4
    kill_every_s: float = _seconds(2.0, 2.0)
    # D05
    other_runs: int = _count(200, 6)
    # D11
    restarts_s: float = _seconds(300.0, 12.0)
    restart_gaps_s: tuple[float, ...] = tuple(_seconds(gap, 1.5) for gap in (5.0, 40.0, 12.0, 25.0, 8.0, 33.0, 18.0))
    runs_per_restart: int = _count(40, 4)
    # everything at once
    chaos_s: float = _seconds(60.0, 12.0)
    chaos_every_s: float = 1.5
    chaos_runs: int = _count(200, 20)
    # the reading of streams
    spoilt_streams: int = _count(1_000_000, 10_000)
    # Bounds of waits, not sizes: what hangs is found by them.
    patience_s: float = _seconds(1_800.0, 120.0)

    @property
    def settings(self) -> Settings:
        """What a process without a broker is given."""
        return Settings(
            claim_ttl_s=self.claim_ttl_s, claim_renew_s=self.claim_renew_s, suspect_grace_s=self.suspect_grace_s
        )

    @property
    def variables(self) -> dict[str, str]:
        """The same for the environment of a fleet; at full size only what every default is."""
        return {
            "CLAIM_TTL_S": str(self.claim_ttl_s),
            "CLAIM_RENEW_S": str(self.claim_renew_s),
            "SUSPECT_GRACE_S": str(self.suspect_grace_s),
            "METRICS_HOST": "127.0.0.1",
        }


SIZES = Sizes()
