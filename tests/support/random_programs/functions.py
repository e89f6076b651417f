"""The functions of random programs, of csrun and of PyTorch."""

from support.random_programs.program import CLASSES

from csrun import nn


class Ours:
    """Functions for csrun."""

    relu, gelu, tanh, sigmoid, silu = map(
        staticmethod, (nn.relu, nn.gelu, nn.tanh, nn.sigmoid, nn.silu)
    )
    softplus, softmax = map(staticmethod, (nn.softplus, nn.softmax))
    maximum, minimum = map(staticmethod, (nn.maximum, nn.minimum))

    def embedding(self, tokens, number):
        return nn.Embedding(CLASSES, 4, name=f"table_{number}")(tokens)

    def dense(self, x, units, number):
        return nn.Dense(units, name=f"dense_{number}")(x)

    def norm(self, x, number):
        return nn.LayerNorm(name=f"norm_{number}")(x)

    def shift(self, x, number):
        return nn.Bias(name=f"bias_{number}")(x)

    def attend(self, x, causal):
        heads = x[:, None]
        return nn.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)[:, 0]

    def rotate(self, x, size, interleaved):
        return nn.rotary_embedding(x, size, interleaved=interleaved)

    def dropout(self, x, rate, number):
        return nn.Dropout(rate, name=f"dropout_{number}")(nn.softplus(x))

    def image(self, x):
        return x[:, None]

    def convolution(self, x, filters, size, stride, padding, dilation, groups, number):
        layer = nn.Conv2D(
            filters, size, stride, padding, dilation, groups, name=f"convolution_{number}"
        )
        return layer(x)

    def max_pool(self, x, size, stride, padding, dilation):
        return nn.MaxPool(size, stride, padding, dilation)(x)

    def average_pool(self, x, size, stride, padding, count_include_pad):
        return nn.AveragePool(size, stride, padding, count_include_pad)(x)

    def batch_norm(self, x, number):
        return nn.BatchNorm(name=f"batch_norm_{number}")(x)

    def gather(self, x, axis, labels):
        last = x.shape[axis] - 1
        numbers = nn.where(labels < last, labels, last)
        return nn.gather(x, numbers[:, :, None] if len(x.shape) == 3 else numbers, axis)

    def amax(self, x, axis, keep):
        return nn.amax(x, axis, keep)

    def amin(self, x, axis, keep):
        return nn.amin(x, axis, keep)

    def max(self, x, axis, keep):
        return nn.max(x, axis, keep)

    def min(self, x, axis, keep):
        return nn.min(x, axis, keep)

    def reshape(self, x, tail):
        return nn.reshape(x, (x.shape[0], *tail))

    def transpose(self, x, axes):
        return nn.transpose(x, axes)

    def concatenate(self, x, y):
        return nn.concatenate([x, y], -1)

    def sum(self, x, axis, keep):
        return nn.sum(x, axis, keep)

    def mean(self, x, axis, keep):
        return nn.mean(x, axis, keep)

    def where(self, x, y):
        return nn.where(x > 0.1234, x * y, y)

    def cross_entropy(self, x, number, labels):
        return nn.softmax_cross_entropy(nn.Dense(CLASSES, name=f"head_{number}")(x), labels)

    def mean_of_all(self, x):
        return nn.mean(x, range(len(x.shape))) if x.shape else x

    def exp(self, x):
        return nn.exp(nn.tanh(x))

    def log(self, x):
        return nn.log(x * x + 1.0)

    def sqrt(self, x):
        return nn.sqrt(x * x + 0.5)

    def add(self, x, y):
        return x + y

    def sub(self, x, y):
        return x - y

    def mul(self, x, y):
        return x * y

    def div(self, x, y):
        return x / (y * y + 1.0)

    def product(self, x):
        return x @ nn.transpose(x, (0, 2, 1))

    def part(self, x, start, step):
        return x[..., start::step]


