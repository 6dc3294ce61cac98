"""What the loop needs of whatever computes."""

from typing import Protocol, runtime_checkable

from underload.request import Request, Sequence
from underload.scheduling import Plan, StepResult


class Executor(Protocol):
    """Runs plans, one at a time, in the order in which they were made.

    max_model_len: tokens of one sequence that it can compute, prompt and output; None: as many as there is room for.

    One that only models may say that it `carries`: it knows of `Plan.carried`, and needs no work for those who decode.
    If it states durations, it may also have `repeat(sequences, most, first, now, until)`: steps in which each sequence
    decodes, the first of the size `first` (which is its to change), each with a token more in every context; `most` at
    most, only such as begin before `until`, and none after one that ends a sequence. It returns the ids drawn for each
    sequence, whether it stopped, and the instants at which the steps end; or None where it cannot say. The engine then
    takes them at once.
    """

    max_model_len: int | None

    def check(self, request: Request) -> None:
        """Refuse a request that could only fail, and take a whole step with it; changes nothing. Asked before it is
        queued.

        Raises:
            InvalidRequest: naming the value and the limit.
        """
        ...

    def execute(self, plan: Plan) -> StepResult:
        """Do what the plan says, in the order that `Plan` states.

        Reads the sequences of the plan and changes none of them. What it raises ends the step, not the engine: the plan
        is aborted, and its sequences come again in a later one; so they do where the result is refused, or the engine
        is interrupted before it is committed. So what it keeps for a sequence must follow from the sequence's tokens.
        """
        ...

    def release(self, request: Request) -> None:
        """The request is finished: forget what was kept for it. Called once, also for one that never ran."""
        ...


@runtime_checkable
class AheadExecutor(Executor, Protocol):
    """One that computes by itself while the host makes the next plan.

    A plan that is launched behind another may name a sequence whose last token that other one draws: `unseen` says
    for which sequences this is possible. The token is not among the sequence's then, and the executor takes it from
    where it drew it.
    """

    def launch(self, plan: Plan) -> None:
        """Begin a plan, behind those that were begun before. Raises as `execute` does; it was not begun then."""
        ...

    def collect(self) -> StepResult:
        """What came of the plan that was begun first, of those not collected; waits for it."""
        ...

    def forget(self, kept: int) -> None:
        """Drop all plans that were begun but the first `kept`."""
        ...

    def unseen(self, sequence: Sequence) -> bool:
        """Whether the sequence can go on from a token that was drawn and not collected yet."""
        ...
