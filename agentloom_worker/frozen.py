"""Frozen, slotted dataclasses that are made at half the cost, and copied at a fifth of it.

A loop makes about two hundred such values and replaces about fifty. The standard `__init__` of a frozen class
writes every field through `object.__setattr__`, and the standard `replace` looks every field up and calls it; here
each class gets functions of its own, as `dataclass` itself makes them, which write the slots.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import replace as standard_replace
from typing import TYPE_CHECKING, Any, TypeVar

_UNCHANGED = object()
_Class = TypeVar("_Class", bound=type)
_makers: dict[type, Callable[..., Any]] = {}


def quick_init(cls: _Class) -> _Class:
    """Give a frozen, slotted dataclass an `__init__` that writes its slots; it stands above `@dataclass`.

    For values that every loop makes. Signature and defaults stay what they were. Raises TypeError where making
    a value is more than writing its slots.
    """
    known = _setters(cls)
    if known is None:
        raise TypeError(f"{cls.__name__} does more than to write its slots when it is made")
    known["_frozen_missing"] = dataclasses.MISSING
    parameters, lines = ["_frozen_self"], []
    for one in dataclasses.fields(cls):
        name = value = one.name
        if one.default is not dataclasses.MISSING:
            known[f"_frozen_default_{name}"] = one.default
            parameters.append(f"{name}=_frozen_default_{name}")
        elif one.default_factory is not dataclasses.MISSING:
            known[f"_frozen_make_{name}"] = one.default_factory
            parameters.append(f"{name}=_frozen_missing")
            value = f"_frozen_make_{name}() if {name} is _frozen_missing else {name}"
        else:
            parameters.append(name)
        lines.append(f" _frozen_set_{name}(_frozen_self, {value})")
    exec("\n".join([f"def __init__({', '.join(parameters)}):", *lines]), known)
    written: Any = known["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    written.__module__ = cls.__module__
    type.__setattr__(cls, "__init__", written)
    return cls


def _setters(cls: type) -> dict[str, Any] | None:
    """`_frozen_set_<field>` for every field: what writes its slot; `_frozen_` keeps our names apart from theirs.

    None where making a value is more than writing its slots.
    """
    fields = dataclasses.fields(cls)
    slots = {field.name: cls.__dict__.get(field.name) for field in fields}
    plain = all(hasattr(slot, "__set__") for slot in slots.values()) and all(field.init for field in fields)
    if not plain or hasattr(cls, "__post_init__"):
        return None
    return {f"_frozen_set_{name}": slot.__set__ for name, slot in slots.items() if slot is not None}


def _maker(cls: type) -> Callable[..., Any]:
    """The function of one class; the standard one where making a value is more than writing its slots."""
    known = _setters(cls)
    if known is None:
        return standard_replace
    names = [field.name for field in dataclasses.fields(cls)]
    known |= {"_frozen_new": object.__new__, "_frozen_class": cls, "_frozen_same": _UNCHANGED}
    lines = [
        f"def replace(_frozen_old, *, {', '.join(f'{name}=_frozen_same' for name in names)}):",
        " _frozen_made = _frozen_new(_frozen_class)",
        *(
            f" _frozen_set_{name}(_frozen_made, _frozen_old.{name} if {name} is _frozen_same else {name})"
            for name in names
        ),
        " return _frozen_made",
    ]
    exec("\n".join(lines), known)
    made: Callable[..., Any] = known["replace"]
    return made


if TYPE_CHECKING:
    # The type checker knows the standard function, and checks the names and types of the changes.
    from dataclasses import replace as replace
else:

    def replace(value, /, **changes):
        """A copy of a value with some fields changed. Raises TypeError for a name that is no field."""
        cls = value.__class__
        maker = _makers.get(cls)
        if maker is None:
            maker = _makers.setdefault(cls, _maker(cls))
        return maker(value, **changes)
