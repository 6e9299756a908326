"""Create the tables of the spine"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What a column may hold: on PostgreSQL by its type, a domain, on SQLite by a CHECK.
_VALUES = {
    "agent_invocation_status": "running settled",
    "attempt_category": "validation permission not_found conflict business protocol transport rate_limit timeout limit denied environment persistence cancelled unknown",
    "attempt_first_output_kind": "text reasoning tool_name tool_arguments complete_frame",
    "attempt_state": "intent complete failed cancelled unknown",
    "call_batch_state": "open delivered",
    "context_record_message_kind": "prompt user_ref assistant tool_result feedback",
    "context_record_raw_ref": "prompt input operation record",
    "context_record_role": "system user assistant tool",
    "effective_entry_raw_ref": "prompt input operation record",
    "graph_execution_status": "running settled",
    "loop_ticket_state": "reserved consumed released",
    "node_task_phase": "prepare_context freeze await_model accept await_batch deliver_batch validate_output settle settled",
    "operation_executed": "not_executed executed unknown",
    "operation_kind": "model tool internal",
    "operation_status": "prepared attempting completed failed cancelled unknown",
    "queued_question_state": "queued started withdrawn failed",
    "run_cleanup_state": "none pending retrying done blocked",
    "run_end_cause": "answer failure stop deadline quota",
    "run_status": "queued running stopping succeeded failed cancelled timed_out budget_exhausted",
    "session_on_busy": "reject supplement enqueue interrupt",
    "user_input_delivery_state": "pending claimed delivered carried",
    "user_input_kind": "question supplement",
}

# What may refer to a blob: index, table, column.
_BLOB_INDEXES = (
    ("attempt_transport_blob_ix", "attempt", "transport_blob_id"),
    ("context_record_blob_ix", "context_record", "blob_id"),
    ("effective_entry_blob_ix", "effective_entry", "effective_blob_id"),
    ("operation_raw_blob_ix", "operation", "raw_blob_id"),
    ("operation_effective_blob_ix", "operation", "effective_blob_id"),
    ("release_blob_ix", "release", "blob_id"),
    ("user_input_blob_ix", "user_input", "blob_id"),
)


def _listed(name: str) -> str:
    return ", ".join(f"'{value}'" for value in _VALUES[name].split())


def _one_of(domain: str) -> sa.types.TypeEngine[str]:
    made_before = postgresql.DOMAIN(domain, sa.Text(), create_type=False)
    return sa.Text().with_variant(made_before, "postgresql")


def _check(column: str, name: str) -> sa.CheckConstraint:
    check = sa.CheckConstraint(f"{column} IN ({_listed(name)})", name=op.f(f"{name}_check"))
    return check.ddl_if(dialect="sqlite")


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for domain in _VALUES:
            op.execute(f"CREATE DOMAIN {domain} AS TEXT CONSTRAINT {domain}_check CHECK (VALUE IN ({_listed(domain)}))")
        op.execute(
            """
            CREATE OR REPLACE FUNCTION al_assert(ok boolean, state text, code text, entity text) RETURNS void
            LANGUAGE plpgsql AS $$
            BEGIN
                IF ok IS NOT TRUE THEN
                    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = code, DETAIL = entity;
                END IF;
            END $$
            """
        )
        op.execute(
            """
            CREATE OR REPLACE FUNCTION al_now(fixed bigint) RETURNS bigint LANGUAGE sql VOLATILE AS
            $$ SELECT coalesce(fixed, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) $$
            """
        )
    op.create_table(
        "call_batch",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Uuid(), nullable=False),
        sa.Column("model_operation_id", sa.Uuid(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("settled", sa.Integer(), nullable=False),
        sa.Column("state", _one_of("call_batch_state"), nullable=False),
        _check("state", "call_batch_state"),
        sa.CheckConstraint("settled >= 0 AND settled <= size", name=op.f("call_batch_settled_check")),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("call_batch_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_table(
        "effective_revision",
        sa.Column("context_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("record_watermark", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("manifest_hash", sa.LargeBinary(), nullable=False),
        sa.Column("commit_ref", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("context_id", "revision", name=op.f("effective_revision_pkey")),
    )
    op.create_table(
        "loop_ticket",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("loop_no", sa.Integer(), nullable=False),
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("state", _one_of("loop_ticket_state"), nullable=False),
        _check("state", "loop_ticket_state"),
        sa.PrimaryKeyConstraint("run_id", "loop_no", name=op.f("loop_ticket_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_table(
        "owner",
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('agent', 'workflow', 'resource')", name=op.f("owner_kind_check")),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("owner_pkey")),
        sa.UniqueConstraint("kind", "slug", name=op.f("owner_kind_slug_key")),
    )
    op.create_table(
        "pending_dispatch",
        sa.Column("dispatch_id", sa.Uuid(), nullable=False),
        sa.Column("scope_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("wake_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed_until", sa.BigInteger(), nullable=True),
        sa.Column("suspect_at", sa.BigInteger(), nullable=True),
        sa.Column("parked_at", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("wakes", sa.SmallInteger(), nullable=False),
        sa.Column("step_version", sa.SmallInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("claim_token", sa.Uuid(), nullable=True),
        sa.Column("claimed_by", sa.Uuid(), nullable=True),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("dispatch_id", name=op.f("pending_dispatch_pkey")),
        sa.UniqueConstraint(
            "scope_id",
            "subject_id",
            "step",
            "key",
            name=op.f("pending_dispatch_scope_id_subject_id_step_key_key"),
        ),
        postgresql_with={
            "fillfactor": 70,
            "vacuum_truncate": "off",
            "vacuum_index_cleanup": "on",
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 2000,
            "autovacuum_vacuum_cost_delay": 0,
        },
    )
    op.create_index(
        "pending_dispatch_wake_ix",
        "pending_dispatch",
        ["wake_at"],
        unique=False,
        postgresql_where=sa.text("parked_at IS NULL"),
        sqlite_where=sa.text("parked_at IS NULL"),
    )
    op.create_table(
        "run_event",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("run_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("fields", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "run_seq", name=op.f("run_event_pkey")),
    )
    op.create_table(
        "scope_commit",
        sa.Column("scope_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("command_hash", sa.LargeBinary(), nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("receipt", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("scope_id", "key", name=op.f("scope_commit_pkey")),
    )
    op.create_table(
        "worker_process",
        sa.Column("process_id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("process_id", name=op.f("worker_process_pkey")),
    )
    op.create_table(
        "blob",
        sa.Column("blob_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("encoding", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("touched_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("encoding IN ('identity', 'zlib')", name=op.f("blob_encoding_check")),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.owner_id"], name=op.f("blob_owner_id_fkey")),
        sa.PrimaryKeyConstraint("blob_id", name=op.f("blob_pkey")),
        sa.UniqueConstraint("owner_id", "sha256", name=op.f("blob_owner_id_sha256_key")),
    )
    op.create_table(
        "attempt",
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("attempt_no", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("first_output_at", sa.BigInteger(), nullable=True),
        sa.Column("late_at", sa.BigInteger(), nullable=True),
        sa.Column("http_status", sa.Integer(), nullable=True),
        sa.Column("maybe_sent", sa.Boolean(), nullable=False),
        sa.Column("first_output_display", sa.Boolean(), nullable=True),
        sa.Column("state", _one_of("attempt_state"), nullable=False),
        sa.Column("first_output_kind", _one_of("attempt_first_output_kind"), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("category", _one_of("attempt_category"), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("partial", sa.LargeBinary(), nullable=True),
        sa.Column("late_ref", sa.LargeBinary(), nullable=True),
        sa.Column("transport", sa.LargeBinary(), nullable=True),
        sa.Column("transport_blob_id", sa.Uuid(), nullable=True),
        _check("category", "attempt_category"),
        _check("first_output_kind", "attempt_first_output_kind"),
        _check("state", "attempt_state"),
        sa.ForeignKeyConstraint(["transport_blob_id"], ["blob.blob_id"], name=op.f("attempt_transport_blob_id_fkey")),
        sa.PrimaryKeyConstraint("operation_id", "attempt_no", name=op.f("attempt_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_table(
        "session",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("input_head", sa.BigInteger(), nullable=False),
        sa.Column("run_head", sa.BigInteger(), nullable=False),
        sa.Column("on_busy", _one_of("session_on_busy"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        _check("on_busy", "session_on_busy"),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.owner_id"], name=op.f("session_owner_id_fkey")),
        sa.PrimaryKeyConstraint("session_id", name=op.f("session_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("session_created_ix", "session", ["created_at"], unique=False)
    op.create_table(
        "context_record",
        sa.Column("context_id", sa.Uuid(), nullable=False),
        sa.Column("context_seq", sa.BigInteger(), nullable=False),
        sa.Column("record_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("role", _one_of("context_record_role"), nullable=False),
        sa.Column("message_kind", _one_of("context_record_message_kind"), nullable=False),
        sa.Column("raw_ref", _one_of("context_record_raw_ref"), nullable=False),
        sa.Column("logical_result_key", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Uuid(), nullable=True),
        sa.Column("call_id", sa.Uuid(), nullable=True),
        sa.Column("origin_input_id", sa.Uuid(), nullable=True),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("prompt_slot", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("blob_id", sa.Uuid(), nullable=True),
        sa.Column("message_index", sa.BigInteger(), nullable=True),
        sa.Column("window_id", sa.Text(), nullable=True),
        sa.Column("input_run_id", sa.Uuid(), nullable=True),
        _check("message_kind", "context_record_message_kind"),
        _check("raw_ref", "context_record_raw_ref"),
        _check("role", "context_record_role"),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.blob_id"], name=op.f("context_record_blob_id_fkey")),
        sa.PrimaryKeyConstraint("context_id", "context_seq", name=op.f("context_record_pkey")),
    )
    op.create_index(
        "context_record_input_key",
        "context_record",
        ["context_id", "origin_input_id", "message_kind"],
        unique=True,
        postgresql_where=sa.text("origin_input_id IS NOT NULL AND operation_id IS NULL"),
        sqlite_where=sa.text("origin_input_id IS NOT NULL AND operation_id IS NULL"),
    )
    op.create_index(
        "context_record_prompt_key",
        "context_record",
        ["context_id", "release_id", "prompt_slot"],
        unique=True,
        postgresql_where=sa.text("prompt_slot IS NOT NULL"),
        sqlite_where=sa.text("prompt_slot IS NOT NULL"),
    )
    op.create_index(
        "context_record_result_key",
        "context_record",
        ["operation_id", "message_kind", "logical_result_key"],
        unique=True,
        postgresql_where=sa.text("operation_id IS NOT NULL"),
        sqlite_where=sa.text("operation_id IS NOT NULL"),
    )
    op.create_table(
        "effective_entry",
        sa.Column("context_id", sa.Uuid(), nullable=False),
        sa.Column("context_seq", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("raw_ref", _one_of("effective_entry_raw_ref"), nullable=False),
        sa.Column("effective_ref", sa.Text(), nullable=True),
        sa.Column("effective_blob_id", sa.Uuid(), nullable=True),
        sa.Column("effective_hash", sa.LargeBinary(), nullable=False),
        sa.Column("estimator", sa.Text(), nullable=False),
        sa.Column("source_refs", sa.LargeBinary(), nullable=False),
        sa.Column("visible_fields", sa.LargeBinary(), nullable=False),
        sa.Column("dependency_refs", sa.LargeBinary(), nullable=False),
        _check("raw_ref", "effective_entry_raw_ref"),
        sa.ForeignKeyConstraint(
            ["effective_blob_id"], ["blob.blob_id"], name=op.f("effective_entry_effective_blob_id_fkey")
        ),
        sa.PrimaryKeyConstraint("context_id", "context_seq", "revision", name=op.f("effective_entry_pkey")),
    )
    op.create_table(
        "operation",
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Uuid(), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=True),
        sa.Column("call_id", sa.Uuid(), nullable=True),
        sa.Column("model_operation_id", sa.Uuid(), nullable=True),
        sa.Column("loop_no", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=True),
        sa.Column("kind", _one_of("operation_kind"), nullable=False),
        sa.Column("capability", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=True),
        sa.Column("request", sa.LargeBinary(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("attempts_made", sa.SmallInteger(), nullable=False),
        sa.Column("unknown_attempts", sa.SmallInteger(), nullable=False),
        sa.Column("drain_interrupts", sa.SmallInteger(), nullable=False),
        sa.Column("status", _one_of("operation_status"), nullable=False),
        sa.Column("executed", _one_of("operation_executed"), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.Column("raw_blob_id", sa.Uuid(), nullable=True),
        sa.Column("effective", sa.LargeBinary(), nullable=True),
        sa.Column("effective_blob_id", sa.Uuid(), nullable=True),
        _check("executed", "operation_executed"),
        _check("kind", "operation_kind"),
        _check("status", "operation_status"),
        sa.ForeignKeyConstraint(["effective_blob_id"], ["blob.blob_id"], name=op.f("operation_effective_blob_id_fkey")),
        sa.ForeignKeyConstraint(["raw_blob_id"], ["blob.blob_id"], name=op.f("operation_raw_blob_id_fkey")),
        sa.PrimaryKeyConstraint("operation_id", name=op.f("operation_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("operation_run_ix", "operation", ["run_id", "batch_id"], unique=False)
    op.create_table(
        "release",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("schema_version", sa.SmallInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("blob_id", sa.Uuid(), nullable=True),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(body IS NULL) <> (blob_id IS NULL)", name=op.f("release_one_body_check")),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.blob_id"], name=op.f("release_blob_id_fkey")),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.owner_id"], name=op.f("release_owner_id_fkey")),
        sa.PrimaryKeyConstraint("release_id", name=op.f("release_pkey")),
        sa.UniqueConstraint("owner_id", "digest", name=op.f("release_owner_id_digest_key")),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("status", _one_of("run_status"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("event_head", sa.BigInteger(), nullable=False),
        sa.Column("input_head", sa.BigInteger(), nullable=False),
        sa.Column("loops_used", sa.Integer(), nullable=False),
        sa.Column("loops_reserved", sa.Integer(), nullable=False),
        sa.Column("max_loops", sa.Integer(), nullable=False),
        sa.Column("deadline_at", sa.BigInteger(), nullable=False),
        sa.Column("binding", sa.LargeBinary(), nullable=False),
        sa.Column("run_no", sa.BigInteger(), nullable=False),
        sa.Column("question_seq", sa.BigInteger(), nullable=False),
        sa.Column("end_cause", _one_of("run_end_cause"), nullable=True),
        sa.Column("end_code", sa.Text(), nullable=True),
        sa.Column("end_detail", sa.Text(), nullable=True),
        sa.Column("answer_operation_id", sa.Uuid(), nullable=True),
        sa.Column("cleanup_state", _one_of("run_cleanup_state"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        _check("cleanup_state", "run_cleanup_state"),
        _check("end_cause", "run_end_cause"),
        _check("status", "run_status"),
        sa.CheckConstraint("loops_used >= 0 AND loops_reserved >= 0", name=op.f("run_loops_check")),
        sa.ForeignKeyConstraint(["session_id"], ["session.session_id"], name=op.f("run_session_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("run_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index(
        "run_live_session_key",
        "run",
        ["session_id"],
        unique=True,
        postgresql_where=sa.text("status IN ('queued', 'running', 'stopping')"),
        sqlite_where=sa.text("status IN ('queued', 'running', 'stopping')"),
    )
    op.create_index("run_question_key", "run", ["session_id", "question_seq"], unique=True)
    op.create_index("run_session_ix", "run", ["session_id", "run_id"], unique=False)
    op.create_table(
        "user_input",
        sa.Column("input_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("input_seq", sa.BigInteger(), nullable=False),
        sa.Column("origin_run_id", sa.Uuid(), nullable=True),
        sa.Column("kind", _one_of("user_input_kind"), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("blob_id", sa.Uuid(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        _check("kind", "user_input_kind"),
        sa.CheckConstraint("(body IS NULL) <> (blob_id IS NULL)", name=op.f("user_input_one_body_check")),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.blob_id"], name=op.f("user_input_blob_id_fkey")),
        sa.ForeignKeyConstraint(["session_id"], ["session.session_id"], name=op.f("user_input_session_id_fkey")),
        sa.PrimaryKeyConstraint("input_id", name=op.f("user_input_pkey")),
        sa.UniqueConstraint("session_id", "input_seq", name=op.f("user_input_session_id_input_seq_key")),
    )
    op.create_table(
        "agent_invocation",
        sa.Column("invocation_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("graph_id", sa.Uuid(), nullable=False),
        sa.Column("binding_key", sa.Text(), nullable=False),
        sa.Column("status", _one_of("agent_invocation_status"), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        _check("status", "agent_invocation_status"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("agent_invocation_run_id_fkey")),
        sa.PrimaryKeyConstraint("invocation_id", name=op.f("agent_invocation_pkey")),
        sa.UniqueConstraint("run_id", "binding_key", name=op.f("agent_invocation_run_id_binding_key_key")),
    )
    op.create_table(
        "graph_execution",
        sa.Column("graph_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("status", _one_of("graph_execution_status"), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        _check("status", "graph_execution_status"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("graph_execution_run_id_fkey")),
        sa.PrimaryKeyConstraint("graph_id", name=op.f("graph_execution_pkey")),
        sa.UniqueConstraint("run_id", name=op.f("graph_execution_run_id_key")),
    )
    op.create_table(
        "node_task",
        sa.Column("node_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("invocation_id", sa.Uuid(), nullable=False),
        sa.Column("role_key", sa.Text(), nullable=False),
        sa.Column("phase", _one_of("node_task_phase"), nullable=False),
        sa.Column("continuation", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        _check("phase", "node_task_phase"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("node_task_run_id_fkey")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("node_task_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("node_task_run_ix", "node_task", ["run_id"], unique=False)
    op.create_table(
        "role_context",
        sa.Column("context_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("invocation_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Uuid(), nullable=False),
        sa.Column("record_head", sa.BigInteger(), nullable=False),
        sa.Column("effective_revision", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("manifest_hash", sa.LargeBinary(), nullable=False),
        sa.Column("last_model_operation_id", sa.Uuid(), nullable=True),
        sa.Column("role_key", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("role_context_run_id_fkey")),
        sa.PrimaryKeyConstraint("context_id", name=op.f("role_context_pkey")),
        sa.UniqueConstraint("node_id", name=op.f("role_context_node_id_key")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_table(
        "user_input_delivery",
        sa.Column("delivery_id", sa.Uuid(), nullable=False),
        sa.Column("input_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("target_run_id", sa.Uuid(), nullable=True),
        sa.Column("operation_id", sa.Uuid(), nullable=True),
        sa.Column("previous_delivery_id", sa.Uuid(), nullable=True),
        sa.Column("state", _one_of("user_input_delivery_state"), nullable=False),
        sa.Column("context_seq", sa.BigInteger(), nullable=True),
        sa.Column("first_output_receipt", sa.Text(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        _check("state", "user_input_delivery_state"),
        sa.ForeignKeyConstraint(["input_id"], ["user_input.input_id"], name=op.f("user_input_delivery_input_id_fkey")),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("user_input_delivery_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index(
        "user_input_delivery_claim_key",
        "user_input_delivery",
        ["operation_id", "input_id"],
        unique=True,
        postgresql_where=sa.text("operation_id IS NOT NULL"),
        sqlite_where=sa.text("operation_id IS NOT NULL"),
    )
    op.create_index("user_input_delivery_target_ix", "user_input_delivery", ["target_run_id"], unique=False)
    op.create_index("user_input_delivery_input_ix", "user_input_delivery", ["input_id"], unique=False)
    op.create_index(
        "user_input_delivery_waiting_ix",
        "user_input_delivery",
        ["session_id"],
        unique=False,
        postgresql_where=sa.text("target_run_id IS NULL"),
        sqlite_where=sa.text("target_run_id IS NULL"),
    )
    op.create_index(
        "user_input_delivery_carry_key",
        "user_input_delivery",
        ["input_id", "previous_delivery_id"],
        unique=True,
        postgresql_where=sa.text("previous_delivery_id IS NOT NULL"),
        sqlite_where=sa.text("previous_delivery_id IS NOT NULL"),
    )
    op.create_table(
        "queued_question",
        sa.Column("input_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("state", _one_of("queued_question_state"), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        _check("state", "queued_question_state"),
        sa.ForeignKeyConstraint(["input_id"], ["user_input.input_id"], name=op.f("queued_question_input_id_fkey")),
        sa.PrimaryKeyConstraint("input_id", name=op.f("queued_question_pkey")),
    )
    op.create_index(
        "queued_question_next_ix",
        "queued_question",
        ["session_id", "place"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
        sqlite_where=sa.text("state = 'queued'"),
    )
    _index_blobs()


def _index_blobs() -> None:
    for name, table, column in _BLOB_INDEXES:
        where = sa.text(f"{column} IS NOT NULL")
        op.create_index(name, table, [column], unique=False, postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    for name, table, _ in _BLOB_INDEXES:
        op.drop_index(name, table_name=table)
    op.drop_index(
        "queued_question_next_ix",
        table_name="queued_question",
        postgresql_where=sa.text("state = 'queued'"),
        sqlite_where=sa.text("state = 'queued'"),
    )
    op.drop_table("queued_question")
    op.drop_index(
        "user_input_delivery_carry_key",
        table_name="user_input_delivery",
        postgresql_where=sa.text("previous_delivery_id IS NOT NULL"),
        sqlite_where=sa.text("previous_delivery_id IS NOT NULL"),
    )
    op.drop_index(
        "user_input_delivery_waiting_ix",
        table_name="user_input_delivery",
        postgresql_where=sa.text("target_run_id IS NULL"),
        sqlite_where=sa.text("target_run_id IS NULL"),
    )
    op.drop_index("user_input_delivery_input_ix", table_name="user_input_delivery")
    op.drop_index("user_input_delivery_target_ix", table_name="user_input_delivery")
    op.drop_index(
        "user_input_delivery_claim_key",
        table_name="user_input_delivery",
        postgresql_where=sa.text("operation_id IS NOT NULL"),
        sqlite_where=sa.text("operation_id IS NOT NULL"),
    )
    op.drop_table("user_input_delivery")
    op.drop_table("role_context")
    op.drop_index("node_task_run_ix", table_name="node_task")
    op.drop_table("node_task")
    op.drop_table("graph_execution")
    op.drop_table("agent_invocation")
    op.drop_table("user_input")
    op.drop_index("run_session_ix", table_name="run")
    op.drop_index("run_question_key", table_name="run")
    op.drop_index(
        "run_live_session_key",
        table_name="run",
        postgresql_where=sa.text("status IN ('queued', 'running', 'stopping')"),
        sqlite_where=sa.text("status IN ('queued', 'running', 'stopping')"),
    )
    op.drop_table("run")
    op.drop_table("release")
    op.drop_index("operation_run_ix", table_name="operation")
    op.drop_table("operation")
    op.drop_table("effective_entry")
    op.drop_index(
        "context_record_result_key",
        table_name="context_record",
        postgresql_where=sa.text("operation_id IS NOT NULL"),
        sqlite_where=sa.text("operation_id IS NOT NULL"),
    )
    op.drop_index(
        "context_record_prompt_key",
        table_name="context_record",
        postgresql_where=sa.text("prompt_slot IS NOT NULL"),
        sqlite_where=sa.text("prompt_slot IS NOT NULL"),
    )
    op.drop_index(
        "context_record_input_key",
        table_name="context_record",
        postgresql_where=sa.text("origin_input_id IS NOT NULL AND operation_id IS NULL"),
        sqlite_where=sa.text("origin_input_id IS NOT NULL AND operation_id IS NULL"),
    )
    op.drop_table("context_record")
    op.drop_table("session")
    op.drop_table("attempt")
    op.drop_table("blob")
    op.drop_table("worker_process")
    op.drop_table("scope_commit")
    op.drop_table("run_event")
    op.drop_index(
        "pending_dispatch_wake_ix",
        table_name="pending_dispatch",
        postgresql_where=sa.text("parked_at IS NULL"),
        sqlite_where=sa.text("parked_at IS NULL"),
    )
    op.drop_table("pending_dispatch")
    op.drop_table("owner")
    op.drop_table("loop_ticket")
    op.drop_table("effective_revision")
    op.drop_table("call_batch")
    if op.get_bind().dialect.name == "postgresql":
        for domain in _VALUES:
            op.execute(f"DROP DOMAIN {domain}")
