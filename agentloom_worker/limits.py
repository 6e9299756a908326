"""Every bound in one place, with its unit and its source. Settings may override those that say so."""

# claims (RULINGS T10; RUNTIME 4)
CLAIM_TTL_S = 20.0
CLAIM_RENEW_S = 5.0
SUSPECT_GRACE_S = 6.0
SWEEP_TICK_S = 2.0
SWEEP_BATCH = 500
SWEEP_BATCHES_MAX = 40
CONTROL_POLL_S = 0.5
WAKE_AFTER_S = 15.0
WAKE_BACKOFF_MAX_S = 300.0
LOSSES_BEFORE_SOLITARY = 2
DEADLINE_GRACE_S = 10.0
LOST_SLOT_FRACTION = 0.25

# the fast path (RUNTIME 4): every wait is short, since the answer is never needed
REDIS_TIMEOUT_S = 2.0
REDIS_CONNECT_TIMEOUT_S = 1.0
REDIS_RETRIES = 1
REDIS_CONNECTIONS_MAX = 256
REDIS_BATCH = 500
REDIS_LISTEN_SLICE_S = 0.25
REDIS_PING_S = 10.0
REDIS_SILENCE_MAX_S = 25.0
FAST_PATH_PAUSE_S = 0.5  # after a failure nothing is asked for so long, doubled while it goes on
FAST_PATH_PAUSE_MAX_S = 10.0
FAST_PATH_DOUBLINGS_MAX = 10
FAST_PATH_ENTRIES_MAX = 100_000
CANCEL_KEPT_S = 60.0
LANE_PAUSE_S = 0.5  # a row that met a full lane asks again after half of what it has waited, within these bounds
LANE_PAUSE_MAX_S = 5.0
SLOT_AHEAD_MAX_S = 60.0  # no slot stands further ahead of now than this, or than its taker's time to live if longer
MODEL_WINDOW_S = 60.0  # providers count by the minute
WINDOW_WALK_MAX = 200
WAITER_LATE_S = 10.0  # a row that was told to wait for a window is claimed again so long behind its time, at the latest
WAITERS_MAX = 100  # of a window; who finds so many waiting takes the place of one who waits less long, or none
WAITER_LATE_MAX_S = 60.0  # nobody is waited for until further ahead of now than this and a window
BYTES_PER_TOKEN = 3  # of a request's body, for what is reserved of tokens per minute until the usage is known

# steps (RULINGS U6)
STEP_FAILURES_MAX = 5
STEP_BACKOFF_INITIAL_S = 1.0
STEP_BACKOFF_MAX_S = 60.0
INLINE_HOPS = 64
INLINE_MS = 2000
DRAIN_S = 30.0
DRAIN_INTERRUPTS_MAX = 5
EMBEDDED_THREADS = 8
FUSED_TRIES = 2
REBUILD_TRIES = 10
OUTCOME_TRIES = 600  # an effect's outcome; the driver's own re-sends are inside each
COMMIT_RESENDS_MAX = 20

# the fleet (RUNTIME 5; RULINGS U6, U18)
PUBLISH_TIMEOUT_S = 1.0
PUBLISH_PAUSE_S = 1.0  # after a failed publish nothing is published for so long; doubles up to the maximum
PUBLISH_PAUSE_MAX_S = 8.0
PUBLISH_CONNECTIONS_IDLE = 8
WAKE_UP_BYTES_MAX = 1024
SLOTS_UNKNOWN = 16  # of a queue that no live process serves
BACKLOG_PER_SLOT = 2
WORKER_SEEN_EVERY_S = 5.0
WORKER_SILENT_S = 20.0  # heard of no longer than this ago: its slots count
WORKER_FORGOTTEN_S = 900.0
SLOT_WAIT_S = 0.2
IDLE_POLL_S = 0.25
IDLE_PATIENCE_S = 0.5  # a row due for so long was not fetched by the message that names it
BROKERLESS_POLL_S = 0.05
SWEEP_SPREAD_MAX_S = 10.0
VACUUM_EVERY_S = 7.0
COLLECT_EVERY_S = 3600.0
DRAIN_GRACE_S = 5.0
START_WAIT_S = 30.0
START_LOOK_S = 0.25  # how often a process that starts looks whether its database is there
RUN_LEASE_TTL_S = 60.0
RUN_LEASE_RENEW_S = 15.0
RUN_LEASES_BATCH = 500

# runs and calls (RULINGS U6)
LOOPS_MAX = 50
RECENT_RUNS = 2  # seed 000, 4
RECENT_RUNS_MAX = 1000
HISTORY_RUNS_PAGE = 100
HISTORY_BLOBS = 16  # bodies above INLINE_BODY_BYTES that are held at once
HISTORY_BUDGETS = 2  # a history is read no further than so many times what a request may hold
HISTORY_RECORDS_PAGE = 500
HISTORY_PARTIAL_CHARS = 16_384  # of an answer that broke off, in the view of a recent run
PREFIX_BLOCK_TOKENS = 128  # what a provider's prefix cache keeps, and how many tokens it begins with
PREFIX_TOKENS_MIN = 1024
RUN_DEADLINE_S = 3600.0
TOOL_TIMEOUT_MS = 60_000
FIRST_OUTPUT_TIMEOUT_MS = 60_000
CALLS_PER_MESSAGE_MAX = 128
OUTPUT_ITEMS_MAX = 1024  # of one Responses answer: calls, texts and reasoning
INPUT_BYTES_MAX = 16 * 1024 * 1024
QUEUED_QUESTIONS_MAX = 8  # of a session (RULINGS A10)
UNDELIVERED_INPUTS_MAX = 256  # of a session: what no model has begun to answer, with its live run or waiting for one
UNDELIVERED_BYTES_MAX = 64 * 1024 * 1024  # of their bodies: each load of the run's rows holds them
INPUT_TRIES = 16  # a command decides anew where the run that it met has moved on
INPUTS_PAGE = 100

