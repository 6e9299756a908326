"""Python functions as tools: finding them, reading their signatures, turning arguments into parameters."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from agentloom_worker.capabilities.context import ToolContext
from agentloom_worker.capabilities.dialect import subschemas
from agentloom_worker.capabilities.problem import DeclarationError, DeclarationProblem

ENTRY_POINT_GROUP = "agentloom"


class ArgumentsError(Exception):
    """The arguments fit the schema and yet not the function; the message names the places, never values."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The typed parameters of a function as a pydantic model whose fields carry them as aliases.

    The fields have names of our own (`p0`, `p1`), so that a parameter may be called anything:
    `json`, `copy`, `_private`.
    """

    model: type[BaseModel]
    names: dict[str, str]  # field -> parameter
    always: frozenset[str]  # fields whose default is known to pydantic only (`= Field(5)`)


@dataclass(frozen=True, slots=True)
class PythonHandler:
    """A function that is ready to be called. Without `parameters` it takes the JSON values as they are."""

    function: Callable[..., object]
    context_parameter: str | None
    parameters: Parameters | None

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The keyword arguments of the call, the context excepted. Raises ArgumentsError."""
        if self.parameters is None:
            return self._bind_plain(arguments)
        try:
            model = self.parameters.model.model_validate(dict(arguments))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            said = (f"{'/'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:5])
            raise ArgumentsError("; ".join(said)) from None
        present = model.model_fields_set | self.parameters.always
        return {name: getattr(model, field) for field, name in self.parameters.names.items() if field in present}

    def _bind_plain(self, arguments: Mapping[str, object]) -> dict[str, object]:
        keywords = dict(arguments)
        injected = {self.context_parameter: None} if self.context_parameter else {}
        if clash := keywords.keys() & injected.keys():
            raise ArgumentsError(f"{clash.pop()}: is not for the caller to give")
        try:
            inspect.signature(self.function).bind(**keywords, **injected)
        except TypeError as error:
            raise ArgumentsError(str(error)) from None
        return keywords


def load_handler(handler_ref: str) -> Callable[..., object]:
    """Import `module:function`, or load the entry point of that name in the group `agentloom`.

    Raises DeclarationError. Importing runs the module's code, whatever it does.
    """
    try:
        loaded = _import(handler_ref) if ":" in handler_ref else _load_entry_point(handler_ref)
    except LookupError as error:
        raise _refused(handler_ref, str(error.args[0])) from error
    except ModuleNotFoundError as error:
        remedy = "put it into the working directory or on PYTHONPATH, or install it (docs/python-tools.md)"
        raise _refused(handler_ref, f"cannot be imported: {error}: {remedy}") from error
    except Exception as error:  # a foreign module may raise anything while it is imported
        raise _refused(handler_ref, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(loaded):
        raise _refused(handler_ref, f"is a {type(loaded).__name__}, not a callable")
    return loaded


def plain_handler(function: Callable[..., object]) -> tuple[PythonHandler, list[DeclarationProblem]]:
    """A handler whose schema is given: values go in unconverted, annotations matter for the context only."""
    problems = list(_kind_problems(function))
    context_parameter = None
    if not problems:
        context_parameter, problems = _context_parameter(_hints(function)[0])
    return PythonHandler(function, context_parameter, None), problems


def plain_problems(handler: PythonHandler, schema: Mapping[str, Any]) -> Iterator[DeclarationProblem]:
    """Where a given schema and the function it is for can never agree."""
    parameters = inspect.signature(handler.function).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name != handler.context_parameter
    }
    for name in schema.get("properties", {}):
        if name not in by_name and not open_ended:
            yield DeclarationProblem(f"input_schema/properties/{name}", "the function has no such parameter")
    for name, parameter in parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            yield DeclarationProblem(f"handler/{name}", "is positional-only; arguments are passed by name")
    for name, parameter in by_name.items():
        if parameter.default is parameter.empty and name not in schema.get("required", ()):
            yield DeclarationProblem(f"handler/{name}", "has no default, and the schema does not require it")


def typed_handler(function: Callable[..., object]) -> tuple[PythonHandler, list[DeclarationProblem]]:
    """A handler whose schema is derived from the annotations, with every problem of the signature."""
    problems = list(_kind_problems(function))
    if problems:
        return PythonHandler(function, None, None), problems
    hints, problems = _hints(function)
    if problems:
        return PythonHandler(function, None, None), problems
    context_parameter, problems = _context_parameter(hints)
    fields: dict[str, tuple[str, Any, Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if _bare(hints.get(name)) is ToolContext:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                problems.append(DeclarationProblem(f"handler/{name}", "is positional-only; name it"))
            continue
        problem = _parameter_problem(parameter, hints)
        if problem is not None:
            problems.append(DeclarationProblem(f"handler/{name}", problem))
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"p{len(fields)}"] = (name, hints[name], default)
    if problems:
        return PythonHandler(function, context_parameter, None), problems
    parameters = Parameters(
        model=_model(fields),
        names={field: name for field, (name, _, _) in fields.items()},
        always=frozenset(field for field, (_, _, default) in fields.items() if isinstance(default, FieldInfo)),
    )
    return PythonHandler(function, context_parameter, parameters), []


def derive_schema(parameters: Parameters) -> dict[str, Any]:
    """The JSON Schema of typed parameters: closed objects on every level, no generated titles."""
    schema = parameters.model.model_json_schema(by_alias=True, schema_generator=_Generator)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for _, node in subschemas(schema, ""):
        # A mapping (`dict[str, int]`) has no properties and stays open, as it was declared.
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
    for name, definition in schema.get("$defs", {}).items():
        if definition.get("title") == name:
            del definition["title"]
    return schema


def _import(handler_ref: str) -> object:
    module_name, _, path = handler_ref.partition(":")
    found: object = importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise LookupError(f"cannot be found: {module_name} has no {path!r}")
        found = getattr(found, part)
    return found


def _load_entry_point(name: str) -> object:
    found = {point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if not found:
        raise LookupError(f"is neither module:function nor an installed entry point of the group {ENTRY_POINT_GROUP!r}")
    if len(found) > 1:
        raise LookupError(f"is ambiguous, several packages install it: {', '.join(sorted(found))}")
    return next(iter(found.values())).load()


def _refused(handler_ref: str, text: str) -> DeclarationError:
    return DeclarationError(handler_ref, [DeclarationProblem("handler", f"{handler_ref!r} {text}")])


def _kind_problems(function: Callable[..., object]) -> Iterator[DeclarationProblem]:
    code = _called(function)
    if inspect.isclass(function):
        yield DeclarationProblem("handler", "is a class; name a function")
    elif inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        yield DeclarationProblem("handler", "is async; a tool is a plain function, called in a thread")
    elif inspect.isgeneratorfunction(code):
        yield DeclarationProblem("handler", "is a generator; a tool returns one value")
    else:
        try:
            inspect.signature(function)
        except (TypeError, ValueError) as error:
            yield DeclarationProblem("handler", f"has no readable signature: {error}")


def _called(function: Callable[..., object]) -> Any:
    """What carries the annotations: the function itself, or the `__call__` of an object."""
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__")  # noqa: B004, B009  (an object's own class, not the metaclass)


def _hints(function: Callable[..., object]) -> tuple[dict[str, Any], list[DeclarationProblem]]:
    try:
        return get_type_hints(_called(function), include_extras=True), []
    except Exception as error:  # noqa: BLE001  (annotations are foreign code)
        text = f"its annotations cannot be evaluated: {type(error).__name__}: {error}"
        return {}, [DeclarationProblem("handler", text)]


def _context_parameter(hints: Mapping[str, Any]) -> tuple[str | None, list[DeclarationProblem]]:
    found = [name for name, hint in hints.items() if name != "return" and _bare(hint) is ToolContext]
    if len(found) > 1:
        return found[0], [DeclarationProblem(f"handler/{found[1]}", "is a second ToolContext; one is enough")]
    return (found[0] if found else None), []


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _parameter_problem(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> str | None:
    """Why a parameter cannot be part of a schema, or None."""
    if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.VAR_KEYWORD:
        return f"{parameter} takes what no schema names; list the parameters or give an input_schema"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return "is positional-only; arguments are passed by name"
    if parameter.name not in hints:
        return "has no annotation: write one, or give the tool an input_schema"
    default = ... if parameter.default is parameter.empty else parameter.default
    try:
        _model({"p0": (parameter.name, hints[parameter.name], default)}).model_json_schema(schema_generator=_Generator)
    except (PydanticUserError, TypeError, ValueError) as error:
        return f"its type has no JSON Schema: {str(error).splitlines()[0]}"
    return None


def _model(fields: Mapping[str, tuple[str, Any, Any]]) -> type[BaseModel]:
    definitions: dict[str, Any] = {
        field: (Annotated[hint, Field(alias=name)], default) for field, (name, hint, default) in fields.items()
    }
    config = ConfigDict(extra="forbid", protected_namespaces=())
    return create_model("Arguments", __config__=config, **definitions)


class _Generator(GenerateJsonSchema):
    """pydantic's generator without titles made from names, and quiet about defaults that JSON lacks."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
