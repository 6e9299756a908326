"""The fast `replace` does what the standard one does."""

import dataclasses
import inspect
import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

import agentloom_worker.domain
import agentloom_worker.runtime
from agentloom_worker.frozen import replace


@dataclass(frozen=True, slots=True)
class Value:
    number: int
    text: str = "a"
    items: list[int] = field(default_factory=list)
    cls: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


def frozen_classes() -> list[type]:
    found = []
    for package in (agentloom_worker.domain, agentloom_worker.runtime):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for _, cls in inspect.getmembers(import_module(module.name), inspect.isclass):
                parameters = getattr(cls, "__dataclass_params__", None)
                if parameters is not None and parameters.frozen and "__slots__" in cls.__dict__:
                    found.append(cls)
    return sorted(set(found), key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


def test_the_named_fields_change_and_the_others_stay() -> None:
    value = Value(1, "b", [2], 3)
    changed = replace(value, text="c", cls=4)
    assert changed == Value(1, "c", [2], 4)
    assert changed.items is value.items
    assert value == Value(1, "b", [2], 3)


def test_a_changed_copy_is_frozen_too() -> None:
    changed: Any = replace(Value(1), number=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.number = 3


def test_a_name_that_is_no_field_is_refused() -> None:
    change: Any = replace
    with pytest.raises(TypeError, match="size"):
        change(Value(1), size=2)


def test_a_class_with_a_check_of_its_own_runs_it() -> None:
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), number=-1)


@pytest.mark.parametrize("cls", frozen_classes(), ids=lambda cls: cls.__qualname__)
def test_every_frozen_class_copies_as_the_standard_library_copies_it(cls: Any) -> None:
    names = [one.name for one in dataclasses.fields(cls) if one.init]
    value = cls(**{name: object() for name in names})
    change: Any = replace
    for name in names:
        other = object()
        ours, theirs = change(value, **{name: other}), dataclasses.replace(value, **{name: other})
        assert [getattr(ours, one) for one in names] == [getattr(theirs, one) for one in names]
        assert type(ours) is cls
