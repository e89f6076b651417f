"""Factorizations, solutions and functions of small matrices."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from support.torch_rows import check_near, row, step  # noqa: E402
from torch import distributions, linalg, nn  # noqa: E402
from torch.nn.utils.parametrizations import orthogonal  # noqa: E402


def positive(x):
    """Symmetric positive definite matrices."""
    return x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype)


def invertible(x):
    return x + 3 * torch.eye(x.shape[-1], dtype=x.dtype)


def product_of(p, lower, upper):
    return p @ lower.square() @ upper


def lower(x):
    return invertible(x).tril()


def normal(x, **shape):
    """Log-probabilities of rows."""
    return distributions.MultivariateNormal(x * 0.1, validate_args=False, **shape).log_prob(x)


ROWS = {
    "cholesky": row(lambda x: linalg.cholesky(positive(x)), 3, 2),
    "cholesky_upper": row(lambda x: linalg.cholesky(positive(x), upper=True), 3, 4),
    "cholesky_solve": row(lambda x: torch.cholesky_solve(x, lower(x[:, :, :3])), 3, 4),
    "inv": row(lambda x: linalg.inv(invertible(x)), 3, 3),
    "solve": row(lambda x: linalg.solve(invertible(x[..., :3]), x), 3, 5),
    "solve_of_one_matrix": row(lambda x: linalg.solve(invertible(x), x[0]), 3, 3),
    "solve_of_a_batch_of_one": row(lambda x: linalg.solve(invertible(x[:1]), x[0]) + x, 3, 3),
    "pinv_of_a_triangle": row(lambda x: linalg.pinv(invertible(x), hermitian=True), 3, 3),
    "solve_of_vectors": row(lambda x: linalg.solve(invertible(x), x[:, 0]), 3, 3),
    "solve_from_the_right": row(lambda x: linalg.solve(invertible(x), x[:, :2], left=False), 3, 3),
    "solve_triangular": row(
        lambda x: linalg.solve_triangular(lower(x[0]), x.mT, upper=False), 3, 3
    ),
    "solve_triangular_ones": row(
        lambda x: linalg.solve_triangular(x.triu(), x, upper=True, left=False, unitriangular=True),
        3, 3,
    ),
    "det": row(lambda x: linalg.det(x), 3, 3),
    "det_of_one": row(lambda x: x * linalg.det(x), 4),
    "slogdet": row(lambda x: linalg.slogdet(x)[1] * linalg.slogdet(x)[0], 4, 4),
    "logdet": row(lambda x: torch.logdet(positive(x)), 3, 3),
    "lu": row(lambda x: product_of(*linalg.lu(x)), 4, 3),
    "lu_unpack": row(lambda x: torch.lu_unpack(*linalg.lu_factor(invertible(x)))[1], 3, 3),
    "lstsq": row(lambda x: linalg.lstsq(x[..., :2], x[..., 2:], driver="gels")[1], 4, 5),
    "lstsq_of_least_norm": row(lambda x: linalg.lstsq(x, x[..., 0]).solution, 3, 4),
    "qr": row(lambda x: linalg.qr(x)[0] @ linalg.qr(x)[1].triu(1), 3, 3),
    "eigh": row(lambda x: linalg.eigvalsh(positive(x)), 3, 5),
    "eigenvectors": row(lambda x: linalg.eigh(positive(x))[1].square(), 3, 5),
    "svd": row(lambda x: linalg.svdvals(x), 3, 4),
    "singular_vectors": row(lambda x: linalg.svd(x, full_matrices=False)[0].square(), 4, 3),
    "pinv": row(lambda x: linalg.pinv(x), 3, 2),
    "matrix_exp": row(lambda x: torch.matrix_exp(x), 3, 3),
    "matrix_power": row(lambda x: linalg.matrix_power(invertible(x), -2), 3, 3),
    "norm": row(lambda x: linalg.matrix_norm(x, "nuc") + linalg.matrix_norm(x, 2), 3, 4),
    "normal_of_a_triangle": row(lambda x: normal(x[:, 0], scale_tril=lower(x)), 3, 3),
    "normal_of_a_covariance": row(lambda x: normal(x[:, 0], covariance_matrix=positive(x)), 3, 3),
    "normal_of_a_precision": row(lambda x: normal(x[:, 0], precision_matrix=positive(x)), 3, 3),
}  # fmt: skip


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(ROWS, tmp_path)


@pytest.mark.parametrize("form", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_are_pytorchs(tmp_path, form):
    torch.manual_seed(0)
    layers = [orthogonal(nn.Linear(*sizes), orthogonal_map=form) for sizes in ((5, 3), (3, 5))]
    model = nn.Sequential(*layers).double()
    Beside(model, (torch.randn(4, 5).double(),), step, tmp_path).check(1e-12, 1e-10)


def test_a_matrix_that_is_not_positive_definite_gives_nan(tmp_path):
    class Of(nn.Linear):
        def forward(self, x):
            h = super().forward(x).reshape(-1, 3, 3)
            found, info = linalg.cholesky_ex(h.detach() * 0.1 + shift)
            return h * torch.where(info[:, None, None] == 0, found, info[:, None, None])

    torch.manual_seed(0)
    shift = 2 * torch.stack([torch.eye(3), -torch.eye(3)]).double()
    model, batch = Of(9, 9).double(), (torch.randn(2, 9).double(),)
    with torch.no_grad():
        assert torch.equal(model(*batch)[1], nn.Linear.forward(model, *batch)[1].view(3, 3))
    Beside(model, batch, step, tmp_path).check(1e-12, 1e-11)
