"""Addresses, command lines and settings without their secrets.

A password in an address, a key on a command line or a token in an error message would end up in logs, bug
reports and shared screens. Every such text is shown without them. Not every secret can be recognised, so this
is a net, not a wall: it catches credentials in addresses, values in queries, headers and settings whose names
say that they are secret, and keys of a known format.

Every pattern takes time linear in the length of the text, whatever the text contains: a repetition is
unbounded only if the character that ends it cannot be part of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "…"

# A password may contain quotes, so they end an address only if no `@` comes before the next space.
_ADDRESS: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,20}://)"
    r"([^\s@:/'\"<>`]{0,200}:(?!\d{1,5}/)[^\s@]{1,200}@)?([^\s'\"<>`]*)"
)
_QUERY_VALUE: Final = re.compile(r"=[^&;]+")
# The name of something secret: `API_KEY`, `x-api-key`, `password`, `clientSecret`; but not `max_tokens` or
# `keyboard`.
_SECRET_NAME: Final = (
    r"[A-Za-z0-9_.-]{0,40}"
    r"(?:token(?!s|iz)|secret(?!s)|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|authorization|cookie)"
    r"[A-Za-z0-9_.-]{0,40}"
)
_VALUE: Final = r"(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s'\",;&)\]}]+)"
_SETTING: Final = re.compile(
    rf"(?i)(?<![A-Za-z0-9_.-])({_SECRET_NAME}\\?['\"]?\s{{0,3}}[:=]\s{{0,3}}(?:\\\")?)"
    rf"((?:bearer|basic|token)\s{{1,3}})?({_VALUE})"
)
# Also inside a list of strings, as error messages print the words of a command.
_OPTION: Final = re.compile(rf"(?i)(?<![^\s'\"\[(])(--?{_SECRET_NAME})((?:['\"],)?\s{{1,3}})({_VALUE})")
# The whole value of these headers is secret, up to the end of the line or of the quoted string.
_HEADER: Final = re.compile(
    r"(?i)\b((?:set-)?cookie|(?:proxy-)?authorization)((?:\\?['\"])?\s{0,3}:\s{0,3}(?:\\?['\"])?)"
    r"(?:(bearer|basic|digest|token|negotiate)(\s{1,3}))?[^\s'\"\\][^'\"\\\n]*"
)
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic)(\s{1,3})[A-Za-z0-9._~+/=-]{8,}")
_SHAPES: Final = re.compile(
    r"(?<![A-Za-z0-9])"
    r"((?:sk|pk|rk)-(?:ant-|proj-|live-|test-)?|(?:sk|pk|rk)_(?:live|test)_|gh[pousr]_|github_pat_|glpat-"
    r"|xox[abeprs]-|AKIA|ASIA|AIza|hf_|gsk_|npm_|pypi-|ya29\.|eyJ)"
    r"[A-Za-z0-9_.-]{11,}[A-Za-z0-9_-]"
)
_PRIVATE_KEY: Final = re.compile(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[^-]*(-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
# Most text contains nothing suspicious, and is then scanned only once.
_SUSPECT: Final = re.compile(
    r"(?i)://|token|secret|passw|passphrase|[-_]?key|credential|authorization|cookie|bearer|basic|"
    r"[spr]k[-_]|gh[pousr]_|github_pat_|glpat-|xox|AKIA|ASIA|AIza|hf_|gsk_|npm_|pypi-|ya29|eyJ"
)
_PLAIN_VALUES: Final = ("None", "null", "True", "False", "true", "false")
# A word of a command that contains both the name of a secret and its value.
_ASSIGNED: Final = re.compile(rf"(?i)((?:--?)?{_SECRET_NAME}[=:])\s*\S")
_SECRET_OPTION: Final = re.compile(rf"(?i)--?{_SECRET_NAME}\Z")


def without_secrets(text: str) -> str:
    """The text with `…` in place of everything that looks like a secret.

    ```python
    without_secrets("https://ann:pw@host/v1?key=1")    # https://…@host/v1?key=…
    ```
    """
    if _SUSPECT.search(text) is None:
        return text
    text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}", text)
    text = _ADDRESS.sub(_address_without_secrets, text)
    text = _HEADER.sub(_header_without_value, text)
    text = _SETTING.sub(_setting_without_value, text)
    text = _OPTION.sub(rf"\1\2{HIDDEN}", text)
    text = _SCHEME.sub(rf"\1\2{HIDDEN}", text)
    return _SHAPES.sub(rf"\1{HIDDEN}", text)


def command_without_secrets(words: Iterable[str]) -> str:
    """A command line as one would type it, without its secrets.

    The value of an option with a secret name is hidden, and so is a word that is a JSON object.
    """
    shown, hide_next = list[str](), False
    for word in words:
        if hide_next:
            shown.append(HIDDEN)
        elif word.lstrip().startswith("{"):
            shown.append(f"{{{HIDDEN}}}")
        elif assigned := _ASSIGNED.match(word):
            shown.append(assigned[1] + HIDDEN)
        else:
            clean = without_secrets(word)
            shown.append(shlex.quote(word) if clean == word else clean)
        hide_next = not hide_next and _SECRET_OPTION.match(word) is not None
    return " ".join(shown)


def _address_without_secrets(found: re.Match[str]) -> str:
    scheme, user, rest = found[1], found[2], found[3].rstrip(".,:;)]}")
    # Punctuation of the sentence around the address.
    punctuation = found[3][len(rest) :]
    rest, hash_sign, fragment = rest.partition("#")
    rest, question_mark, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    if user or "@" in host:
        host = f"{HIDDEN}@{host.rpartition('@')[2]}"
    query, fragment = (_QUERY_VALUE.sub(f"={HIDDEN}", part) for part in (query, fragment))
    return f"{scheme}{host}{slash}{path}{question_mark}{query}{hash_sign}{fragment}{punctuation}"


def _header_without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{found[3] or ''}{found[4] or ''}{HIDDEN}"


def _setting_without_value(found: re.Match[str]) -> str:
    name, scheme, value = found[1], found[2] or "", found[3]
    if value.startswith(HIDDEN) or value in _PLAIN_VALUES:
        return found[0]
    if value.isdigit() and (len(value) < 6 or "passw" not in name.lower()):
        return found[0]  # a count, or a limit
    if name.endswith((": ", ":  ")) and not scheme and value.isalpha() and len(value) < 20:
        return found[0]  # prose: "invalid token: expected a number"
    quote = value[0] if value[0] in "'\"" else ""
    return f"{name}{scheme}{quote}{HIDDEN}{quote}"
