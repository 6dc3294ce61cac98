"""The optimiser: Muon for the matrices between layers, Adam for embeddings and norms.

Muon (K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) replaces a matrix's momentum
by the nearest orthogonal matrix, found by a few Newton-Schulz steps. On a corpus this small it reaches a given loss
in about half of Adam's steps, and steps are what two CPU cores have few of. Written out here in float32, because
torch's own works in bfloat16, which a CPU emulates.
"""

import torch
from torch import Tensor


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """Roughly the nearest (semi-)orthogonal matrix: singular values pushed to about 1, singular vectors kept."""
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


class Optimiser:
    """Keeps the moments of every parameter, and moves the parameters in place."""

    def __init__(self, parameters: dict[str, Tensor], *, muon: float, adam: float, decay: float) -> None:
        self.parameters = parameters
        self.muon, self.adam, self.decay = muon, adam, decay
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items() if not self._hidden(name)}
        self.steps = 0

    @staticmethod
    def _hidden(name: str) -> bool:
        return name.endswith("_proj.weight")

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], scale: float) -> None:
        """One step at `scale` times the full learning rates."""
        self.steps += 1
        for name, parameter in self.parameters.items():
            gradient, first = gradients[name], self.first[name]
            if self._hidden(name):
                first.mul_(0.95).add_(gradient)
                update = orthogonalised(gradient + 0.95 * first)
                size = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                # Every update has the same size, so without a pull to zero the matrices grow until attention saturates.
                parameter.mul_(1 - self.muon * scale * self.decay)
                parameter.add_(update, alpha=-self.muon * scale * size)
            else:
                second = self.second[name]
                first.lerp_(gradient, 0.1)
                second.lerp_(gradient.square(), 0.05)
                mean, spread = first / (1 - 0.9**self.steps), second / (1 - 0.95**self.steps)
                parameter.add_(mean / (spread.sqrt() + 1e-8), alpha=-self.adam * scale)
