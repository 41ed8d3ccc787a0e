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


def test_prose_behind_sections_and_fields_is_description() -> None:
    google = "Do it.\n\nArgs:\n    a: First.\n\nIt takes a while.\n\nReturns:\n    A text.\n\nBe patient."
    assert parse_docstring(google) == ("Do it.\n\nIt takes a while.\n\nBe patient.", {"a": "First."})
    assert parse_docstring("Do it.\n\n:param a: First.\n\nBe patient.") == (
        "Do it.\n\nBe patient.",
        {"a": "First."},
    )


def test_an_entry_may_go_on_without_extra_indentation() -> None:
    text = "Do it.\n\nArgs:\n    a: The first one,\n    which is long.\n    b: The second one.\n"
    assert parse_docstring(text) == ("Do it.", {"a": "The first one, which is long.", "b": "The second one."})


def test_sections_of_other_names_are_read_too() -> None:
    text = (
        "Do it.\n\nkeyword args:\n    a: First.\n\nOther Parameters:\n    b: Second.\n\nNote:\n    Not shown."
    )
    assert parse_docstring(text) == ("Do it.", {"a": "First.", "b": "Second."})