class Theirs(Ours):
    """The same for PyTorch, over parameters by csrun's names.

    masks: what each dropout multiplies by, by the number of its value
    """

    def __init__(self, torch, parameters) -> None:
        self.torch, self.functional = torch, torch.nn.functional
        self.tensors = {
            n: torch.tensor(v, requires_grad="/running_" not in n) for n, v in parameters.items()
        }
        self.masks = {}
        self.relu, self.tanh, self.sigmoid = torch.relu, torch.tanh, torch.sigmoid
        self.gelu, self.silu = self.functional.gelu, self.functional.silu
        self.softplus, self.maximum, self.minimum = (
            self.functional.softplus,
            torch.maximum,
            torch.minimum,
        )

    def softmax(self, x):
        return x.softmax(-1)

    def embedding(self, tokens, number):
        return self.tensors[f"table_{number}/embeddings"][tokens.long()]

    def dense(self, x, units, number, name="dense"):
        kernel, bias = (self.tensors[f"{name}_{number}/{what}"] for what in ("kernel", "bias"))
        return x @ kernel + bias

    def norm(self, x, number):
        gamma, beta = (self.tensors[f"norm_{number}/{what}"] for what in ("gamma", "beta"))
        return self.functional.layer_norm(x, x.shape[-1:], gamma, beta, 1e-5)

    def shift(self, x, number):
        return x + self.tensors[f"bias_{number}/bias"]

    def attend(self, x, causal):
        heads = x[:, None]
        return self.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)[
            :, 0
        ]

    def rotate(self, x, size, interleaved):
        """Each pair as a complex number, times that of its angle."""
        torch, turning = self.torch, x[..., :size]
        pairs = turning.unflatten(-1, (-1, 2) if interleaved else (2, -1))
        pairs = pairs if interleaved else pairs.transpose(-1, -2)
        rates = 10000.0 ** (-torch.arange(0, size, 2).double() / size)
        angles = torch.outer(torch.arange(x.shape[-2]).double(), rates)
        turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        )
        back = torch.view_as_real(turned)
        back = back if interleaved else back.transpose(-1, -2)
        return torch.cat([back.flatten(-2), x[..., size:]], -1)

    def dropout(self, x, rate, number):
        return self.functional.softplus(x) * self.masks[number]

    def convolution(self, x, filters, size, stride, padding, dilation, groups, number):
        kernel, bias = (self.tensors[f"convolution_{number}/{what}"] for what in ("kernel", "bias"))
        return self.functional.conv2d(x, kernel, bias, stride, padding, dilation, groups)

    def max_pool(self, x, size, stride, padding, dilation):
        return self.functional.max_pool2d(x, size, stride, padding, dilation)

    def average_pool(self, x, size, stride, padding, count_include_pad):
        return self.functional.avg_pool2d(
            x, size, stride, padding, count_include_pad=count_include_pad
        )

    def batch_norm(self, x, number):
        kinds = ("running_mean", "running_var", "gamma", "beta")
        state = [self.tensors[f"batch_norm_{number}/{kind}"] for kind in kinds]
        return self.functional.batch_norm(x, *state, training=True)

    def gather(self, x, axis, labels):
        numbers = labels.long().clamp(0, x.shape[axis] - 1)
        return x.gather(axis, numbers[:, :, None] if x.ndim == 3 else numbers)

    def amax(self, x, axis, keep):
        return x.amax(axis, keep)

    def amin(self, x, axis, keep):
        return x.amin(axis, keep)

    def max(self, x, axis, keep):
        return x.max(axis, keep).values

    def min(self, x, axis, keep):
        return x.min(axis, keep).values

    def reshape(self, x, tail):
        return x.reshape(x.shape[0], *tail)

    def transpose(self, x, axes):
        return x.permute(axes)

    def concatenate(self, x, y):
        return self.torch.cat([x, y], -1)

    def sum(self, x, axis, keep):
        return x.sum(axis, keep)

    def mean(self, x, axis, keep):
        return x.mean(axis, keep)

    def where(self, x, y):
        return self.torch.where(x > 0.1234, x * y, y)

    def cross_entropy(self, x, number, labels):
        logits = self.dense(x, CLASSES, number, "head").flatten(0, 1)
        return self.functional.cross_entropy(logits, labels.flatten().long(), ignore_index=-100)

    def mean_of_all(self, x):
        return x.mean() if x.ndim else x

    def exp(self, x):
        return x.tanh().exp()

    def log(self, x):
        return (x * x + 1.0).log()

    def sqrt(self, x):
        return (x * x + 0.5).sqrt()

    def product(self, x):
        return x @ x.permute(0, 2, 1)
