"""The lines at the bottom of the terminal: the answer so far, the input, and what is running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from quiesce.cli.inner import detect_terminal

# Arrow keys and Alt combinations begin with the byte of Esc. This is how long to wait for the rest of such a
# sequence: long enough for a slow connection, too short to be noticed.
ESCAPE_SECONDS = 0.05

STYLE = Style.from_dict(
    {
        "live": "fg:ansibrightblack",
        "live.name": "bold",
        "prompt": "bold fg:ansicyan",
        "question": "bold fg:ansiyellow",
    }
)


class BottomLines(Protocol):
    """What the lines at the bottom show, and what their keys do."""

    @property
    def buffer(self) -> Buffer: ...

    def prompt(self) -> StyleAndTextTuples: ...

    def partial_answer(self) -> str: ...

    def status_line(self) -> StyleAndTextTuples: ...

    def send(self) -> None: ...

    def escape(self) -> None: ...

    def ctrl_c(self) -> None: ...

    def ctrl_d(self) -> None: ...

    def is_active(self) -> bool: ...


def make_application(bottom: BottomLines) -> Application[None]:
    """Make the application that draws these lines, below whatever was printed last."""
    output = create_output()
    if isinstance(output, Vt100_Output):
        # Do not ask the terminal for the cursor's position: nothing here needs it, and where the answer comes late or
        # not at all, prompt_toolkit waits for it and prints a warning.
        output.enable_cpr = False
    application: Application[None] = Application(
        layout=_layout(bottom),
        key_bindings=_keys(bottom),
        style=STYLE,
        color_depth=None if detect_terminal().color else ColorDepth.DEPTH_1_BIT,
        erase_when_done=True,
        enable_page_navigation_bindings=False,
        min_redraw_interval=0.03,
        input=create_input(),
        output=output,
    )
    application.ttimeoutlen = application.timeoutlen = ESCAPE_SECONDS
    return application


def _layout(bottom: BottomLines) -> Layout:
    answer = ConditionalContainer(
        Window(FormattedTextControl(bottom.partial_answer), dont_extend_height=True),
        Condition(lambda: bool(bottom.partial_answer())),
    )
    typed = Window(
        BufferControl(bottom.buffer, input_processors=[BeforeInput(bottom.prompt)]),
        wrap_lines=True,
        dont_extend_height=True,
        height=Dimension(min=1, max=10),
    )
    status = Window(FormattedTextControl(bottom.status_line), height=1, style="class:live")
    return Layout(HSplit([answer, typed, status]), focused_element=typed)


def _keys(bottom: BottomLines) -> KeyBindings:
    keys = KeyBindings()
    active = Condition(bottom.is_active)

    def bind(*names: Keys | str, to: Callable[[], None], when: Condition | None = None) -> None:
        def pressed(event: KeyPressEvent) -> None:
            to()

        keys.add(*names, filter=when if when is not None else True)(pressed)

    bind(Keys.ControlC, to=bottom.ctrl_c)
    bind(Keys.ControlD, to=bottom.ctrl_d)
    # While nothing is running there is nothing to stop, and Esc only begins combinations such as Alt-Enter.
    bind(Keys.Escape, to=bottom.escape, when=active)
    bind(Keys.ControlM, to=bottom.send)
    for new_line in ((Keys.Escape, Keys.ControlM), (Keys.ControlJ,)):
        bind(*new_line, to=lambda: bottom.buffer.insert_text("\n"))

    @keys.add(Keys.ControlL)
    def _clear(event: KeyPressEvent) -> None:
        event.app.renderer.clear()

    @keys.add(Keys.ControlZ)
    def _suspend(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    return keys
