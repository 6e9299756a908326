"""The fleet's clock: `celery -A beat beat`. None, one or two of them: the same result, only a steadier pace."""

from beat.schedule import make_schedule
from config import app, settings

app.conf.beat_scheduler = "beat.schedule:SweepScheduler"
app.conf.beat_schedule = make_schedule(settings)
app.conf.beat_max_loop_interval = 1.0

__all__ = ["app"]
