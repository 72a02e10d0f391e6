"""A matrix product in Triton, as its tutorial writes it, with a choice among configurations."""

import torch
import triton
import triton.language as tl

_SIZES = (
    (128, 256, 64, 3, 8),
    (128, 128, 64, 4, 4),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (32, 64, 64, 5, 2),
    (16, 64, 128, 5, 2),
)

_CONFIGURATIONS = [
    triton.Config(
        {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "GROUP": 8},
        num_stages=stages,
        num_warps=warps,
    )
    for rows, columns, depth, stages, warps in _SIZES
]


@triton.autotune(configs=_CONFIGURATIONS, key=["m", "n", "k"])
@triton.jit
def _product(
    a, b, c, m, n, k,
    INTEGER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    rows_of, columns_of = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    in_group = GROUP * columns_of
    first = program // in_group * GROUP
    size = min(rows_of - first, GROUP)
    row = first + program % in_group % size
    column = program % in_group // size
    rows = (row * ROWS + tl.arange(0, ROWS)) % m
    columns = (column * COLUMNS + tl.arange(0, COLUMNS)) % n
    deep = tl.arange(0, DEPTH)
    a_places = a + rows[:, None] * k + deep[None, :]
    b_places = b + deep[:, None] * n + columns[None, :]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.int32 if INTEGER else tl.float32)
    for step in range(tl.cdiv(k, DEPTH)):
        left = k - step * DEPTH
        one = tl.load(a_places, mask=deep[None, :] < left, other=0)
        two = tl.load(b_places, mask=deep[:, None] < left, other=0)
        sums = tl.dot(one, two, sums, out_dtype=tl.int32 if INTEGER else tl.float32)
        a_places += DEPTH
        b_places += DEPTH * n
    rows = row * ROWS + tl.arange(0, ROWS)
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    places = c + rows[:, None] * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(places, sums.to(c.dtype.element_ty), mask=inside)


def product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of half precision or of bytes; the first call compares the configurations."""
    (m, k), n = first.shape, second.shape[1]
    integer = first.dtype == torch.int8
    result = torch.empty((m, n), dtype=torch.int32 if integer else first.dtype, device=first.device)

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, chosen["ROWS"]) * triton.cdiv(n, chosen["COLUMNS"]),)

    _product[grid](first, second, result, m, n, k, INTEGER=integer)
    return result
