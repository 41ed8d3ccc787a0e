"""From a typed function: the JSON schema of its arguments, and a fast way from a model's JSON to a call.

Parameters become the fields of a `msgspec` struct that is made once per function: one decoder reads, checks
and converts. Two kinds of parameters are not arguments, and are left out of the schema: a first one annotated
`RunContextWrapper` or `ToolContext`, and one annotated `CancelToken`.

A parameter whose type has a pydantic model in it is described and checked by pydantic: the struct keeps its
JSON as it is. pydantic is never imported here unless a parameter needs it, in which case the function's own
module has imported it already.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Annotated, Any, get_args, get_origin

import msgspec

from quiesce import CancelToken

from .context import RunContextWrapper, ToolContext
from .docstring import parse_docstring
from .errors import InvalidToolArguments, UserError
from .strict_schema import NotStrict, plain_schema, strict_schema

_REFERENCES = "#/$defs/{name}"
_NAMES_OF_OURS = {
    "CancelToken": CancelToken,
    "RunContextWrapper": RunContextWrapper,
    "ToolContext": ToolContext,
}
_MISSING: Any = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionSchema:
    """What a tool tells the model about its arguments, and how it takes them.

    `bind(arguments, context, token)` turns the model's JSON into the positional and keyword arguments of the
    function. `context` and `token` are put in where the function takes them.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool
    takes_context: bool
    token_parameter: str | None
    decode: Callable[[str], tuple[Any, ...]]
    """Turns the model's JSON into the values of the arguments, in order.

    It raises `InvalidToolArguments` if they do not fit.
    """
    is_plain: bool
    """Whether the function takes these values by position, after the context if it takes one."""
    _slots: tuple[tuple[str, bool], ...]  # each parameter but the context, and whether it goes by name

    def bind(
        self, arguments: str, context: object = None, token: CancelToken | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call."""
        values = iter(self.decode(arguments))
        positional: list[Any] = [context] if self.takes_context else []
        named: dict[str, Any] = {}
        for name, by_name in self._slots:
            value = token if name == self.token_parameter else next(values)
            if by_name:
                named[name] = value
            else:
                positional.append(value)
        return positional, named


def function_schema(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool | None = None,
    local_names: Mapping[str, Any] | None = None,
) -> FunctionSchema:
    """Read a function's signature, annotations and docstring.

    `strict`: True makes the strict variant of the schema, and refuses a function that has none; False never
    makes one; None makes one where that is possible. `local_names` are names that annotations may use besides
    the globals of the function's module.
    """
    name = name or _name_of(fn)
    docstring = parse_docstring(inspect.getdoc(_described(fn)))
    parameters = _typed_parameters(fn, name, local_names)
    takes_context = bool(parameters) and _is_context(parameters[0].annotation)
    token_parameter: str | None = None
    fields: list[_Field] = []
    slots: list[tuple[str, bool]] = []
    for index, parameter in enumerate(parameters):
        if index == 0 and takes_context:
            continue
        _refuse_what_is_no_argument(parameter, index, name, fn)
        slots.append((parameter.name, parameter.kind is parameter.KEYWORD_ONLY))
        if parameter.annotation is CancelToken:
            if token_parameter is not None:
                raise UserError(f"tool {name!r} has two parameters of type CancelToken: a call has one token")
            token_parameter = parameter.name
            continue
        fields.append(_field(parameter, name, docstring.parameters.get(parameter.name)))
    schema = _schema_of(fields, name)
    is_strict = False
    if strict is not False:
        try:
            schema, is_strict = strict_schema(schema), True
        except NotStrict as why:
            if strict:
                raise UserError(
                    f"tool {name!r} has no strict schema, since {why}: give it a type that says more, or set "
                    "strict_mode=False"
                ) from None
    return FunctionSchema(
        name=name,
        description=docstring.description if description is None else description,
        parameters=schema,
        strict=is_strict,
        takes_context=takes_context,
        token_parameter=token_parameter,
        decode=_decoder_of(fields, name),
        is_plain=token_parameter is None and not any(by_name for _, by_name in slots),
        _slots=tuple(slots),
    )


# Parameters


def _name_of(fn: Callable[..., Any]) -> str:
    given = getattr(_described(fn), "__name__", type(fn).__name__)
    if given == "<lambda>":
        raise UserError(
            "a lambda has no name that a model could call it by: give name_override, or write a def"
        )
    return str(given)


def _described(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that has the name and the docstring."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _typed_parameters(
    fn: Callable[..., Any], name: str, local_names: Mapping[str, Any] | None
) -> list[inspect.Parameter]:
    """Its parameters, with annotations that were written as strings resolved."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"tool {name!r} cannot be made of {fn!r}, whose signature is not known: {error}"
        ) from error
    # What a partial passes by name is not for the model to set. What it passes by position is not in the
    # signature.
    settled = fn.keywords if isinstance(fn, functools.partial) else {}
    parameters = [p for p in signature.parameters.values() if p.name not in settled]
    annotations = {p.name: p.annotation for p in parameters if p.annotation is not _MISSING}
    hints = _resolved(annotations, _globals_of(fn), name, local_names)
    return [p.replace(annotation=hints.get(p.name, Any)) for p in parameters]


