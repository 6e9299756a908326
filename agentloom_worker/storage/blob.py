"""Content above the inline limit, by owner and digest, compressed. Every read names the owner.

An id or a hash gives no access by itself. Collection spares what was touched within the grace period, so
that a body put before its commit survives until the commit refers to it (RULINGS T14).
"""

import zlib
from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.canonical import sha256
from agentloom_worker.limits import BLOB_COMPRESS_ABOVE_BYTES
from agentloom_worker.storage.tables import Bytes, Instant, metadata
from agentloom_worker.storage.template import Statement, Template

blob = sa.Table(
    "blob",
    metadata,
    sa.Column("blob_id", sa.Uuid, primary_key=True),
    sa.Column("owner_id", sa.Uuid, sa.ForeignKey("owner.owner_id"), nullable=False),
    sa.Column("sha256", Bytes, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("encoding", sa.Text, nullable=False),
    sa.Column("content", Bytes, nullable=False),
    sa.Column("touched_at", Instant, nullable=False),
    sa.CheckConstraint("encoding IN ('identity', 'zlib')", name="encoding"),
    sa.UniqueConstraint("owner_id", "sha256"),
)

BLOB_PUT = Template(
    "blob_put",
    "blob_id:uuid owner_id:uuid sha256:bytes size:int media_type:text encoding:text content:bytes",
    "INSERT INTO blob (blob_id, owner_id, sha256, size_bytes, media_type, encoding, content, touched_at)"
    " VALUES (:blob_id, :owner_id, :sha256, :size, :media_type, :encoding, :content, {now})"
    " ON CONFLICT (owner_id, sha256) DO UPDATE SET touched_at = excluded.touched_at",
)
# The references are foreign keys as well, so that a race with a commit fails here and not there. Scalar queries, each
# answered by a partial index: as anti-joins they were planned over the whole of the referring tables.
BLOB_COLLECT = Template(
    "blob_collect",
    "after:uuid last:uuid grace_us:int",
    "DELETE FROM blob WHERE blob_id > :after AND blob_id <= :last AND touched_at < (SELECT {now}) - :grace_us"
    " AND (SELECT 1 FROM release r WHERE r.blob_id = blob.blob_id LIMIT 1) IS NULL"
    " AND (SELECT 1 FROM user_input i WHERE i.blob_id = blob.blob_id LIMIT 1) IS NULL"
    " AND (SELECT 1 FROM operation o WHERE o.raw_blob_id = blob.blob_id LIMIT 1) IS NULL"
    " AND (SELECT 1 FROM operation e WHERE e.effective_blob_id = blob.blob_id LIMIT 1) IS NULL"
    " AND (SELECT 1 FROM attempt a WHERE a.transport_blob_id = blob.blob_id LIMIT 1) IS NULL"
    " AND (SELECT 1 FROM context_record r WHERE r.blob_id = blob.blob_id LIMIT 1) IS NULL"
    " AND (SELECT 1 FROM effective_entry f WHERE f.effective_blob_id = blob.blob_id LIMIT 1) IS NULL"
    " RETURNING blob_id",
)
TEMPLATES = (BLOB_PUT, BLOB_COLLECT)


def put(blob_id: UUID, owner_id: UUID, body: bytes, media_type: str) -> Statement:
    """The statement that stores a body unless the owner has it already (then it is only touched)."""
    encoding, content = "identity", body
    if len(body) > BLOB_COMPRESS_ABOVE_BYTES:
        packed = zlib.compress(body, 6)
        if len(packed) < len(body):
            encoding, content = "zlib", packed
    return BLOB_PUT(blob_id, owner_id, sha256(body), len(body), media_type, encoding, content)


def list_ids(conn: sa.Connection, *, after: UUID, limit: int) -> list[UUID]:
    """The ids behind one, in order."""
    query = sa.select(blob.c.blob_id).where(blob.c.blob_id > after).order_by(blob.c.blob_id).limit(limit)
    return [row[0] for row in conn.execute(query)]


def read(conn: sa.Connection, owner_id: UUID, blob_id: UUID) -> bytes | None:
    """The body, if this owner holds that blob; verified against its digest by `audit`."""
    query = sa.select(blob.c.encoding, blob.c.content).where(blob.c.blob_id == blob_id, blob.c.owner_id == owner_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return unpack(row.encoding, bytes(row.content))


def read_many(conn: sa.Connection, owner_id: UUID, blob_ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """The bodies of those blobs that this owner holds."""
    if not blob_ids:
        return {}
    columns = (blob.c.blob_id, blob.c.encoding, blob.c.content)
    query = sa.select(*columns).where(blob.c.blob_id.in_(blob_ids), blob.c.owner_id == owner_id)
    return {row.blob_id: unpack(row.encoding, bytes(row.content)) for row in conn.execute(query)}


def unpack(encoding: str, content: bytes) -> bytes:
    """The body of a blob's content. Raises zlib.error where the content is damaged."""
    return zlib.decompress(content) if encoding == "zlib" else content
