"""What a run is bound to: its frozen release, and the adapter of the release's model."""

from agentloom_worker.context.protocol import ContextProtocol
from agentloom_worker.context.protocols import PROTOCOLS
from agentloom_worker.domain.release import FrozenRelease, load_release
from agentloom_worker.errors import InvariantError
from agentloom_worker.ids import ReleaseId
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.runtime.ports import OwnedRelease, Ports


def adapter_of(ports: Ports, release: FrozenRelease) -> ModelAdapter:
    """The adapter of the release's protocol and profile."""
    model = release.model
    adapter = ports.adapters.of(
        model.protocol, model.profile, model.dialect, encrypted_reasoning=model.encrypted_reasoning
    )
    if adapter is None:
        raise InvariantError(f"this process has no adapter for {model.protocol} with profile {model.profile}")
    return adapter


def load_owned_release(ports: Ports, release_id: ReleaseId) -> OwnedRelease:
    """A frozen release, parsed once per process; its digest is checked when it is read."""
    cached = ports.releases.get(release_id)
    if cached is None:
        stored = ports.store.load_release(release_id)
        if stored is None:
            raise InvariantError(f"release {release_id} is missing")
        release = load_release(stored.body)
        if release.digest != stored.digest:
            raise InvariantError(f"release {release_id} does not hash to its digest")
        cached = OwnedRelease(stored.owner_id, release)
        ports.releases.put(release_id, cached)
    return cached


def protocol_of(release: FrozenRelease) -> ContextProtocol:
    """The context protocol that the release names."""
    protocol = PROTOCOLS.get(release.protocol)
    if protocol is None:
        raise InvariantError(f"this process has no context protocol {release.protocol}")
    return protocol
