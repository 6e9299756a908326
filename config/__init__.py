"""The Celery application of a deployment: settings from the environment, queues, logging.

Only this folder, `tasks` and `beat` know Celery. They run from the checkout or the image and are no part of the
wheel, as a web project's root is none.
"""

from config.application import make_app
from config.environment import settings, unread

app = make_app(settings)

__all__ = ["app", "settings", "unread"]
