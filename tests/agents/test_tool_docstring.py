"""A docstring tells the model what a tool does and what its parameters mean, in whichever style it is written."""

from __future__ import annotations

from quiesce.agents.agent.docstring import parse_docstring

GOOGLE = """Forecast the weather.

    Uses three models.

    Args:
        city (str, optional): Where,
            such as Paris: a place.
        days: How many.
        **more: The rest.

    Returns:
        A text.

    Note: this line is prose.
    """

NUMPY = """Forecast the weather.

    Uses three models.

    Parameters
    ----------
    city : str, optional
        Where,
        such as Paris: a place.
    days, hours : int
        How many.

    Returns
    -------
    str
        A text.
    """

SPHINX = """Forecast the weather.

    Uses three models.

    :param str city: Where,
        such as Paris: a place.
    :param days: How many.
    :type days: int
    :returns: A text.
    """


def test_google_style() -> None:
    parsed = parse_docstring(GOOGLE)
    assert parsed.description == "Forecast the weather.\n\nUses three models.\n\nNote: this line is prose."
    assert parsed.parameters == {
        "city": "Where, such as Paris: a place.",
        "days": "How many.",
        "more": "The rest.",
    }


def test_numpy_style() -> None:
    parsed = parse_docstring(NUMPY)
    assert parsed.description == "Forecast the weather.\n\nUses three models."
    assert parsed.parameters == {
        "city": "Where, such as Paris: a place.",
        "days": "How many.",
        "hours": "How many.",
    }


def test_sphinx_style() -> None:
    parsed = parse_docstring(SPHINX)
    assert parsed.description == "Forecast the weather.\n\nUses three models."
    assert parsed.parameters == {"city": "Where, such as Paris: a place.", "days": "How many."}


def test_a_docstring_of_no_style_is_all_description() -> None:
    text = "Do it.\n\nParameters are many: see below.\n\n  - one\n  - two"
    assert parse_docstring(text) == (text, {})


def test_no_docstring_says_nothing() -> None:
    assert parse_docstring(None) == ("", {})
    assert parse_docstring("") == ("", {})


def test_an_empty_section_describes_nothing() -> None:
    assert parse_docstring("Do it.\n\nArgs:\n") == ("Do it.\n\nArgs:", {})
    assert parse_docstring("Do it.\n\nParameters\n----------\n") == ("Do it.", {})
