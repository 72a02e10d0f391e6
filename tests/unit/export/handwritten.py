"""Kernels written in C, called as compiled ones are, and a program that they make."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from cpembed.export.library import compiler
from cpembed.export.program import Buffer, Call, CompiledObject, Program, Role

_DECLARED = """
#include <stdint.h>
#include <string.h>
typedef struct { int32_t kind, zero; void *value; } Any;
typedef struct { void *data; int32_t type, id, rank; uint8_t code, bits; uint16_t lanes;
                 int64_t *shape, *strides; uint64_t offset; } Tensor;
typedef struct { void *sync; int32_t tasks; } Group;
int TVMBackendParallelLaunch(int (*)(int, Group *, void *), void *, int);
int TVMBackendParallelBarrier(int, Group *);
void *TVMBackendAllocWorkspace(int, int, uint64_t, int, int);
int TVMBackendFreeWorkspace(int, int, void *);
void TVMFFIErrorSetRaisedFromCStrParts(const char *, const char **, int32_t);
#define TENSOR(k) ((Tensor *)arguments[k].value)
#define KERNEL(name) int __tvm_ffi_##name(void *self, const Any *arguments, int32_t count, Any *out)
#define UNUSED (void)self, (void)count, (void)out, (void)arguments
"""

ADD = """
/* target[k] = a[k] + b[k], all int32, in parallel; each task takes memory to work in. */
static int task(int number, Group *group, void *data) {
  const Any *arguments = *(const Any **)data;
  int64_t size = TENSOR(2)->shape[0];
  int64_t first = size * number / group->tasks, end = size * (number + 1) / group->tasks;
  int32_t *copy = TVMBackendAllocWorkspace(1, 0, (uint64_t)(end - first) * 4 + 4, 0, 32);
  if (copy == 0 || (uintptr_t)copy % 64) return -1;
  memcpy(copy, (int32_t *)TENSOR(0)->data + first, (size_t)(end - first) * 4);
  for (int64_t k = first; k < end; k++)
    ((int32_t *)TENSOR(2)->data)[k] = copy[k - first] + ((int32_t *)TENSOR(1)->data)[k];
  return TVMBackendFreeWorkspace(1, 0, copy);
}
KERNEL(add) {
  UNUSED;
  const char *parts[] = {"three tensors of one size", " are taken"};
  if (count != 3 || TENSOR(0)->shape[0] != TENSOR(1)->shape[0]) {
    TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 2);
    return -1;
  }
  return TVMBackendParallelLaunch(task, &arguments, 0);
}
"""

NEGATE = """
/* target[k] = -source[k], by a loop inside a loop. */
static int inner(int number, Group *group, void *data) {
  const Any *arguments = *(const Any **)data;
  int64_t size = TENSOR(1)->shape[0];
  int64_t first = size * number / group->tasks, end = size * (number + 1) / group->tasks;
  for (int64_t k = first; k < end; k++)
    ((int32_t *)TENSOR(1)->data)[k] = -((int32_t *)TENSOR(0)->data)[k];
  return 0;
}
static int outer(int number, Group *group, void *data) {
  (void)group;
  return number == 0 ? TVMBackendParallelLaunch(inner, data, 5) : 0;
}
KERNEL(negate) {
  UNUSED;
  return TVMBackendParallelLaunch(outer, &arguments, 0);
}
"""

MEET = """
/* target[0] = the sum of all numbers of tasks, times their number: all write, meet, and read. */
static int32_t seen[64];
static int task(int number, Group *group, void *data) {
  const Any *arguments = *(const Any **)data;
  seen[number] = number + 1;
  for (int turn = 0; turn < 3; turn++)
    if (group->tasks > 1 && TVMBackendParallelBarrier(number, group) != 0) return -1;
  int32_t sum = 0;
  for (int32_t k = 0; k < group->tasks; k++) sum += seen[k];
  ((int32_t *)TENSOR(0)->data)[number] = sum;
  return 0;
}
KERNEL(meet) {
  UNUSED;
  return TVMBackendParallelLaunch(task, &arguments, 0);
}
"""

FAIL = """
static int task(int number, Group *group, void *data) {
  (void)data;
  return number == group->tasks - 1 ? -1 : 0;
}
KERNEL(fail) {
  UNUSED;
  return TVMBackendParallelLaunch(task, 0, 0);
}
"""

NOTHING = "KERNEL(nothing) { UNUSED; return 0; }"


@cache
def compiled(text: str, symbol: str, *options: str) -> CompiledObject:
    """The object file of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.c").write_text(_DECLARED + text)
        command = [*compiler(), "-c", "-fPIC", "-O1", "-Wall", *options, "kernel.c"]
        subprocess.run(command, cwd=folder, check=True)
        return CompiledObject(symbol, (Path(folder) / "kernel.o").read_bytes())


SIZE = 1000


def sums(name: str = "sums", *options: str, known: bool = False, size: int = SIZE) -> Program:
    """``y = -(x + 2 * w + border)``, w weights that are packed as ``2 * w``; ``known``: those are
    the numbers from 0 on."""
    kernels = {
        "add": compiled(ADD, "add", *options),
        "negate": compiled(NEGATE, "negate", *options),
    }
    weights = Buffer("w", "int32", size, Role.WEIGHTS, (size,))
    if known:
        data = np.arange(size, dtype=np.int32)
        weights = Buffer("w", "int32", size, Role.CONSTANT, data=data)
    buffers = (
        Buffer("x", "int32", size, Role.INPUT, (size // 10, 10)),
        weights,
        Buffer("twice", "int32", size, Role.PACKED),
        Buffer("border", "int32", size, Role.WORKSPACE, fill=-7),
        Buffer("sum", "int32", size, Role.WORKSPACE),
        Buffer("bordered", "int32", size, Role.WORKSPACE),
        Buffer("y", "int32", size, Role.OUTPUT, (size,)),
    )
    return Program(
        name,
        buffers,
        kernels,
        (Call("add", ("w", "w", "twice"), "pack"),),
        (
            Call("add", ("x", "twice", "sum"), "first sum"),
            Call("add", ("sum", "border", "bordered"), 'the "second"\\'),
            Call("negate", ("bordered", "y")),
        ),
    )
