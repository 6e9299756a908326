"""The context budget (seed 000, section 7; seed 004, 4.2). Integer and decimal arithmetic only."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from agentloom_worker.limits import PREFIX_BLOCK_TOKENS, PREFIX_TOKENS_MIN

UTF8_MESSAGE_TOKENS = 32  # what utf8-envelope-v1 allows for a message beside its bytes
UTF8_TOOL_TOKENS = 64  # and for a tool


@dataclass(frozen=True, slots=True)
class Budget:
    """W, O, S, B and the trigger, in tokens."""

    window_tokens: int
    output_reserve_tokens: int
    safety_margin_tokens: int
    input_budget_tokens: int
    trigger_ratio: str
    trigger_tokens: int


def utf8_envelope_tokens(size_bytes: int, messages: int, tools: int) -> int:
    """The estimator `utf8-envelope-v1`: the bytes of the whole body plus an allowance for its envelope."""
    return size_bytes + 256 + UTF8_MESSAGE_TOKENS * messages + UTF8_TOOL_TOKENS * tools


def derive_budget(
    window_tokens: int,
    model_max_output_tokens: int | None,
    output_reserve_tokens: int | None,
    safety_margin_tokens: int | None,
    trigger_ratio: str,
) -> Budget:
    """Apply the formulas. Raises ValueError, naming the number, when B or the ratio is out of range."""
    reserve = output_reserve_tokens
    if reserve is None:
        reserve = min(model_max_output_tokens or 4096, window_tokens // 4)
    margin = safety_margin_tokens
    if margin is None:
        margin = max(256, int((Decimal(window_tokens) / 100).to_integral_value(ROUND_CEILING)))
    ratio = Decimal(trigger_ratio)
    if not Decimal(0) < ratio < Decimal(1):
        raise ValueError(f"trigger_ratio {trigger_ratio} must lie between 0 and 1, both excluded")
    available = window_tokens - reserve - margin
    if available <= 0:
        raise ValueError(
            f"no room for input: window {window_tokens} - output reserve {reserve} - safety margin {margin}"
            f" = {available} tokens"
        )
    trigger = int((ratio * available).to_integral_value(ROUND_FLOOR))
    return Budget(window_tokens, reserve, margin, available, trigger_ratio, trigger)


def prefix_hit_tokens(shared_tokens: int) -> int:
    """What a provider's prefix cache keeps of so many tokens that two requests share: whole blocks, or nothing where
    they are fewer than it begins with (CONTEXT, Prefix cache).
    """
    return shared_tokens - shared_tokens % PREFIX_BLOCK_TOKENS if shared_tokens >= PREFIX_TOKENS_MIN else 0
