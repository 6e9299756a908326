"""Built-in capabilities: one file per noun, one line in the table."""

from collections.abc import Callable

from agentloom_worker.capabilities.builtin import result
from agentloom_worker.domain.capability import CapabilitySpec

# key -> the capability as every release has it
BUILTINS: dict[str, Callable[[], CapabilitySpec]] = {
    result.KEY: result.result_read_spec,
}
