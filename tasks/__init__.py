"""What a Celery worker runs: `celery -A tasks worker -Q control,model,tools,compaction -P threads -c 16`.

One thin task a step and one a command; the lifecycle of the process beside them.
"""

from config import app
from tasks import commands, lifecycle, steps

lifecycle.connect(app)
steps.register(app)
commands.register(app)

__all__ = ["app"]
