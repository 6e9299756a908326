"""A window over time: who is let through of many who wait."""

from agentloom_worker.clock import ManualClock
from agentloom_worker.leases import Rate, Waiter
from agentloom_worker.leases.local import LocalFastPath

MINUTE_MS = 60_000
RATE = Rate(None, 1000)


def test_a_large_request_finds_room_though_small_ones_come_faster_than_the_limit_lets_through() -> None:
    """One of 100 tokens every three seconds would keep a limit of 1,000 a minute full for ever."""
    clock = ManualClock()
    store = LocalFastPath(clock)
    let_in_at: dict[str, float] = {}
    due = {"large": 60.0}
    began_s = clock.monotonic_s()
    for second in range(600):
        if second % 3 == 0:
            due[f"small {second}"] = float(second)
        for name in [one for one, at in due.items() if at <= second]:
            tokens = 600 if name == "large" else 100
            free_ms = store.enter_window("model", RATE, f"{name} at {second}", tokens, MINUTE_MS, Waiter(name, 10_000))
            if free_ms:
                due[name] = second + free_ms / 1000
            else:
                let_in_at[name] = clock.monotonic_s() - began_s
                del due[name]
        clock.advance(s=1)
    assert let_in_at["large"] <= 60 + 2 * 60
    small = [at for name, at in let_in_at.items() if name != "large"]
    assert len(small) >= 90, "and the small ones went on"
