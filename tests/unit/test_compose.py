"""docker-compose.yml says what this code understands (RULINGS N7): its shape, its commands, its queues."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from celery.bin.celery import celery as celery_group  # noqa: TID251
from sqlalchemy import make_url

from agentloom_worker.cli.app import app as cli
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.runtime.table import STEPS
from agentloom_worker.settings import PREFIX, FleetSettings, settings_reference
from config import app, settings
from config.application import make_app

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = {name: service for name, service in SERVICES.items() if "worker" in service.get("command", [])}
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "agentloom-worker"}


def parse(group: Any, command: list[str]) -> dict[str, Any]:
    """The parameters of a command line, parsed by the program's own command group; nothing runs."""
    with group.make_context(command[0], list(command[1:])) as context:
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if group is celery_group:
            # Its commands' options ask the application that this call loads.
            context.invoked_subcommand = rest[0]
            context.invoke(group.callback, **context.params)
        name, found, arguments = group.resolve_command(context, rest)
        assert found is not None and name is not None
        with found.make_context(name, list(arguments), parent=context) as inner:
            return {"command": name, **inner.params}


@pytest.mark.parametrize("name", sorted(WORKERS))
def test_every_worker_command_is_one_that_celery_understands(name: str) -> None:
    parsed = parse(celery_group, WORKERS[name]["command"])
    assert parsed["command"] == "worker"
    assert parsed["queues"] == [name]
    pool = parsed["pool"].__module__.rsplit(".", 1)[-1]
    assert pool == ("prefork" if name == "solitary" else "thread")
    assert parsed["concurrency"] == 1 if name == "solitary" else parsed["concurrency"] > 1


def test_beat_and_migrate_commands_are_understood() -> None:
    assert parse(celery_group, SERVICES["beat"]["command"])["command"] == "beat"
    command = SERVICES["migrate"]["command"]
    assert command[0] == "agentloom"
    assert parse(typer.main.get_command(cli), command)["command"] == "migrate"


def test_there_is_one_service_for_each_queue_and_every_step_has_a_queue_that_is_served() -> None:
    assert set(WORKERS) == {queue.value for queue in Queue}
    assert set(app.amqp.queues) == {queue.value for queue in Queue}
    assert {entry.queue.value for entry in STEPS.values()} <= set(WORKERS)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_a_health_check_and_limits(name: str) -> None:
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+[MG]", limits["memory"])
    if name == "migrate":
        assert service["restart"] == "no"
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


def test_every_variable_is_a_setting_and_has_a_sound_value(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {line.env for line in settings_reference()}
    for service in OURS.values():
        assert set(service["environment"]) <= {*known, "PGPASSWORD"}
        for name, value in service["environment"].items():
            monkeypatch.setenv(name, re.sub(r"\$\{\w+:-(\w*)\}", r"\1", value))
    read = FleetSettings()
    # Whatever the password is, it needs no encoding: it is no part of a URL.
    database = SERVICES["postgres"]["environment"]
    assert service["environment"]["PGPASSWORD"] == database["POSTGRES_PASSWORD"]
    url = make_url(read.database.get_secret_value())
    assert (url.username, url.password, url.database) == (database["POSTGRES_USER"], None, database["POSTGRES_DB"])
    assert read.broker.get_secret_value() == "redis://redis:6379/0"
    assert read.redis_url == "redis://redis:6379/1"


def test_a_container_is_given_more_time_than_its_drain_takes() -> None:
    for service in WORKERS.values():
        grace_s = int(service["stop_grace_period"].removesuffix("s"))
        assert grace_s >= float(service["environment"][f"{PREFIX}DRAIN_S"]) + 10


def test_a_worker_starts_after_the_migration_and_is_checked_where_it_shows_its_counters() -> None:
    for name in [*WORKERS, "beat"]:
        service = SERVICES[name]
        assert service["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert f":{service['environment'][f'{PREFIX}METRICS_PORT']}/" in service["healthcheck"]["test"][-1]


def test_the_image_is_not_run_by_root_and_holds_the_deployment() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    stages = [line for line in lines if line.startswith("FROM ")]
    assert [line.rsplit(" ", 1)[-1] for line in stages] == ["wheels", "worker"]
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 10001"
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and len(line.split()) == 3}
    assert {"config", "tasks", "beat", "agentloom_worker", "migrations"} <= copied
    for name in copied:
        assert (ROOT / name).exists()


def test_celery_is_configured_for_a_table_that_is_the_queue() -> None:
    conf = app.conf
    assert conf.task_acks_late is False
    assert conf.worker_prefetch_multiplier == 1
    assert conf.worker_disable_prefetch is True
    assert conf.task_create_missing_queues is False
    assert conf.result_backend is None
    assert conf.accept_content == ["json"]
    assert conf.worker_enable_remote_control is False
    assert {queue.exchange.name for queue in conf.task_queues} == {""}
    options = conf.broker_transport_options
    assert options["global_keyprefix"] == settings.key_prefix
    assert all(options[name] for name in ("socket_timeout", "socket_connect_timeout", "health_check_interval"))


def test_on_rabbitmq_queues_are_quorum_queues_on_both_sides() -> None:
    there = FleetSettings(broker="amqp://guest@127.0.0.1:1//", queue_prefix="mine.")
    conf = make_app(there).conf
    assert {queue.name for queue in conf.task_queues} == {f"mine.{queue.value}" for queue in Queue}
    assert {queue.queue_arguments["x-queue-type"] for queue in conf.task_queues} == {"quorum"}
    assert conf.broker_transport_options == {"confirm_publish": True}
    assert conf.worker_disable_prefetch is False
