"""Optimizers that PyTorch lacks, by their papers' formulas, in torch.optim's manner."""

import torch


class Lamb:
    """You et al. 2020, algorithm 2, with the identity for phi."""

    def __init__(self, tensors, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, correct=True):
        self.tensors, self.lr, self.betas, self.eps = tensors, lr, betas, eps
        self.weight_decay, self.correct, self.t = weight_decay, correct, 0
        self.m = [torch.zeros_like(x) for x in tensors]
        self.v = [torch.zeros_like(x) for x in tensors]

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for x, m, v in zip(self.tensors, self.m, self.v, strict=True):
            m[...] = b1 * m + (1 - b1) * x.grad
            v[...] = b2 * v + (1 - b2) * x.grad**2
            m_hat = m / (1 - b1**self.t) if self.correct else m
            v_hat = v / (1 - b2**self.t) if self.correct else v
            u = m_hat / (v_hat.sqrt() + self.eps) + self.weight_decay * x
            ratio = x.norm() / u.norm() if x.norm() > 0 and u.norm() > 0 else 1.0
            x -= self.lr * ratio * u

    def zero_grad(self):
        for x in self.tensors:
            x.grad = None


class TensorFlowAdam(Lamb):
    """Kingma and Ba 2015, the end of section 2: epsilon hat; or without bias correction.

    correcting: betas of the bias correction; keras.optimizers.Adam casts them to float32.
    """

    def __init__(
        self,
        tensors,
        lr,
        betas=(0.9, 0.999),
        epsilon=1e-7,
        bias_correction=True,
        correcting=None,
    ):
        super().__init__(tensors, lr, betas, epsilon, 0.0, bias_correction)
        self.correcting = correcting or betas

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        rate = self.lr
        if self.correct:
            c1, c2 = self.correcting
            rate *= (1 - c2**self.t) ** 0.5 / (1 - c1**self.t)
        for x, m, v in zip(self.tensors, self.m, self.v, strict=True):
            m[...] = b1 * m + (1 - b1) * x.grad
            v[...] = b2 * v + (1 - b2) * x.grad**2
            x -= rate * m / (v.sqrt() + self.eps)
