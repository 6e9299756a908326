"""The persisted form of what an attempt received: a header and the bytes, compressed together, version 1."""

import zlib
from dataclasses import dataclass, field

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.errors import InvariantError

VERSION = 1
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Transport:
    """The body of an attempt's answer as it came, without the credential, decoded where it was compressed.

    `size_bytes` is what was read of it, up to where the reading stopped. Of a large body the beginning and the end are
    kept: `omitted_bytes` stood at `cut_at` of `body`. `withheld` says why the bytes are not kept at all, empty where
    they are.
    """

    status: int
    media_type: str
    size_bytes: int
    omitted_bytes: int = 0
    cut_at: int = 0
    withheld: str = ""
    body: bytes = field(default=b"", repr=False)


def encode_transport(transport: Transport) -> bytes:
    """Compressed bytes: one line of canonical JSON, then the body."""
    header = {
        "v": VERSION,
        "status": transport.status,
        "type": transport.media_type,
        "bytes": transport.size_bytes,
        "omitted": transport.omitted_bytes,
        "cut": transport.cut_at,
        "withheld": transport.withheld,
    }
    packer = zlib.compressobj(_LEVEL)
    return packer.compress(canonical_bytes(header) + b"\n") + packer.compress(transport.body) + packer.flush()


def decode_transport(stored: bytes) -> Transport:
    """Read what was kept. Raises InvariantError for a version that this code does not know, or what is damaged."""
    try:
        header, _, body = zlib.decompress(stored).partition(b"\n")
    except zlib.error as error:
        raise InvariantError("the transport of an attempt is damaged") from error
    found = parse(header)
    if found.get("v") != VERSION:
        raise InvariantError(f"a transport of version {found.get('v')} cannot be read by this version")
    return Transport(
        found["status"], found["type"], found["bytes"], found["omitted"], found["cut"], found["withheld"], body
    )
