"""Multiply matrices in Triton, as its tutorial writes it, with a choice among configurations."""
# pyright: basic, reportMissingImports=false

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
        {"tile_rows": rows, "tile_columns": columns, "tile_depth": depth, "group_size": 8},
        num_stages=stages,
        num_warps=warps,
    )
    for rows, columns, depth, stages, warps in _SIZES
]


@triton.autotune(configs=_CONFIGURATIONS, key=["m", "n", "k"])
@triton.jit
def _product(
    a, b, c, m, n, k,
    integer_sums: tl.constexpr, tile_rows: tl.constexpr,
    tile_columns: tl.constexpr, tile_depth: tl.constexpr, group_size: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    rows_of, columns_of = tl.cdiv(m, tile_rows), tl.cdiv(n, tile_columns)
    in_group = group_size * columns_of
    first = program // in_group * group_size
    size = min(rows_of - first, group_size)
    row = first + program % in_group % size
    column = program % in_group // size
    rows = (row * tile_rows + tl.arange(0, tile_rows)) % m
    columns = (column * tile_columns + tl.arange(0, tile_columns)) % n
    deep = tl.arange(0, tile_depth)
    a_places = a + rows[:, None] * k + deep[None, :]
    b_places = b + deep[:, None] * n + columns[None, :]
    sums = tl.zeros((tile_rows, tile_columns), dtype=tl.int32 if integer_sums else tl.float32)
    for step in range(tl.cdiv(k, tile_depth)):
        left = k - step * tile_depth
        left_tile = tl.load(a_places, mask=deep[None, :] < left, other=0)
        right_tile = tl.load(b_places, mask=deep[:, None] < left, other=0)
        sums = tl.dot(
            left_tile, right_tile, sums, out_dtype=tl.int32 if integer_sums else tl.float32
        )
        a_places += tile_depth
        b_places += tile_depth * n
    rows = row * tile_rows + tl.arange(0, tile_rows)
    columns = column * tile_columns + tl.arange(0, tile_columns)
    places = c + rows[:, None] * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(places, sums.to(c.dtype.element_ty), mask=inside)


def product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the product of matrices of half precision or of bytes.

    The first call compares the configurations.
    """
    (m, k), n = first.shape, second.shape[1]
    integer = first.dtype == torch.int8
    result = torch.empty((m, n), dtype=torch.int32 if integer else first.dtype, device=first.device)

    def grid(configuration: dict[str, int]) -> tuple[int]:
        return (
            triton.cdiv(m, configuration["tile_rows"])
            * triton.cdiv(n, configuration["tile_columns"]),
        )

    _product[grid](  # pyright: ignore[reportIndexIssue]
        first, second, result, m, n, k, integer_sums=integer
    )
    return result
