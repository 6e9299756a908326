"""Values as PostgreSQL literals, for messages that are rendered here and not by the driver.

A commit holds more than a hundred values: the driver's own adaptation takes ten times as long, a function call for
each value twice as long. So each template gets one function, which is compiled once. Sound only where
`standard_conforming_strings` is on and the client's encoding is UTF-8 (postgres.py sees to both): then nothing but
a quote ends a string. What a literal's type is, its prepared statement says.
"""

from collections.abc import Callable, Sequence

# By the kinds of a template's parameters: the expression of the literal of VALUE, which is not None.
_LITERALS = {
    "uuid": """ "'%032x'" % VALUE.int """,
    "text": """ "'" + VALUE.replace("'", "''") + "'" """,
    "bytes": r""" "'\\x" + VALUE.hex() + "'" """,
    "int": """ f"{VALUE:d}" """,
    "bool": """ "true" if VALUE else "false" """,
}


def compile_execute(name: str, kinds: Sequence[str]) -> Callable[..., str]:
    """The function from a template's values to its EXECUTE; a wrong number of values is a TypeError."""
    values = [f"v{position}" for position in range(len(kinds))]
    written = [
        f"'NULL' if {value} is None else ({_LITERALS[kind].replace('VALUE', value).strip()})"
        for value, kind in zip(values, kinds, strict=True)
    ]
    call = f"EXECUTE {name}({','.join(['%s'] * len(kinds))})" if kinds else f"EXECUTE {name}"
    arguments = f" % ({', '.join(written)},)" if kinds else ""
    compiled: Callable[..., str] = eval(f"lambda {', '.join(values)}: {call!r}{arguments}", {})
    compiled.__qualname__ = f"execute_{name}"
    return compiled
