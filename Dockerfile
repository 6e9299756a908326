# Wheels are built in one stage and installed in another, so that no compiler and no source tree is in the image.
FROM python:3.11-slim AS wheels
WORKDIR /src
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY agentloom_worker agentloom_worker
COPY migrations migrations
RUN python -m pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.11-slim AS worker
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir --no-compile /wheels/*.whl \
    && python -m compileall -q /usr/local/lib/python3.11/site-packages \
    && useradd --system --uid 10001 --home-dir /app --shell /usr/sbin/nologin agentloom
WORKDIR /app
# The deployment: no part of the wheel. Tools of your own go beside it, or into a wheel of theirs.
COPY config config
COPY tasks tasks
COPY beat beat
USER 10001
EXPOSE 9464
STOPSIGNAL SIGTERM
CMD ["celery", "-A", "tasks", "worker", "-Q", "control,model,tools,compaction,maintenance,commands", "-P", "threads", "-c", "16"]
