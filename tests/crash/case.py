"""What one crash case is and what it leaves: plain values that travel between processes."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["pure", "model", "tool", "internal"]
Action = Literal["retry", "fail"]
ModelProtocol = Literal["scripted", "openai-chat", "openai-responses"]
ModelProfile = Literal["generic", "vllm"]


@dataclass(frozen=True)
class Setup:
    """One scenario and how its processes run it. `model_unknown` is the model's frozen `on_unknown`.

    `protocol` other than `scripted`: the script stands behind HTTP on loopback (wire.py). The profile `vllm` wants a
    strict order of roles.
    """

    scenario: str
    fusion: bool = True
    inline: bool = True
    model_unknown: Action = "retry"
    protocol: ModelProtocol = "scripted"
    profile: ModelProfile = "generic"

    @property
    def seed(self) -> str:
        """Names the database in which its question has just been accepted."""
        return f"{self.scenario}-{self.model_unknown}{self._wire}"

    @property
    def _wire(self) -> str:
        strict = "" if self.profile == "generic" else f"-{self.profile}"
        return ("" if self.protocol == "scripted" else f"-{self.protocol}") + strict

    def __str__(self) -> str:
        fused, inline = "fused" if self.fusion else "single", "inline" if self.inline else "queued"
        return f"{self.scenario}-{fused}-{inline}-{self.model_unknown}{self._wire}"


@dataclass(frozen=True)
class Strike:
    """The `nth` time that a process comes to a point with this detail, it dies there, or an error is raised."""

    point: str
    detail: str
    nth: int
    raises: bool = False

    def __str__(self) -> str:
        return f"{'raise' if self.raises else 'kill'} at {self.point}({self.detail}) #{self.nth}"


@dataclass(frozen=True)
class Work:
    """A claimed row: its step, and for an effect the attempt that it would make. Loops count from 1.

    `first` says whether this claim may begin the effect (RULINGS A1). `run_no` counts the session's runs.
    """

    step: str
    kind: Kind
    loop_no: int = 0
    ordinal: int | None = None
    attempt_no: int = 0
    first: bool = True
    run_no: int = 1


@dataclass(frozen=True)
class Hit:
    """A fault point that a process came to, the row that it held then, and the one that its commit claimed."""

    point: str
    detail: str
    nth: int
    held: Work | None
    successor: Work | None

    @property
    def strike(self) -> Strike:
        """Die here."""
        return Strike(self.point, self.detail, self.nth)

    @property
    def raising(self) -> Strike:
        """Raise here."""
        return Strike(self.point, self.detail, self.nth, raises=True)


@dataclass(frozen=True)
class AttemptSeen:
    """One attempt as the database has it; `late` where a voided claim brought something back."""

    state: str
    code: str | None
    late: bool = False


@dataclass(frozen=True)
class OperationSeen:
    """One operation with its attempts. `ordinal` is None for the model's."""

    loop_no: int
    ordinal: int | None
    kind: str
    capability: str
    status: str
    code: str | None
    executed: str | None
    attempts: tuple[AttemptSeen, ...]

    @property
    def name(self) -> tuple[int, int | None]:
        """What identifies it in every run of its scenario."""
        return self.loop_no, self.ordinal


Message = tuple[tuple[str, str], ...]  # the fields of a wire message, long ones as their digests


@dataclass(frozen=True)
class Outcome:
    """What a run left when its rows had come to rest.

    `transcript` holds the messages of the last frozen request, rebuilt from its recipe: those of an earlier loop
    are its beginning. `history` are those between its prompt and its own, which show the session's earlier runs.
    `effects` by operation and `arrivals` by loop were counted outside the processes, as was what the driver found
    `parked`. `following` are the session's later runs; `supplements` are, in the order in which they came, each
    one's deliveries: the number of its run (0: it waits for one) and the state; `places` are their input_seqs.
    What dice and deaths decide is not compared: `delays_ms` before attempts, by the code that caused them, the
    last process's `tape`, and the `errors` that its steps logged.
    """

    status: str
    code: str | None
    answer: str | None
    cleanup: str
    loops_used: int
    loops_reserved: int
    transcript: tuple[Message, ...]
    operations: tuple[OperationSeen, ...]
    delivery: str
    delivered_by: int | None
    effects: tuple[tuple[tuple[int, int | None], int], ...]
    arrivals: tuple[tuple[int, int], ...]
    events: tuple[tuple[int, str, tuple[tuple[str, object], ...]], ...]
    rows_left: tuple[str, ...]
    parked: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    following: tuple["Outcome", ...] = ()
    supplements: tuple[tuple[tuple[int, str], ...], ...] = ()
    places: tuple[int, ...] = ()
    history: tuple[Message, ...] = ()
    delays_ms: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    tape: tuple[Hit, ...] = field(default=(), compare=False)
    errors: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Case:
    """One life after the other on one database: process i ends at strike i, the last one has none.

    `operator` lets the driver retry a row that it finds parked. `database` is a PostgreSQL URL, or None for
    a SQLite file of the case's own. `pause_s` passes between a death and the next life: by default the
    claim's time to live, the grace, and a little.
    """

    setup: Setup
    strikes: tuple[Strike, ...] = ()
    database: str | None = None
    operator: bool = False
    pause_s: int = 27


@dataclass(frozen=True)
class Broken:
    """A case that could not be carried out, and why."""

    reason: str
