"""Converts a user's message from content blocks of ACP to content for the model, and back for a replay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quiesce.acp import schema as s
from quiesce.acp.exceptions import RequestError
from quiesce.acp.helpers import image_block, text_block
from quiesce.models import Content, Image, Text

_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


def content_of(blocks: Sequence[Any], *, images: bool) -> Content:
    """Return the content for the model; raise `RequestError` for a block of a type that was not announced."""
    parts = [_part(block, images) for block in blocks]
    if not parts:
        raise RequestError.invalid_params({"prompt": "it is empty: send at least one content block"})
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return parts


def _part(block: Any, images: bool) -> Text | Image:
    match block:
        case s.TextContentBlock(text=text):
            return Text(text)
        case s.ImageContentBlock(data=data, mime_type=kind) if images:
            return Image(f"data:{kind};base64,{data}")
        case s.ResourceContentBlock():
            return Text(_link(block))
        case s.EmbeddedResourceContentBlock(resource=resource):
            return _embedded(resource, images)
        case _:
            kind = getattr(block, "type", None) or type(block).__name__
            raise RequestError.invalid_params(
                {"prompt": f"this agent does not accept content of type {kind!r}: see its promptCapabilities"}
            )


def _link(link: s.ResourceContentBlock) -> str:
    about = f" ({link.description})" if link.description else ""
    return f"[{link.title or link.name}]({link.uri}){about}"


def _embedded(resource: Any, images: bool) -> Text | Image:
    if isinstance(resource, s.TextResourceContents):
        return Text(f'<resource uri="{resource.uri}">\n{resource.text}\n</resource>')
    kind = resource.mime_type or "application/octet-stream"
    if images and kind.startswith("image/"):
        return Image(f"data:{kind};base64,{resource.blob}")
    # The size of the decoded bytes, without decoding them.
    size = len(resource.blob) * 3 // 4 - resource.blob[-2:].count("=")
    return Text(f'<resource uri="{resource.uri}" type="{kind}">{size} bytes, not shown</resource>')


def blocks_of(content: Content) -> list[Any]:
    """Return a message as content blocks, to show it to the client again."""
    if isinstance(content, str):
        return [text_block(content)]
    blocks: list[Any] = []
    for part in content:
        if isinstance(part, Text):
            blocks.append(text_block(part.text))
        elif (data := _DATA.fullmatch(part.url)) is not None:
            blocks.append(image_block(data[2], data[1]))
        else:
            blocks.append(s.ResourceContentBlock(name="image", uri=part.url))
    return blocks
