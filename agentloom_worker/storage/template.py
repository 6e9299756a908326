"""Write statements as templates: one text, run as a prepared statement on PostgreSQL, directly on SQLite.

A template names its parameters and their types. One that `expects` a row asserts it: on PostgreSQL inside
the database (so that a whole commit is one message), on SQLite by the row count. The miss says what to
raise: LEASE_LOST for a fence, REVISION_CONFLICT for a compare-and-set.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.canonical import REPLACEMENT, effective_text
from agentloom_worker.frozen import quick_init
from agentloom_worker.storage.literal import compile_execute

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_POSTGRES_TYPES = {"uuid": "uuid", "text": "text", "bytes": "bytea", "int": "bigint", "bool": "boolean"}
NOW = "now"


class Miss(StrEnum):
    """What a missing row means. The values are SQLSTATEs of our own."""

    LEASE_LOST = "LM001"
    REVISION_CONFLICT = "LM002"


def storable_text(text: str) -> str:
    """The text as a text column takes it: PostgreSQL has no NUL, and neither database a lone surrogate.

    Text columns hold names, codes and what is said of a failure; bodies are bytes and keep everything.
    """
    return effective_text(text.replace("\0", REPLACEMENT))[0]


@dataclass(frozen=True)
class Template:
    """`sql` uses `:name` parameters; `{now}` stands for the database's clock (`:now` binds it in tests).

    `{lock}` and `{skip}` are row locks, which SQLite's single writer does not need.
    `parameters` is "name:type name:type …" with the types uuid, text, bytes, int, bool. `returns` marks a
    query whose single row the batch hands back, `reads` a SELECT that asserts its row without writing one.
    """

    name: str
    parameters: str
    sql: str
    entity: str = ""
    miss: Miss | None = None
    returns: bool = False
    reads: bool = False

    def __post_init__(self) -> None:
        pairs = [pair.split(":") for pair in self.parameters.split()]
        names = [name for name, _ in pairs]
        kinds = [kind for _, kind in pairs]
        text = " ".join(self.sql.split())
        if "{now}" in text:
            names.append(NOW)
            kinds.append("int")
        used = set(_PARAMETER.findall(text.replace("{now}", ":now")))
        assert used == set(names), f"{self.name}: parameters {sorted(used ^ set(names))} do not match"
        index = {name: position + 1 for position, name in enumerate(names)}
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "kinds", tuple(kinds))
        object.__setattr__(self, "needs_now", NOW in index)
        postgres = text.replace("{now}", "al_now(:now)")
        postgres = postgres.replace("{lock}", "FOR NO KEY UPDATE").replace("{skip}", "SKIP LOCKED")
        if self.miss is not None and self.reads:
            postgres = f"SELECT CASE WHEN EXISTS({postgres}) THEN NULL ELSE {self._refusal} END"
        elif self.miss is not None:
            # More than the one row that a key names would be an error of PostgreSQL's own.
            postgres = (
                f"WITH u AS ({postgres} RETURNING TRUE AS met)"
                f" SELECT CASE WHEN (SELECT met FROM u) THEN NULL ELSE {self._refusal} END"
            )
        postgres = _PARAMETER.sub(lambda match: f"${index[match[1]]}", postgres)
        types = ", ".join(_POSTGRES_TYPES[kind] for kind in kinds)
        signature = f" ({types})" if types else ""
        object.__setattr__(self, "postgres_prepare", f"PREPARE {self.name}{signature} AS {postgres}")
        object.__setattr__(self, "execute", compile_execute(self.name, kinds))
        bare = text.replace("{now}", ":now").replace("{lock}", "").replace("{skip}", "")
        sqlite = _PARAMETER.sub(lambda match: f"?{index[match[1]]}", bare)
        object.__setattr__(self, "sqlite", sqlite)
        object.__setattr__(self, "uuid_positions", tuple(i for i, kind in enumerate(kinds) if kind == "uuid"))
        object.__setattr__(self, "text_positions", tuple(i for i, kind in enumerate(kinds) if kind == "text"))

    # Filled in by __post_init__; declared for the type checker.
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    needs_now: bool = False
    postgres_prepare: str = ""
    execute: Callable[..., str] = str  # from the values, the clock last where it is needed
    sqlite: str = ""
    uuid_positions: tuple[int, ...] = ()
    text_positions: tuple[int, ...] = ()

    @property
    def _refusal(self) -> str:
        """The call that raises; it is made only where the row was missed, since a call costs."""
        assert self.miss is not None
        return f"al_assert(FALSE, '{self.miss.value}', '{self.miss.name}', '{self.entity}')"

    @property
    def postgres_execute(self) -> str:
        """The EXECUTE with a `%s` for each value, for those who send one statement by hand."""
        marks = ", ".join(["%s"] * len(self.names))
        return f"EXECUTE {self.name}({marks})" if marks else f"EXECUTE {self.name}"

    def __call__(self, *arguments: object) -> "Statement":
        """Bind values in the order of `parameters`; the clock is bound by the driver."""
        for position in self.text_positions:
            value = arguments[position]
            if isinstance(value, str) and ("\0" in value or not value.isascii()):
                arguments = (*arguments[:position], storable_text(value), *arguments[position + 1 :])
        return Statement(self, arguments)


@quick_init
@dataclass(frozen=True, slots=True)
class Statement:
    """A template with its values."""

    template: Template
    arguments: tuple[object, ...]
