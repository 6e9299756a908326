"""The fast `__init__` and `replace` do what the standard ones do."""

import dataclasses
import inspect
import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

import agentloom_worker.domain
import agentloom_worker.runtime
from agentloom_worker.frozen import quick_init, replace


@dataclass(frozen=True, slots=True)
class Value:
    number: int
    text: str = "a"
    items: list[int] = field(default_factory=list)
    cls: int = 0


@quick_init
@dataclass(frozen=True, slots=True)
class Quick:
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


@pytest.mark.parametrize("given", [{}, {"text": "b"}, {"items": [1], "cls": 2}], ids=str)
def test_a_quick_class_is_made_with_the_same_defaults(given: dict[str, Any]) -> None:
    ours, theirs = Quick(1, **given), Value(1, **given)
    assert dataclasses.astuple(ours) == dataclasses.astuple(theirs)
    assert repr(ours) == repr(theirs).replace("Value", "Quick")
    assert Quick(1).items is not Quick(1).items


def test_a_quick_class_is_frozen_too() -> None:
    value: Any = Quick(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.number = 3


@pytest.mark.parametrize(("given", "named"), [((), {}), ((1,), {"size": 2}), ((1,), {"number": 2})], ids=str)
def test_a_quick_class_refuses_the_arguments_that_the_standard_one_refuses(
    given: tuple[int, ...], named: dict[str, int]
) -> None:
    for cls in (Value, Quick):
        make: Any = cls
        with pytest.raises(TypeError, match="__init__"):
            make(*given, **named)


def test_a_class_that_checks_itself_cannot_be_quick() -> None:
    with pytest.raises(TypeError, match="Checked"):
        quick_init(Checked)


def test_a_class_without_slots_cannot_be_quick() -> None:
    @dataclass(frozen=True)
    class Open:
        number: int

    with pytest.raises(TypeError, match="Open"):
        quick_init(Open)