# capabilities (RULINGS U11; seed 004, 7)
TOOL_CANCEL_GRACE_S = 2.0
TOOL_WAIT_SLICE_S = 1.0
TOOL_THREADS_IDLE_MAX = 32
TOOL_MESSAGE_CHARS_MAX = 2000
SCHEMA_ERRORS_SHOWN_MAX = 5
SCHEMA_ERRORS_SCANNED_MAX = 200
SCHEMA_ERROR_CHARS_MAX = 300
JSON_DEPTH_MAX = 100
OUTPUT_SCHEMA_BYTES_MAX = 64 * 1024  # a correction shows it whole
OUTPUT_BYTES_MAX = 1024 * 1024
OUTPUT_WORK_MAX = 1_000_000  # see capabilities/output.py: about ten seconds of one core at most
OUTPUT_ISSUES_MAX = 20
OUTPUT_ISSUE_CHARS_MAX = 200
HTTP_TOOL_BYTES = 1024 * 1024
HTTP_TOOL_BYTES_MAX = 16 * 1024 * 1024
HTTP_TOOL_REDIRECTS_MAX = 5
HTTP_TOOL_TARGET_BYTES_MAX = 8192  # what common servers take as a request line
HTTP_TEMPLATE_CACHE = 1024

# bodies (RUNTIME 2; RULINGS T14, U21; seed 004, 7.2)
INLINE_BODY_BYTES = 4096
BLOB_IN_COMMIT_BYTES = 256 * 1024
BLOB_COMPRESS_ABOVE_BYTES = 1024
BLOB_GRACE_S = 24 * 3600.0
BLOBS_PAGE = 500  # looked at by one statement of the collection
BLOBS_PAGES_MAX = 200  # in one collection
PREVIEW_BYTES = 64 * 1024
RESULT_READ_DEFAULT_BYTES = 16_384
RESULT_READ_MAX_BYTES = 65_536

# release documents as their authors write them; an alias counts as what it stands for
RELEASE_BYTES_MAX = 1024 * 1024
RELEASE_VALUES_MAX = 20_000
RELEASE_DEPTH_MAX = 64

# streams
SSE_EVENT_BYTES_MAX = 8 * 1024 * 1024
STREAM_BYTES_MAX = 64 * 1024 * 1024
UNPACKED_PIECE_BYTES = 64 * 1024
PACKED_BYTES_SPARE = 64 * 1024  # a packed body is read to twice what may come out of it, and so much more
PACKED_EMPTY_MEMBERS_MAX = 1024
CONNECT_TIMEOUT_S = 5.0
CONNECT_ADDRESSES_MAX = 8

# connections to model endpoints
CONNECTIONS_IDLE_MAX = 256  # per endpoint; busy ones are bounded by the threads that read them
CONNECTION_IDLE_S = 4.0  # below the 5 s after which common servers drop an idle connection
DRAIN_BYTES_MAX = 64 * 1024
ERROR_BODY_BYTES_MAX = 64 * 1024
ERROR_BODY_TIMEOUT_S = 2.0
ERROR_TEXT_CHARACTERS_MAX = 300
RETRY_AFTER_MAX_S = 24 * 3600.0
CREDENTIAL_BYTES_MAX = 64 * 1024
CREDENTIAL_LEARN_PAUSE_S = 60.0  # a provider that could not tell is left alone so long by who sends nothing
SECRET_CHARACTERS_MIN = 12  # a shorter one (`EMPTY`, as local servers want it) may be an ordinary word of an answer
SECRETS_KEPT_MAX = 256
TRANSPORT_HEAD_BYTES = 512 * 1024  # of what an attempt received, its beginning and its end are kept
TRANSPORT_TAIL_BYTES = 512 * 1024

# what people ask an endpoint, outside of any run
DISCOVER_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 120.0
PROBE_OUTPUT_TOKENS = 1024

# caches
VIEW_CACHE_CONTEXTS = 512
VIEW_CACHE_BYTES = 256 * 1024 * 1024
RELEASE_CACHE = 256
VALIDATOR_CACHE = 1024
HANDLER_CACHE = 1024

# the audit: rows read at a time, bodies held at a time, findings after which it stops
AUDIT_PAGE_ROWS = 1000
AUDIT_BLOBS_PAGE = 16
AUDIT_RELEASES = 4  # of a session whose earlier runs are kept as each of them shows these
AUDIT_FINDINGS_MAX = 1000
AUDIT_SNAPSHOT_IDLE_S = 120.0
