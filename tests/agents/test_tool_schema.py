"""From a typed function: the schema of its arguments, and the arguments from a model's JSON."""

from __future__ import annotations

import dataclasses
import enum
import functools
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest

from quiesce import CancelToken
from quiesce.agents.agent.context import RunContextWrapper, ToolContext
from quiesce.agents.agent.errors import InvalidToolArguments, UserError
from quiesce.agents.agent.schema import FunctionSchema, function_schema

if TYPE_CHECKING:
    from fractions import Fraction


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Window(TypedDict):
    start: str
    end: NotRequired[str]


class Circle(msgspec.Struct, tag="circle"):
    radius: Annotated[float, msgspec.Meta(gt=0, description="In metres.")]


class Square(msgspec.Struct, tag="square"):
    side: float


class Place(pydantic.BaseModel):
    """Somewhere."""

    city: str
    height: int = pydantic.Field(default=0, ge=0)


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


def properties(fn: Callable[..., Any], **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = function_schema(fn, **options).parameters["properties"]
    return found


def bound(fn: Callable[..., Any], arguments: str) -> tuple[list[Any], dict[str, Any]]:
    return function_schema(fn).bind(arguments)


def called(fn: Callable[..., Any], arguments: str) -> Any:
    positional, named = bound(fn, arguments)
    return fn(*positional, **named)


# The schema


def test_a_plain_function_has_a_strict_schema() -> None:
    def weather(city: str, days: int = 1) -> str:
        """Forecast.

        Args:
            city: Where.
            days: How many.
        """
        return city * days

    schema = function_schema(weather)
    assert (schema.name, schema.description, schema.strict) == ("weather", "Forecast.", True)
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many. (default: 1)"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    }


def test_without_strict_mode_a_parameter_with_a_default_is_optional() -> None:
    def weather(city: str, days: int = 1) -> None: ...

    schema = function_schema(weather, strict=False)
    assert not schema.strict
    assert schema.parameters["required"] == ["city"]
    assert schema.parameters["properties"]["days"] == {"type": "integer", "default": 1}


def test_what_has_no_strict_schema_has_a_plain_one_unless_strict_is_asked_for() -> None:
    def save(data: dict[str, int]) -> None: ...

    def anything(data) -> None: ...  # type: ignore[no-untyped-def]

    for fn in (save, anything):
        assert not function_schema(fn).strict
        with pytest.raises(UserError, match=r"no strict schema, since \$\.data"):
            function_schema(fn, strict=True)


def test_a_function_without_parameters_has_a_strict_schema() -> None:
    def now() -> None: ...

    assert function_schema(now, strict=True).parameters["properties"] == {}
    assert bound(now, "") == bound(now, "{}") == ([], {})


def test_an_annotation_describes_better_than_a_docstring() -> None:
    def search(
        query: Annotated[str, "What to look for."],
        limit: Annotated[int, msgspec.Meta(ge=1, description="Most.")],
    ) -> None:
        """Search.

        Args:
            query: not this
            limit: nor this
        """

    assert properties(search) == {
        "query": {"type": "string", "description": "What to look for."},
        "limit": {"type": "integer", "description": "Most.", "minimum": 1},
    }


def test_literals_and_enums_are_lists_of_values() -> None:
    def ask(mode: Literal["fast", "slow"], unit: Unit = Unit.CELSIUS) -> Any:
        return mode, unit

    schema = function_schema(ask, strict=False).parameters
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"], "type": "string"}
    assert schema["$defs"]["Unit"] == {"enum": ["c", "f"], "type": "string"}
    assert called(ask, '{"mode": "slow", "unit": "f"}') == ("slow", Unit.FAHRENHEIT)
    assert called(ask, '{"mode": "slow"}') == ("slow", Unit.CELSIUS)


def test_a_reference_stands_alone_in_a_strict_schema() -> None:
    def ask(unit: Annotated[Unit, "Which."]) -> None: ...

    assert properties(ask)["unit"] == {"anyOf": [{"$ref": "#/$defs/Unit"}], "description": "Which."}


def test_dataclasses_typed_dicts_and_structs_nest() -> None:
    def draw(at: Point, when: Window, shape: Circle | Square, maybe: Optional[list[Point]] = None) -> Any:  # noqa: UP045
        return at, when, shape, maybe

    schema = function_schema(draw, strict=True).parameters
    assert schema["required"] == ["at", "when", "shape", "maybe"]
    assert schema["$defs"]["Point"]["required"] == ["x", "y"]
    assert schema["$defs"]["Circle"]["properties"]["radius"]["description"] == "In metres."
    assert all(part["additionalProperties"] is False for part in schema["$defs"].values())
    arguments = '{"at": {"x": 1}, "when": {"start": "now"}, "shape": {"type": "square", "side": 2}}'
    assert called(draw, arguments) == (Point(1), {"start": "now"}, Square(2.0), None)


def test_a_type_may_contain_itself() -> None:
    def plant(tree: Tree) -> Any:
        return tree

    assert function_schema(plant, strict=True).parameters["$defs"]["Tree"]["required"] == ["name", "children"]
    assert called(plant, '{"tree": {"name": "a", "children": [{"name": "b"}]}}') == Tree("a", [Tree("b")])


def test_a_tuple_has_no_strict_schema() -> None:
    def move(to: tuple[int, int]) -> Any:
        return to

    assert not function_schema(move).strict
    assert called(move, '{"to": [1, 2]}') == (1, 2)


def test_paths_and_dates_are_strings_to_the_model() -> None:
    def backup(path: Path, day: date, also: list[Path] | None = None) -> Any:
        return path, day, also

    assert properties(backup)["path"] == {"type": "string"}
    arguments = '{"path": "/tmp/x", "day": "2024-02-29", "also": ["y"]}'
    assert called(backup, arguments) == (Path("/tmp/x"), date(2024, 2, 29), [Path("y")])
    with pytest.raises(InvalidToolArguments, match=r"Expected `str`, got `int`.*\$\.path"):
        bound(backup, '{"path": 3, "day": "2024-02-29"}')


# pydantic


def test_a_pydantic_model_is_described_and_checked_by_pydantic() -> None:
    def visit(place: Annotated[Place, "Where to."], others: list[Place], last: Place | None = None) -> Any:
        return place, others, last

    schema = function_schema(visit)
    assert schema.strict
    assert schema.parameters["properties"]["place"]["anyOf"] == [{"$ref": "#/$defs/Place"}]
    assert schema.parameters["properties"]["place"]["description"] == "Where to."
    assert schema.parameters["$defs"]["Place"]["required"] == ["city", "height"]
    arguments = '{"place": {"city": "Rome"}, "others": [{"city": "Oslo", "height": 3}]}'
    assert called(visit, arguments) == (Place(city="Rome"), [Place(city="Oslo", height=3)], None)
    with pytest.raises(
        InvalidToolArguments, match=r"greater than or equal to 0 - at `\$\.others\[0\]\.height`"
    ):
        bound(visit, '{"place": {"city": "Rome"}, "others": [{"city": "Oslo", "height": -1}]}')


def test_pydantic_fields_may_stand_as_metadata_or_as_the_default() -> None:
    def search(
        limit: Annotated[int, pydantic.Field(ge=1, description="Most.")],
        page: int = pydantic.Field(default=7, description="Which."),
        tags: list[str] = pydantic.Field(default_factory=lambda: ["a"]),  # noqa: B008
    ) -> Any:
        return limit, page, tags

    shown = properties(search, strict=False)
    assert shown["limit"] == {"type": "integer", "minimum": 1, "description": "Most."}
    assert shown["page"] == {"type": "integer", "default": 7, "description": "Which."}
    assert called(search, '{"limit": 2}') == (2, 7, ["a"])
    with pytest.raises(InvalidToolArguments, match=r"at `\$\.limit`"):
        bound(search, '{"limit": 0}')


def test_two_types_of_one_name_are_refused() -> None:
    one, other = pydantic.create_model("Same", a=(int, ...)), pydantic.create_model("Same", b=(int, ...))

    def both(first: one, second: other) -> None: ...  # type: ignore[valid-type]

    both.__annotations__ = {"first": one, "second": other}
    with pytest.raises(UserError, match="two types named 'Same'"):
        function_schema(both)


def test_pydantic_is_not_imported_for_tools_that_have_no_model() -> None:
    program = (
        "import sys\n"
        "from quiesce.agents.agent.tool import function_tool\n"
        "function_tool(lambda a: a, name_override='a')\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


# What is no argument


def test_context_and_token_are_no_arguments() -> None:
    def tool(ctx: RunContextWrapper[int], a: int, token: CancelToken, *, b: int = 2) -> None: ...

    schema = function_schema(tool)
    assert list(schema.parameters["properties"]) == ["a", "b"]
    token, context = CancelToken(), ToolContext(1)
    assert schema.bind('{"a": 1}', context, token) == ([context, 1, token], {"b": 2})


@pytest.mark.parametrize(
    "annotation",
    [ToolContext, ToolContext[Any], "ToolContext[Any]", "RunContextWrapper"],
    ids=["class", "generic", "text", "text of the base"],
)
def test_the_context_is_known_by_its_annotation(annotation: Any) -> None:
    def tool(anything: Any, a: int) -> None: ...

    tool.__annotations__ = {"anything": annotation, "a": int}
    assert function_schema(tool).takes_context
    tool.__annotations__ = {"anything": str, "a": int}
    assert not function_schema(tool).takes_context


def test_a_name_imported_for_type_checkers_alone_is_named_in_the_error() -> None:
    def tool(a: Fraction) -> None: ...

    with pytest.raises(UserError, match="'Fraction' is not defined: import it at run time"):
        function_schema(tool)


def test_a_class_of_the_function_around_is_found() -> None:
    class Local(msgspec.Struct):
        a: int

    def tool(local: Local) -> Any:
        return local

    assert function_schema(tool, local_names=locals()).bind('{"local": {"a": 1}}') == ([Local(1)], {})


# Refused


class Unfit:
    def method(self, a: int) -> None: ...


def two_tokens(a: CancelToken, b: CancelToken) -> None: ...
def stars(*args: int) -> None: ...
def double_stars(**kwargs: int) -> None: ...
def late_context(a: int, ctx: RunContextWrapper[Any]) -> None: ...
def unfit(a: Unfit) -> None: ...
def a_callable(a: Callable[[], None]) -> None: ...
def ambiguous(a: str | date) -> None: ...
def in_a_list(a: list[Unfit]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "complaint"),
    [
        (two_tokens, "two parameters of type CancelToken"),
        (stars, r"takes \*args, which no schema can describe"),
        (double_stars, r"takes \*\*kwargs, which no schema"),
        (late_context, "'ctx', which is not its first parameter"),
        (unfit, "cannot take 'a': no JSON can be turned into .*Unfit"),
        (in_a_list, "cannot take 'a': no JSON can be turned into .*Unfit"),
        (a_callable, "cannot take 'a': no JSON"),
        (ambiguous, "cannot take 'a': .*more than one str-like"),
        (Unfit.method, r"method without its object: .*function_tool\(thing.method\)"),
        (lambda a: a, "lambda has no name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_a_reason(fn: Callable[..., Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        function_schema(fn)


def test_bound_methods_partials_and_callable_objects_may_be_tools() -> None:
    class Adder:
        def __init__(self, a: int) -> None:
            self.a = a

        def add(self, b: int) -> int:
            """Add."""
            return self.a + b

        def __call__(self, b: int) -> int:
            return self.a + b

    def plain(a: int, b: int) -> int:
        return a + b

    for fn in (Adder(1).add, Adder(1), functools.partial(plain, 1), functools.partial(plain, a=1)):
        schema = function_schema(fn)
        assert list(schema.parameters["properties"]) == ["b"]
        positional, named = schema.bind('{"b": 2}')
        assert fn(*positional, **named) == 3
    assert function_schema(Adder(1).add).description == "Add."


# Decoding


def test_a_default_that_can_change_is_the_functions_own() -> None:
    def collect(into: list[int] = [1], by: dict[str, int] = {"a": 1}) -> Any:  # noqa: B006
        return into, by

    assert properties(collect, strict=False)["into"]["default"] == [1]
    assert called(collect, "{}") == ([1], {"a": 1})
    assert called(collect, "{}")[0] is called(collect, "{}")[0]


def test_a_number_written_as_text_is_taken_as_meant() -> None:
    def add(a: int, b: float, c: int | str, d: bool) -> Any:
        return a, b, c, d

    assert called(add, '{"a": "1", "b": "2.5", "c": "3", "d": "true"}') == (1, 2.5, "3", True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "missing required field `a`"),
        ('{"a": 1', "truncated"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"a": [1]}', r"Expected `int`, got `array` - at `\$\.a`"),
        ('{"a": 1, "z": 2}', "unknown field `z`"),
        ('{"a": {"a": ' * 9000, "."),
    ],
)
def test_wrong_arguments_are_explained_so_that_the_model_can_do_better(arguments: str, problem: str) -> None:
    def add(a: int, b: int = 0) -> None: ...

    with pytest.raises(
        InvalidToolArguments, match=rf"tool 'add' was called.*{problem}.*takes .*a, b \(optional\)"
    ):
        bound(add, arguments)


def test_an_error_of_the_functions_own_check_is_about_the_arguments() -> None:
    @dataclasses.dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("n must be even")

    def halve(even: Even) -> None: ...

    schema: FunctionSchema = function_schema(halve, local_names=locals())
    with pytest.raises(InvalidToolArguments, match="n must be even"):
        schema.bind('{"even": {"n": 3}}')
