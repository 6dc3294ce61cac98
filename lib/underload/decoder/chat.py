"""Chat templates: how a checkpoint's authors turn messages into one prompt.

A template is a Jinja program that came with the weights, so it is run as what it is, a stranger's program: in
Jinja's immutable sandbox, with a budget of iterations, characters and seconds. The budget is kept by the few places
through which everything that repeats or grows must pass: loops, calls, string operators, filters that can grow, output.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from underload.decoder.optional import require
from underload.decoder.weights import CheckpointError
from underload.request import InvalidRequest

_MAX_TEMPLATE = 200_000  # characters; the longest in use have some 20,000
_MAX_STEPS = 200_000  # loop iterations and calls
_MAX_CHARACTERS = 20_000_000  # written, stored or joined
_MAX_SECONDS = 10.0


class _OverBudget(Exception):
    """The template did more than any real one does."""


class _Budget:
    def __init__(self) -> None:
        self.steps = 0
        self.characters = 0
        self.deadline = time.monotonic() + _MAX_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise _OverBudget(f"it loops or calls more than {_MAX_STEPS:,} times")
        if time.monotonic() > self.deadline:
            raise _OverBudget(f"it runs for more than {_MAX_SECONDS:g} s")

    def grow(self, characters: int) -> None:
        self.characters += characters
        if self.characters > _MAX_CHARACTERS:
            raise _OverBudget(f"it makes more than {_MAX_CHARACTERS:,} characters")


_BUDGET: ContextVar[_Budget] = ContextVar("budget")


class ChatTemplate:
    """A template, compiled when it is first used.

    Raises:
        CheckpointError: a source too long to be one.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_TEMPLATE:
            raise CheckpointError(
                f"the chat template has {len(source)} characters; more than {_MAX_TEMPLATE} is not believed"
            )
        self.source = source

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of a conversation.

        Raises:
            CheckpointError: the template does not compile, does more than its budget, leaves its sandbox, or fails.
            InvalidRequest: the messages are malformed, or the template refuses them (`raise_exception`).
        """
        require("jinja2", "a chat template")
        conversation = _checked(messages)
        names = {"tools": None, "documents": None, **variables}
        with _guarded("does not compile"):
            template = self._compiled
        with _guarded("failed"):
            text: str = template.render(messages=conversation, add_generation_prompt=add_generation_prompt, **names)
            return text

    @functools.cached_property
    def _compiled(self) -> Any:
        environment = _environment()
        return environment.from_string(_metered_tree(environment, self.source))


@contextmanager
def _guarded(what: str) -> Iterator[None]:
    """Runs a part of a template on a fresh budget; whatever it throws becomes one clear error."""
    import jinja2

    token = _BUDGET.set(_Budget())
    try:
        yield
    except _OverBudget as error:
        raise CheckpointError(f"the checkpoint's chat template was stopped: {error}") from None
    except jinja2.exceptions.SecurityError as error:
        raise CheckpointError(f"the checkpoint's chat template reaches outside its sandbox: {error}") from None
    except InvalidRequest:
        raise
    except (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(f"the checkpoint's chat template {what}: {type(error).__name__}: {error}") from None
    finally:
        _BUDGET.reset(token)


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Plain copies of the messages: the template gets nothing of ours to hold on to."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidRequest(f"messages must be a list of {{'role': …, 'content': …}}, got {type(messages).__name__}")
    conversation = []
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequest(
                f"message {position} must be a dict with 'role' and 'content', got {type(message).__name__}"
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise InvalidRequest(f"message {position} needs a text under {key!r}, got {message.get(key)!r}")
        if not message["role"]:
            raise InvalidRequest(f"message {position} has an empty role; use 'system', 'user' or 'assistant'")
        conversation.append({str(key): value for key, value in message.items()})
    if not conversation:
        raise InvalidRequest("a conversation needs at least one message, got none")
    return conversation


def _refuse(message: object) -> None:
    raise InvalidRequest(f"the checkpoint's chat template refuses these messages: {message}")


def _environment() -> Any:
    """A sandbox in which whatever repeats or grows is counted against the budget."""
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.runtime import str_join
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the assistant's words for training; here it marks nothing."""

        tags = frozenset({"generation"})  # type: ignore[assignment]

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _BUDGET.get().step()
            if operator == "**":
                raise _OverBudget("it raises numbers to powers, which no template needs")
            if operator == "+":
                _BUDGET.get().grow(_size(left) + _size(right))
            elif operator == "*":
                _BUDGET.get().grow(max(_size(left) * _count(right), _size(right) * _count(left)))
            elif isinstance(left, str):
                _check_format(left)
                _BUDGET.get().grow(_size(left) + _size(right))
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            _BUDGET.get().step()
            name, subject = getattr(__obj, "__name__", ""), getattr(__obj, "__self__", None)
            if not name.startswith("metered_"):
                _BUDGET.get().grow(_growth(name, subject, args, kwargs))
            return super().call(__context, __obj, *args, **kwargs)

        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
            # Jinja's own answer is a value that complains only when it is used; who asks is refused at once.
            raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} is unsafe")

        def wrap_str_format(self, value: Any) -> Any:
            wrapped = super().wrap_str_format(value)
            if wrapped is not None:
                _check_format(str(value.__self__))
            return wrapped

        @staticmethod
        def metered_loop(items: Iterable[Any]) -> Iterator[Any]:
            for item in items:
                _BUDGET.get().step()
                yield item

        @staticmethod
        def metered_join(*parts: Any) -> str:
            _BUDGET.get().grow(sum(map(_size, parts)))
            return str_join(parts)

        @staticmethod
        def metered_value(value: Any) -> Any:
            _BUDGET.get().grow(_size(value))
            return value

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], finalize=Sandbox.metered_value
    )
    environment.filters = {name: _metered_filter(name, environment.filters[name]) for name in _FILTERS}
    environment.filters["tojson"] = _metered_filter("tojson", _to_json)
    environment.globals = {
        "namespace": environment.globals["namespace"],
        "range": environment.globals["range"],
        "dict": dict,
        "raise_exception": _refuse,
        "strftime_now": lambda pattern: datetime.now().strftime(str(pattern)[:200]),
    }
    return environment


