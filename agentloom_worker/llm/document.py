"""A body that is, or turns out to be, one JSON document: how servers answer that do not stream (CASES S10)."""

import json

from agentloom_worker import limits
from agentloom_worker.llm.assembly import IncompleteAnswerError, ModelProtocolError

_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_BEGINNINGS = (b"", b"{", b"[")  # of a document that can be an answer, or of nothing yet
_CUT = frozenset({"unexpected end of data", "truncated data"})  # what codecs say of half a character


class DocumentBody:
    """The bytes of a body that may be a JSON document, SSE_EVENT_BYTES_MAX of them at most. For one thread."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._dropped = False

    def take(self, piece: bytes) -> None:
        """The next bytes. Raises ModelProtocolError where they are too many."""
        self._body += piece
        if len(self._body) > limits.SSE_EVENT_BYTES_MAX:
            raise ModelProtocolError(f"the answer is larger than {limits.SSE_EVENT_BYTES_MAX} bytes")

    def take_if_json(self, piece: bytes) -> None:
        """The next bytes, for as long as it looks like a JSON document; nothing is kept of what does not."""
        if self._dropped:
            return
        if not self._body:
            piece = piece.lstrip(_BLANKS)
        self._body += piece
        begins = bytes(self._body[:4])
        looks_so = begins.removeprefix(_BOM)[:1] in _BEGINNINGS or _BOM.startswith(begins)
        if not looks_so or len(self._body) > limits.SSE_EVENT_BYTES_MAX:
            self._dropped = True
            self._body.clear()

    @property
    def is_object(self) -> bool:
        """Whether what was taken looks like a JSON object, whole or not."""
        return bytes(self._body[:4]).removeprefix(_BOM)[:1] == b"{"

    @property
    def bytes(self) -> bytes:
        """What was taken."""
        return bytes(self._body)

    def parse(self) -> object:
        """The document. Raises IncompleteAnswerError for a beginning of one, ModelProtocolError for anything else."""
        try:
            document: object = json.loads(self._body)
        except UnicodeDecodeError as error:
            if error.reason in _CUT:
                raise IncompleteAnswerError("the JSON answer is not whole") from error
            raise ModelProtocolError("the answer is not UTF-8") from error
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
                raise ModelProtocolError("something follows the JSON answer") from error
            if self.bytes.removeprefix(_BOM).lstrip(_BLANKS)[:1] not in _BEGINNINGS:
                raise ModelProtocolError("the answer is not JSON") from error
            # Where the connection's end ends the body, a cut answer looks like this and like nothing else.
            raise IncompleteAnswerError("the JSON answer is not whole") from error
        except RecursionError as error:
            raise ModelProtocolError("the answer is nested too deeply") from error
        return document
