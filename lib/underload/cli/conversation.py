"""A conversation at the terminal, or through a pipe: one message a line."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from underload.cli.generate import Answer, chat_tokenizer, count_text
from underload.request import InvalidRequest, SamplingParams

if TYPE_CHECKING:
    from underload.decoder import Model

HELP = """\
One message a line. /reset forgets the conversation, /quit (or the end of input) leaves, Ctrl-C stops an answer.
Each message is answered from the whole conversation so far, computed again from its first token: watch TTFT grow."""


class Conversation:
    """Messages and answers, oldest first, and the loop that adds to them.

    Args:
        system: told to the model before all else.
        figures: print what each answer cost.

    Raises:
        UnderloadError: the model has no chat template.
    """

    def __init__(
        self, model: Model, params: SamplingParams, *, system: str | None = None, figures: bool = True
    ) -> None:
        self.model = model
        self.params = params
        self.figures = figures
        self.tokenizer = chat_tokenizer(model)
        self.system = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = []
        self.interactive = sys.stdin.isatty()

    def run(self, first: str | None = None) -> int:
        """Answer `first`, then line after line of standard input; 2 if some message could not be answered."""
        if self.interactive:
            self._enable_editing()
            print(f"{self.model.shape.name} is listening. {HELP}\n", file=sys.stderr)
        failed = False
        message = first if first is not None else self._read()
        while message is not None:
            match message.strip():
                case "":
                    pass
                case "/quit" | "/exit":
                    break
                case "/help":
                    print(HELP, file=sys.stderr)
                case "/reset":
                    self.messages.clear()
                    print("The conversation is forgotten.", file=sys.stderr)
                case text:
                    failed |= not self.say(text)
            message = self._read()
        return 2 if failed else 0

    def say(self, text: str) -> bool:
        """Answer one message, and keep both. A message that cannot be answered is not kept; whether it was answered."""
        self.messages.append({"role": "user", "content": text})
        try:
            prompt = self._prompt()
            # Some templates end in a space that the first word then brings along.
            answer = Answer(self.model, prompt, self.params, show=True, lead=" ", interruptible=True)
        except InvalidRequest as error:
            self.messages.pop()
            print(f"underload: {error}", file=sys.stderr)
            return False
        print(flush=True)
        if answer.error is not None:
            self.messages.pop()
            print(f"underload: {answer.error}", file=sys.stderr)
            return False
        if self.figures:
            if answer.interrupted:
                print("\n(stopped)", file=sys.stderr)
            answer.print_figures()
            print(file=sys.stderr)
        # What was said was said: also half an answer is part of what the model is asked to go on from.
        self.messages.append({"role": "assistant", "content": answer.text})
        return True

    def _prompt(self) -> str:
        """The conversation as text; when it has outgrown the context, its oldest exchange is forgotten first."""
        # Room for a proper answer, not just for one token; but never more than half of a small context.
        room = min(self.params.max_tokens, self.model.shape.max_positions // 2)
        forgotten = 0
        while True:
            prompt: str = self.tokenizer.apply_chat_template([*self.system, *self.messages])
            if len(self.messages) <= 1 or len(self.tokenizer.encode(prompt)) + room <= self.model.shape.max_positions:
                break
            del self.messages[:2]
            forgotten += 1
        if forgotten:
            print(
                f"(the context of {self.model.shape.max_positions:,} tokens is full: "
                f"the oldest {count_text(forgotten, 'exchange')} forgotten)",
                file=sys.stderr,
            )
        return prompt

    def _read(self) -> str | None:
        """The next line, or None at the end of input."""
        try:
            if self.interactive:
                return input("> ")
            line = sys.stdin.readline()
        except EOFError:
            line = ""
        except KeyboardInterrupt:  # at the prompt there is no answer to stop
            line = ""
        except UnicodeDecodeError as error:
            print(f"underload: that line is not text in {error.encoding}", file=sys.stderr)
            return ""
        if not line:
            if self.interactive:
                print(file=sys.stderr)
            return None
        return line

    @staticmethod
    def _enable_editing() -> None:
        with contextlib.suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401  (importing it gives input() its line editing and history)