def _metered_tree(environment: Any, source: str) -> Any:
    """The template's syntax tree with every loop, concatenation, literal container and piece of text made to report
    itself, so that nothing in it repeats or grows unseen."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def through(name: str, *arguments: Any) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)

    class Metered(NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            if node.recursive:
                raise _OverBudget("it has a recursive loop, which no template needs")
            self.generic_visit(node)
            node.iter = through("metered_loop", node.iter)
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return through("metered_join", *node.nodes)

        def visit_List(self, node: Any) -> Any:
            self.generic_visit(node)
            return through("metered_value", node)

        visit_Dict = visit_List

        def visit_Tuple(self, node: Any) -> Any:
            self.generic_visit(node)
            return through("metered_value", node) if node.ctx == "load" else node  # `for a, b in` is a tuple, too

        def visit_TemplateData(self, node: Any) -> Any:
            return through("metered_value", nodes.Const(node.data))

    tree = Metered().visit(environment.parse(source))
    return nodes.Template(tree.body, lineno=1).set_environment(environment)


# Filters that chat templates use; those that are not here can pad, wrap or draw lots.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "forceescape", "groupby",
    "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "title", "trim", "unique", "upper",
)  # fmt: skip
# String methods that pad to a width: the width is what they grow to.
_PADDING = frozenset({"center", "ljust", "rjust", "zfill"})


def _metered_filter(name: str, function: Any) -> Any:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # some filters get the context or the environment first

    @functools.wraps(function)
    def filter_(*args: Any, **kwargs: Any) -> Any:
        budget = _BUDGET.get()
        budget.step()
        before, value, rest = args[:passed], args[passed], args[passed + 1 :]
        if isinstance(value, (range, Iterator)):
            items = []
            for item in value:  # a pipeline of lazy filters: counted where it is used up
                budget.step()
                items.append(item)
            value = items
        budget.grow(_size(value) + _growth(name, value, rest, kwargs))
        return function(*before, value, *rest, **kwargs)

    return filter_


def _growth(name: str, subject: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Upper bound on the characters that a call or a filter makes out of its arguments."""
    values = (*args, *kwargs.values())
    sizes = [_size(value) for value in values]
    if name in _PADDING:
        return sum(map(_count, values))
    if name in {"indent", "expandtabs"}:
        text = subject if isinstance(subject, str) else ""
        return _size(text) + (1 + text.count("\n") + text.count("\t")) * (8 + sum(map(_count, values)) + sum(sizes))
    if name == "round" and any(_count(value) > 300 for value in values):
        raise _OverBudget("it rounds to more than 300 digits")
    if name == "replace":
        return (_size(subject) + 1) * (1 + max(sizes[1:], default=0))
    if name == "join":
        pieces = (
            subject
            if isinstance(subject, (list, tuple))
            else next((v for v in values if isinstance(v, (list, tuple))), ())
        )
        return len(pieces) * max([*sizes[:1], 1]) if pieces is subject else sum(sizes) + len(pieces) * _size(subject)
    return sum(sizes)


def _check_format(pattern: str) -> None:
    """Formatting can pad to any width; a width of four digits, or one taken from an argument, is no template's wish."""
    if re.search(r"\d{4}|\*|:[^}]*\{", pattern):
        raise _OverBudget("it formats text to a great or a computed width")


def _size(value: Any) -> int:
    """About the characters a value would take as text: containers count what they hold, as often as they hold it."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int):
        return 1 + value.bit_length() // 3
    total, stack, budget = 1, [value], _MAX_CHARACTERS // 20
    while stack:
        item = stack.pop()
        if isinstance(item, (str, bytes)):
            total += len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
        total += 1
        budget -= 1
        if budget < 0:
            raise _OverBudget("it builds lists of lists without end")
    return total


def _count(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # The sandbox's own tojson escapes for HTML, which a prompt is not.
    separators = options.get("separators")
    return json.dumps(
        value,
        ensure_ascii=bool(options.get("ensure_ascii", False)),
        indent=min(indent, 16) if isinstance(indent, int) else None,
        separators=tuple(separators) if separators else None,
        sort_keys=bool(options.get("sort_keys", False)),
    )
