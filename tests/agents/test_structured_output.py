"""Typed final output: a schema for the model, and a value of the type for the user."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

from quiesce.agents import Agent, InvalidFinalOutput, Runner, function_tool
from quiesce.models import AssistantMessage, UserMessage
from quiesce.testing import ScriptedModel, call
from tests.agents.scenes import requests_of, scripted


class City(msgspec.Struct):
    name: str
    people: int = 0


@dataclasses.dataclass
class Town:
    name: str


class Country(pydantic.BaseModel):
    name: str
    cities: list[str]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (City, '{"name": "Paris", "people": 2}', City("Paris", 2)),
        (Town, '{"name": "Vence"}', Town("Vence")),
        (Country, '{"name": "France", "cities": ["Paris"]}', Country(name="France", cities=["Paris"])),
        (list[City], '{"response": [{"name": "Paris", "people": 2}]}', [City("Paris", 2)]),
        (int, '{"response": 3}', 3),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (str, "just text", "just text"),
        (None, "just text", "just text"),
    ],
)
async def test_the_final_output_is_of_the_agents_type(kind: Any, text: str, expected: Any) -> None:
    agent = scripted(text, output_type=kind)
    result = await Runner.run(agent, "?")
    assert result.final_output == expected
    assert type(result.final_output) is type(expected)
    assert result.new_items == [AssistantMessage(text)]
    output = requests_of(agent)[0].output
    if kind in (None, str):
        assert output is None
    else:
        assert output is not None
        assert output.schema["type"] == "object"


async def test_strict_schemas_are_closed_at_every_level() -> None:
    agent = scripted('{"response": [{"name": "Paris", "people": 2}]}', output_type=list[City])
    await Runner.run(agent, "?")
    output = requests_of(agent)[0].output
    assert output is not None

    assert output.schema["properties"]["response"]["items"] == {"$ref": "#/$defs/City"}
    for schema in (output.schema, output.schema["$defs"]["City"]):
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])


@pytest.mark.parametrize("text", ["", "no JSON", '{"name": 3}', '{"people": 3}'])
async def test_an_answer_of_another_shape_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(InvalidFinalOutput, match="the final answer is not a valid City") as caught:
        await Runner.run(scripted(text, output_type=City), "?")
    assert caught.value.run_data is not None
    assert caught.value.run_data.to_input_list()[0] == UserMessage("?")


async def test_only_the_last_answer_must_have_the_shape() -> None:
    @function_tool
    async def look() -> str:
        return "seen"

    agent = scripted(["Let me look.", call("look")], '{"name": "Rome"}', tools=[look], output_type=City)
    assert (await Runner.run(agent, "?")).final_output == City("Rome")


async def test_a_type_without_a_schema_is_refused_where_the_agent_is_made() -> None:
    class Odd:
        pass

    with pytest.raises(TypeError, match="Odd cannot be the output type of an agent"):
        Agent(name="a", model=ScriptedModel(), output_type=Odd)


async def test_final_output_as_checks_the_type() -> None:
    result = await Runner.run(scripted('{"name": "Rome"}', output_type=City), "?")
    assert result.final_output_as(City).name == "Rome"
    with pytest.raises(TypeError, match="the final output is City, not int"):
        result.final_output_as(int)


async def test_after_a_handoff_the_last_agents_type_counts() -> None:
    other = scripted('{"name": "Rome"}', name="other", output_type=City)
    first = scripted(call("transfer_to_other"), name="first", handoffs=[other], output_type=int)
    assert (await Runner.run(first, "?")).final_output == City("Rome")


async def test_a_clone_has_the_type_it_is_given() -> None:
    agent = scripted('{"response": 3}', output_type=City).clone(output_type=int)
    assert (await Runner.run(agent, "?")).final_output == 3
