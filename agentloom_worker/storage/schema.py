"""The schema as a whole: every table and template, creation, migration and the check of its version."""

from importlib import resources
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from agentloom_worker.errors import Code, PersistenceUnavailableError, RequestError
from agentloom_worker.storage import blob, commit_log, context, dispatch, operation, owner, run, session, tree
from agentloom_worker.storage.tables import metadata

TEMPLATES = (
    *owner.TEMPLATES,
    *blob.TEMPLATES,
    *session.TEMPLATES,
    *run.TEMPLATES,
    *tree.TEMPLATES,
    *operation.TEMPLATES,
    *context.TEMPLATES,
    *dispatch.TEMPLATES,
    *commit_log.TEMPLATES,
)

# Raises a coded error unless a statement met exactly the rows that it must; and the database's clock, which
# a test may fix.
POSTGRES_FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION al_assert(ok boolean, state text, code text, entity text) RETURNS void
    LANGUAGE plpgsql AS $$
    BEGIN
        IF ok IS NOT TRUE THEN RAISE EXCEPTION USING ERRCODE = state, MESSAGE = code, DETAIL = entity; END IF;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION al_now(fixed bigint) RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT coalesce(fixed, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) $$
    """,
)


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def _scripts() -> Path:
    """The migrations: package data of the wheel, or the checkout's top-level folder."""
    try:
        found = Path(str(resources.files("agentloom_worker.migrations")))
    except ModuleNotFoundError:
        found = Path(__file__).resolve().parents[2] / "migrations"
    return found


def migrate(url: str) -> None:
    """Bring a database to the newest schema. Safe to run again; several at once serialize.

    Raises RequestError for a schema that is newer than this code, PersistenceUnavailableError for a database
    that cannot be reached.
    """
    engine = sa.create_engine(url)
    try:
        refuse_newer(current_revision(engine))
        command.upgrade(_config(url), "head")
    except sa.exc.OperationalError as error:
        raise PersistenceUnavailableError(f"cannot migrate: {type(error.orig).__name__}") from error
    finally:
        engine.dispose()


def newest_revision() -> str:
    """The revision that this code needs."""
    head = ScriptDirectory.from_config(_config("sqlite://")).get_current_head()
    assert head is not None, "the package holds no migrations"
    return head


def current_revision(engine: sa.Engine) -> str | None:
    """The revision that a database has."""
    with engine.connect() as conn:
        return MigrationContext.configure(conn).get_current_revision()


def refuse_newer(found: str | None) -> None:
    """Raise RequestError where a revision is none of ours: a later version of the code made it."""
    known = {script.revision for script in ScriptDirectory.from_config(_config("sqlite://")).walk_revisions()}
    if found is not None and found not in known:
        raise RequestError(
            Code.SCHEMA_BEHIND,
            f"the database's schema is {found}, which this version does not know: upgrade agentloom-worker",
        )


__all__ = [
    "POSTGRES_FUNCTIONS",
    "TEMPLATES",
    "current_revision",
    "metadata",
    "migrate",
    "newest_revision",
    "refuse_newer",
]
