"""Owners and their frozen releases."""

from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.ids import OwnerId, ReleaseId
from agentloom_worker.storage.tables import Bytes, Instant, metadata
from agentloom_worker.storage.template import Template

owner = sa.Table(
    "owner",
    metadata,
    sa.Column("owner_id", sa.Uuid, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("slug", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.CheckConstraint("kind IN ('agent', 'workflow', 'resource')", name="kind"),
    sa.UniqueConstraint("kind", "slug"),
)

release = sa.Table(
    "release",
    metadata,
    sa.Column("release_id", sa.Uuid, primary_key=True),
    sa.Column("owner_id", sa.Uuid, sa.ForeignKey("owner.owner_id"), nullable=False),
    sa.Column("digest", Bytes, nullable=False),
    sa.Column("schema_version", sa.SmallInteger, nullable=False),
    sa.Column("body", Bytes),
    sa.Column("blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    sa.Column("published_at", Instant, nullable=False),
    sa.CheckConstraint("(body IS NULL) <> (blob_id IS NULL)", name="one_body"),
    sa.UniqueConstraint("owner_id", "digest"),
    # Serves "does anything refer to this blob"; a row without one has no entry.
    sa.Index(
        "release_blob_ix",
        "blob_id",
        postgresql_where=sa.text("blob_id IS NOT NULL"),
        sqlite_where=sa.text("blob_id IS NOT NULL"),
    ),
)

OWNER_ENSURE = Template(
    "owner_ensure",
    "owner_id:uuid kind:text slug:text",
    "INSERT INTO owner (owner_id, kind, slug, created_at) VALUES (:owner_id, :kind, :slug, {now})"
    " ON CONFLICT (kind, slug) DO NOTHING",
)
RELEASE_PUBLISH = Template(
    "release_publish",
    "release_id:uuid kind:text slug:text digest:bytes version:int body:bytes blob_id:uuid",
    "INSERT INTO release (release_id, owner_id, digest, schema_version, body, blob_id, published_at)"
    " SELECT :release_id, owner_id, :digest, :version, :body, :blob_id, {now} FROM owner"
    " WHERE kind = :kind AND slug = :slug"
    " ON CONFLICT (owner_id, digest) DO UPDATE SET published_at = excluded.published_at",
)
TEMPLATES = (OWNER_ENSURE, RELEASE_PUBLISH)


def find_owner(conn: sa.Connection, slug: str) -> OwnerId | None:
    """The owner of an agent id."""
    query = sa.select(owner.c.owner_id).where(owner.c.kind == "agent", owner.c.slug == slug)
    found = conn.execute(query).scalar()
    return OwnerId(found) if found else None


def find_slug(conn: sa.Connection, owner_id: UUID) -> str | None:
    """The agent id of an owner."""
    return conn.execute(sa.select(owner.c.slug).where(owner.c.owner_id == owner_id)).scalar()


def find_release(conn: sa.Connection, owner_id: UUID, digest: bytes) -> ReleaseId | None:
    """The release of an owner by its digest."""
    query = sa.select(release.c.release_id).where(release.c.owner_id == owner_id, release.c.digest == digest)
    found = conn.execute(query).scalar()
    return ReleaseId(found) if found else None


def newest_release(conn: sa.Connection, owner_id: UUID) -> ReleaseId | None:
    """The release that was published last."""
    query = (
        sa.select(release.c.release_id)
        .where(release.c.owner_id == owner_id)
        .order_by(release.c.published_at.desc(), release.c.release_id.desc())
        .limit(1)
    )
    found = conn.execute(query).scalar()
    return ReleaseId(found) if found else None


def load_release(conn: sa.Connection, release_id: UUID) -> tuple[UUID, bytes, bytes | None, UUID | None] | None:
    """(owner_id, digest, body, blob_id) of a release."""
    query = sa.select(release.c.owner_id, release.c.digest, release.c.body, release.c.blob_id)
    row = conn.execute(query.where(release.c.release_id == release_id)).one_or_none()
    return None if row is None else (row[0], row[1], row[2], row[3])