def _globals_of(fn: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(_described(fn))
    if not hasattr(inner, "__globals__"):
        inner = inspect.unwrap(type(inner).__call__)
    found: dict[str, Any] = getattr(inner, "__globals__", {})
    return found


def _resolved(
    annotations: dict[str, Any], names: dict[str, Any], tool: str, local_names: Mapping[str, Any] | None
) -> dict[str, Any]:
    holder = types.SimpleNamespace(
        __annotations__=annotations
    )  # not `fn`, as the type that it returns need not be known
    try:
        return typing.get_type_hints(holder, names, include_extras=True)
    except NameError:
        pass
    # The annotation names a class that is local to the function around it, or something that is imported only
    # for type checkers.
    try:
        return typing.get_type_hints(
            holder, {**_NAMES_OF_OURS, **names, **(local_names or {})}, include_extras=True
        )
    except NameError as error:
        raise UserError(
            f"tool {tool!r} has an annotation that cannot be resolved, since {error}: import it at run time, not only "
            "under TYPE_CHECKING"
        ) from error


def _is_context(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, RunContextWrapper)


def _refuse_what_is_no_argument(
    parameter: inspect.Parameter, index: int, tool: str, fn: Callable[..., Any]
) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise UserError(
            f"tool {tool!r} takes {stars}{parameter.name}, which no schema can describe: name its parameters, or "
            "take a list or a dict"
        )
    if _is_context(parameter.annotation):
        raise UserError(
            f"tool {tool!r} takes the run's context as {parameter.name!r}, which is not its first parameter: "
            "move it there"
        )
    if (
        index == 0
        and parameter.name in {"self", "cls"}
        and parameter.annotation is Any
        and not inspect.ismethod(fn)
    ):
        raise UserError(
            f"tool {tool!r} is a method without its object: make the tool of a bound one, function_tool(thing.{tool})"
        )


# Fields


@dataclasses.dataclass(slots=True)
class _Field:
    name: str
    type: Any
    default: Any
    description: str | None
    adapter: Any = None  # pydantic's TypeAdapter, where pydantic describes and checks it
    factory: Callable[[], Any] | None = None

    @property
    def is_required(self) -> bool:
        return self.default is _MISSING and self.factory is None


def _field(parameter: inspect.Parameter, tool: str, documented: str | None) -> _Field:
    annotation, default = parameter.annotation, parameter.default
    factory: Callable[[], Any] | None = None
    if _is_of_pydantic(type(default)) and hasattr(default, "default_factory"):  # `= Field(...)`
        annotation = Annotated[annotation, default]
        factory = default.default_factory
        default = _MISSING if default.is_required() or factory is not None else default.default
    # The text of an annotation is closer to the parameter than the docstring, and beats it.
    said = None
    if get_origin(annotation) is Annotated:
        said = next((extra for extra in get_args(annotation)[1:] if isinstance(extra, str)), None)
    field = _Field(parameter.name, annotation, default, said or documented, factory=factory)
    try:
        if _has_pydantic(annotation):
            import pydantic

            field.adapter = pydantic.TypeAdapter(annotation)  # pyright: ignore[reportArgumentType]
        else:
            # Neither is used: this only finds out, for each parameter alone, whether msgspec knows its type.
            # An error about the whole struct would not name the parameter.
            _components([annotation])
            msgspec.json.Decoder(annotation, dec_hook=_decode_other)
    except Exception as error:  # msgspec raises TypeError, pydantic several of its own
        first = str(error).splitlines()[0].rstrip(":")
        if first.startswith("Generating JSON schema for custom types"):
            first = f"no JSON can be turned into {annotation!r}"
        raise UserError(
            f"tool {tool!r} cannot take {parameter.name!r}: {first}. Use types that JSON has, dataclasses, TypedDicts, "
            "msgspec structs or pydantic models"
        ) from error
    return field


def _is_of_pydantic(kind: Any) -> bool:
    # By the name of its module, as pydantic is not imported only to find out that nothing is of pydantic.
    return isinstance(kind, type) and any(
        base.__module__.partition(".")[0] in {"pydantic", "annotated_types"} for base in kind.__mro__
    )


def _has_pydantic(annotation: Any) -> bool:
    """Whether it is a pydantic model, has one in it, or carries pydantic's metadata."""
    if _is_of_pydantic(annotation):
        return True
    if get_origin(annotation) is Annotated:
        inner, *extras = get_args(annotation)
        return any(_is_of_pydantic(type(extra)) for extra in extras) or _has_pydantic(inner)
    return any(
        _has_pydantic(part) for part in get_args(annotation) if not isinstance(part, (str, int, bytes))
    )


# The schema


def _components(of: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    return msgspec.json.schema_components(of, schema_hook=_describe_other, ref_template=_REFERENCES)


def _describe_other(kind: type) -> dict[str, Any]:
    if issubclass(kind, PurePath):
        return {"type": "string"}
    raise NotImplementedError  # tells msgspec that this type is not supported


def _decode_other(kind: type, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, PurePath):
        if isinstance(value, str):
            return kind(value)
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    raise NotImplementedError  # tells msgspec that this type is not supported


def _schema_of(fields: list[_Field], tool: str) -> dict[str, Any]:
    described, components = _components([field.type for field in fields if field.adapter is None])
    of_msgspec = iter(described)
    properties: dict[str, Any] = {}
    for field in fields:
        if field.adapter is None:
            schema = dict(next(of_msgspec))
        else:
            schema = field.adapter.json_schema(ref_template="#/$defs/{model}")
            for name, part in schema.pop("$defs", {}).items():
                _add_component(components, name, part, tool)
            if set(schema) - {"$ref"} and schema.get("title") and schema.get("type") == "object":
                # pydantic has put the model itself here. A reference keeps it from being there twice, if
                # another parameter has it too.
                _add_component(components, schema["title"], schema, tool)
                schema = {"$ref": f"#/$defs/{schema['title']}"}
        if field.description and "description" not in schema:
            schema["description"] = field.description
        if not field.is_required and (shown := _shown(field.default)) is not _MISSING:
            schema["default"] = shown
        properties[field.name] = schema
    whole: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [field.name for field in fields if field.is_required],
        "additionalProperties": False,
    }
    if components:
        whole["$defs"] = components
    return plain_schema(whole)


def _add_component(components: dict[str, Any], name: str, schema: dict[str, Any], tool: str) -> None:
    if components.setdefault(name, schema) != schema:
        raise UserError(
            f"tool {tool!r} takes two types named {name!r}: rename one, so that the schema can tell them apart"
        )


def _shown(default: Any) -> Any:
    """A default as JSON; missing if it cannot be written so."""
    if default is _MISSING:
        return _MISSING
    try:
        return msgspec.to_builtins(default, enc_hook=_shown_other)
    except (TypeError, ValueError, NotImplementedError):
        return _MISSING


def _shown_other(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError  # tells msgspec that this type is not supported


# Decoding


def _decoder_of(fields: list[_Field], tool: str) -> Callable[[str], tuple[Any, ...]]:
    # Raw keeps the JSON of a parameter as it is, for pydantic to decode.
    parts: list[tuple[str, Any, Any]] = []
    by_pydantic: list[tuple[int, Any]] = []
    for index, field in enumerate(fields):
        if field.adapter is not None:
            by_pydantic.append((index, field.adapter))
        kind = msgspec.Raw if field.adapter is not None else field.type
        parts.append((field.name, kind, _default_of(field)))
    # A model that invents an argument is told so, rather than that the argument has no effect.
    arguments = msgspec.defstruct("arguments", parts, kw_only=True, forbid_unknown_fields=True)
    # Not strict about types: a model that writes "3" for a number means the number.
    decode = msgspec.json.Decoder(arguments, strict=False, dec_hook=_decode_other).decode
    values_of = msgspec.structs.astuple

    def plain(given: str) -> tuple[Any, ...]:
        try:
            return values_of(decode(given or "{}"))
        except (ValueError, RecursionError) as error:
            raise _invalid(tool, str(error), fields) from error

    if not by_pydantic:
        return plain

    def with_pydantic(given: str) -> tuple[Any, ...]:
        values = list(plain(given))
        for index, adapter in by_pydantic:
            if isinstance(values[index], msgspec.Raw):
                try:
                    values[index] = adapter.validate_json(bytes(values[index]))
                except ValueError as error:  # as pydantic's ValidationError is
                    raise _invalid(tool, _in_short(error, fields[index].name), fields) from error
        return tuple(values)

    return with_pydantic


def _default_of(field: _Field) -> Any:
    if field.is_required:
        return msgspec.NODEFAULT
    if field.factory is not None:
        return msgspec.field(default_factory=field.factory)
    default = field.default
    if isinstance(default, (list, dict, set, bytearray)):
        return msgspec.field(default_factory=lambda: default)  # one object for all calls, as in Python
    return msgspec.field(default=default)


def _invalid(tool: str, problem: str, fields: list[_Field]) -> InvalidToolArguments:
    takes = ", ".join(f"{field.name}{'' if field.is_required else ' (optional)'}" for field in fields)
    return InvalidToolArguments(
        f"tool {tool!r} was called with arguments that it does not take: {problem}. It takes a JSON object "
        + (f"with {takes}" if takes else "with nothing in it")
    )


def _in_short(error: ValueError, name: str) -> str:
    """pydantic's errors in one line, with places written as msgspec writes them."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{error} - at `$.{name}`"
    told = []
    for one in errors(include_url=False, include_input=False, include_context=False):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in one["loc"])
        told.append(f"{one['msg']} - at `$.{name}{place}`")
    return "; ".join(told)
