"""Words that a person gives: on the command line or on stdin, as the bytes that came, whatever the locale says."""

import os
import sys

from agentloom_worker.cli.output import note
from agentloom_worker.limits import INPUT_BYTES_MAX

_FROM_STDIN = "-"


def read_words(given: str) -> str:
    """The text that was given, or for `-` all of stdin: UTF-8, line ends and all.

    A byte that is not UTF-8 is kept as it came (RULINGS R13), and said: the model is shown U+FFFD in its place.
    """
    # One byte more than is allowed, so that what is too long is refused, not cut.
    found = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1) if given == _FROM_STDIN else os.fsencode(given)
    text = found.decode("utf-8", "surrogateescape")
    odd = sum("\udc80" <= character <= "\udcff" for character in text)
    if odd:
        note(f"note: {odd} byte(s) are not UTF-8: the model is shown U+FFFD for each")
    return text
