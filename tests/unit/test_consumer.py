"""The consumer of every worker: what it adds to Celery's own."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from celery import Celery  # noqa: TID251
from celery.concurrency.thread import TaskPool  # noqa: TID251
from kombu.asynchronous import Hub

from config.consumer import FleetConsumer, telling


def test_the_event_loop_hears_of_a_slot_after_it_was_freed() -> None:
    told: list[str] = []
    ended = threading.Event()

    def call_soon(_callback: object) -> None:
        told.append("the loop")
        ended.set()

    pool = TaskPool(limit=1)
    apply_async = telling(pool.apply_async, call_soon)
    apply_async(lambda: "done", callback=told.append, accept_callback=lambda *_: None)
    assert ended.wait(30)
    pool.on_stop()
    assert told == ["done", "the loop"]


def test_the_event_loop_hears_of_a_task_whose_callback_raises() -> None:
    told: list[object] = []

    def apply_async(*_arguments: object, callback: Callable[[str], None]) -> None:
        callback("result")

    def fail(_result: object) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        telling(apply_async, told.append)("target", callback=fail)
    assert len(told) == 1


def test_a_task_that_celery_cannot_end_frees_its_slot() -> None:
    ended: list[object] = []
    there = threading.Event()

    def fail() -> None:
        raise ValueError

    def done(result: object) -> None:
        ended.append(result)
        there.set()

    pool = TaskPool(limit=1)
    telling(pool.apply_async, lambda _callback: None)(fail, callback=done, accept_callback=lambda *_: None)
    assert there.wait(30)
    pool.on_stop()
    assert ended == [(0, None, 0.0)]


def test_a_consumer_of_the_threads_pool_tells_its_own_loop() -> None:
    hub, pool = Hub(), TaskPool(limit=1)
    heard: list[object] = []
    hub.call_soon = heard.append
    controller = SimpleNamespace(use_eventloop=True, consumer=None)
    app = Celery("test", broker="memory://", set_as_current=False)
    FleetConsumer(lambda *_: None, app=app, controller=controller, pool=pool, hub=hub, timer=hub.timer)
    ended = threading.Event()
    pool.apply_async(lambda: None, callback=lambda _result: ended.set(), accept_callback=lambda *_: None)
    assert ended.wait(30)
    pool.on_stop()
    hub.close()
    assert len(heard) == 1
