"""Every class and union of the schema is read and written again as it was, with whatever else the peer has said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from operator import ne
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quiesce.acp.schema as schema
from quiesce.acp.protocol.codec import decode, encode, from_dict, to_dict
from quiesce.acp.schema.message import ByShape, Message, UnknownVariant
from tests.acp.definitions import AGENT_TYPES, CLIENT_TYPES, DEFINITIONS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
EXTRA_NAME = "x-future"
fields_of = cache(msgspec.structs.fields)


def variants_of(kind: Any) -> list[Any]:
    """The kinds that a type chooses from, None aside."""
    if get_origin(kind) is Annotated:
        return (
            [kind]
            if any(isinstance(one, msgspec.Meta) for one in kind.__metadata__)
            else variants_of(get_args(kind)[0])
        )
    if isinstance(kind, ByShape):
        return [list[one] for one in kind.variants] if kind.many else list(kind.variants)  # type: ignore[valid-type]
    if get_origin(kind) in (UnionType, Union):
        return [one for one in get_args(kind) if one is not NoneType]
    return [kind]


def values(kind: Any) -> st.SearchStrategy[Any]:
    """JSON of a type, without anything that is left out when it is written."""
    variants = variants_of(kind)
    if len(variants) > 1:
        return st.one_of([values(one) for one in variants])
    (kind,) = variants
    if isinstance(kind, type) and issubclass(kind, Message):
        return objects(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        return st.lists(values(arguments[0]), min_size=1, max_size=2)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), values(arguments[1]), min_size=1, max_size=2)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is Annotated:
        limits = arguments[1]
        if arguments[0] is int:
            return st.integers(limits.ge, limits.le if limits.le is not None else 2**53)
        return st.text(min_size=limits.min_length, max_size=8)
    return {
        str: st.text(max_size=8),
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False).map(lambda one: one + 0.0),
        bool: st.booleans(),
        Any: JSON.filter(lambda one: one is not None),
    }[kind]


def objects(kind: type[Message]) -> st.SearchStrategy[dict[str, Any]]:
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for info in fields_of(kind):
        if info.encode_name.startswith("("):
            continue
        made = values(info.type)
        if info.default is not msgspec.NODEFAULT:
            optional[info.encode_name] = made.filter(partial(ne, info.default))
        elif info.required or (
            isinstance(info.default_factory, type) and issubclass(info.default_factory, Message)
        ):
            required[info.encode_name] = made
        else:
            optional[info.encode_name] = made
    if issubclass(kind, UnknownVariant):
        required[kind.__struct_config__.tag_field or ""] = st.just("x-kind")
    elif kind.__struct_config__.tag is not None:
        required[kind.__struct_config__.tag_field or ""] = st.just(kind.__struct_config__.tag)
    return st.fixed_dictionaries(required, optional=optional)


def sample(kind: Any, *, full: bool, pick: int = 0) -> Any:
    """One such value, always the same: with all that is optional or without, and the `pick`th of each choice."""
    variants = variants_of(kind)
    kind = variants[pick % len(variants)]
    if len(variants) > 1:
        return sample(kind, full=full, pick=pick)
    if isinstance(kind, type) and issubclass(kind, Message):
        made: dict[str, Any] = {}
        config = kind.__struct_config__
        if config.tag is not None:
            made[config.tag_field or ""] = "x-kind" if issubclass(kind, UnknownVariant) else config.tag
        for info in fields_of(kind):
            factory = isinstance(info.default_factory, type) and issubclass(info.default_factory, Message)
            if not info.encode_name.startswith("(") and (full or info.required or factory):
                value = sample(info.type, full=full, pick=pick)
                if info.default is msgspec.NODEFAULT or value != info.default:
                    made[info.encode_name] = value
        return made
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        return [sample(arguments[0], full=full, pick=pick)]
    if origin is dict:
        return {"key": sample(arguments[1], full=full, pick=pick)}
    if origin is Literal:
        return arguments[pick % len(arguments)]
    if origin is Annotated:
        return {int: 7, str: "words"}[arguments[0]]
    return {str: "words", int: 7, float: 0.5, bool: True, Any: {"any": [1, "thing"]}}[kind]


def classes() -> Iterator[tuple[str, Any]]:
    for name in import_module("quiesce.acp.schema").__all__:
        kind = getattr(schema, name)
        if isinstance(kind, ByShape) or (isinstance(kind, type) and issubclass(kind, Message)):
            if kind not in (Message, UnknownVariant):
                yield name, kind
        elif get_origin(kind) is UnionType:
            yield name, kind


CLASSES = dict(classes())
PICKS = range(15)  # as many as the largest union has variants


def message_of(value: Any, kind: Any) -> Any:
    return decode(json.dumps(value).encode(), kind)


@pytest.mark.parametrize("full", [False, True], ids=["only what it must have", "with all it can have"])
def test_what_is_read_is_written_again(full: bool) -> None:
    for name, kind in CLASSES.items():
        for pick in PICKS:
            value = sample(kind, full=full, pick=pick)
            message = message_of(value, kind)
            assert json.loads(encode(message)) == value, name
            assert to_dict(message) == value, name
            assert from_dict(kind, value) == message, name
            assert decode(encode(message), kind) == message, name


@given(st.data())
@settings(max_examples=150)
def test_any_message_with_anything_in_it_is_written_as_it_was_read(data: st.DataObject) -> None:
    kind = CLASSES[data.draw(st.sampled_from(sorted(CLASSES)))]
    value = data.draw(values(kind))
    assert json.loads(encode(message_of(value, kind))) == value


def test_fields_of_the_future_are_kept_wherever_they_are() -> None:
    def with_more(value: Any) -> Any:
        if isinstance(value, list):
            return [with_more(one) for one in value]
        if not isinstance(value, dict) or "any" in value or "key" in value:
            return value
        return {field: with_more(one) for field, one in value.items()} | {EXTRA_NAME: {"since": 2}}

    for name, kind in CLASSES.items():
        for pick in PICKS:
            value = with_more(sample(kind, full=True, pick=pick))
            message = message_of(value, kind)
            assert json.loads(encode(message)) == value, name
            assert to_dict(message) == value, name
            if isinstance(message, Message):
                assert message.extra_fields[EXTRA_NAME] == {"since": 2}, name


def test_every_variant_of_every_union_was_among_the_samples() -> None:
    seen: set[type] = set()

    def look(value: Any) -> None:
        if isinstance(value, Message):
            seen.add(type(value))
            for name in value.__struct_fields__:
                look(getattr(value, name))
        elif isinstance(value, list):
            for one in value:
                look(one)
        elif isinstance(value, dict):
            for one in value.values():
                look(one)

    for kind in CLASSES.values():
        for pick in PICKS:
            look(message_of(sample(kind, full=True, pick=pick), kind))
    assert {
        kind for kind in CLASSES.values() if isinstance(kind, type) and not isinstance(kind, ByShape)
    } <= seen


def test_each_method_has_the_type_of_what_it_takes_and_answers() -> None:
    from quiesce.acp.protocol.meta import AGENT_METHODS, CLIENT_METHODS

    assert sorted(AGENT_TYPES) == sorted(AGENT_METHODS.values())
    assert sorted(CLIENT_TYPES) == sorted(CLIENT_METHODS.values())
    told = {"session/cancel", "session/update", "elicitation/complete"}
    assert {name for name, (_, answers) in {**AGENT_TYPES, **CLIENT_TYPES}.items() if answers is None} == told


def test_every_definition_has_a_type_that_can_be_read() -> None:
    assert len(DEFINITIONS) == 178
    for kind in DEFINITIONS.values():
        value = sample(kind, full=True)
        assert json.loads(encode(message_of(value, kind))) == value
