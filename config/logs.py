"""One handler on stderr for our own lines and for Celery's."""

import logging
import sys

from celery import signals

from agentloom_worker.secrecy import conceal_known
from agentloom_worker.telemetry import JsonFormatter


class TextFormatter(logging.Formatter):
    """Time, level, event and fields on one line, for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        line = f"{self.formatTime(record)} {record.levelname:7} {record.getMessage()}{shown}"
        return conceal_known(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def connect(form: str, level: str) -> None:
    """Set logging up when a worker or a beat does; a receiver of this signal keeps Celery's own handlers away."""

    def receive(**_kwargs: object) -> None:
        set_up_logging(form, level)

    signals.setup_logging.connect(receive, weak=False)


def set_up_logging(form: str, level: str) -> None:
    """Write everything to stderr. Libraries speak from INFO on, whatever our own level is. Harmless if repeated."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if form == "text" else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.INFO, logging.getLevelName(level)))
    logging.getLogger("agentloom").setLevel(level)
    # A line for each message, and for each look at the schema, says nothing that our own lines do not.
    for name in ("celery.worker.strategy", "celery.app.trace", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
