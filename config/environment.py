"""The settings of this process, read once. What is wrong with them ends the process with the variable's name."""

import os
import sys

from agentloom_worker.bootstrap import load_process_settings
from agentloom_worker.errors import RequestError
from agentloom_worker.settings import FleetSettings, unread_variables

_EX_CONFIG = 78


def _load() -> FleetSettings:
    try:
        return load_process_settings()
    except RequestError as error:
        sys.stderr.write(f"{error.message}\n")
        raise SystemExit(_EX_CONFIG) from None


settings = _load()
unread = unread_variables(os.environ)
