"""The runtime under thread and memory checkers, driven by a C program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cpembed.export.library import compiler, write_library
from tests.unit.export.handwritten import sums
from tests.unit.export.test_sized import sized

pytestmark = pytest.mark.slow

DRIVER = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "sums.h"

enum { SIZE = 1000 };

static void *work(void *argument) {
  int number = *(int *)argument;
  int32_t *x = malloc(4 * SIZE), *w = malloc(4 * SIZE), *y = malloc(4 * SIZE);
  sums_handle *handle;
  if (sums_open(1 + number, NULL, &handle) != CPEMBED_OK) exit(2);
  for (int k = 0; k < SIZE; k++) x[k] = k, w[k] = number;
  const void *weights[] = {w}, *inputs[] = {x};
  void *outputs[] = {y};
  if (sums_pack(handle, weights) != CPEMBED_OK) exit(3);
  for (int call = 0; call < RUNS; call++) {
    if (sums_run(handle, inputs, outputs, NULL) != CPEMBED_OK) exit(4);
    for (int k = 0; k < SIZE; k++)
      if (y[k] != -(k + 2 * number - 7)) exit(5);
    struct timespec nap = {0, 200000};
    if (call % 8 == 0) nanosleep(&nap, NULL); /* long enough for threads to fall asleep */
  }
  sums_close(handle);
  free(x), free(w), free(y);
  return NULL;
}

int main(void) {
  pthread_t threads[3];
  int numbers[3] = {0, 1, 2};
  for (int k = 0; k < 3; k++) pthread_create(&threads[k], NULL, work, &numbers[k]);
  for (int k = 0; k < 3; k++) pthread_join(threads[k], NULL);
  sums_close(NULL);
  sums_handle *handle;
  if (sums_open(1, NULL, &handle) != CPEMBED_OK) return 6;
  if (sums_run(handle, NULL, NULL, NULL) != CPEMBED_NOT_PACKED) return 7;
  if (sums_pack(handle, NULL) != CPEMBED_BAD_ARGUMENT) return 8;
  if (sums_open(1, NULL, NULL) != CPEMBED_BAD_ARGUMENT) return 9;
  sums_close(handle);
  printf("done\n");
  return 0;
}
"""


SIZED_DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "sized.h"

/* Every size of the ranges, in memory of just these sizes that begins anywhere. */
int main(void) {
  sized_handle *handle;
  if (sized_open(2, NULL, &handle) != CPEMBED_OK) return 2;
  for (int64_t rows = 20; rows > 0; rows--)
    for (int64_t columns = 1; columns <= 12; columns++) {
      int64_t sizes[] = {rows, columns}, count = rows * (2 * columns + 1);
      int32_t *x = malloc(4 * (size_t)count), *y = malloc(4 * (size_t)count);
      for (int64_t k = 0; k < count; k++) x[k] = (int32_t)k;
      const void *inputs[] = {x};
      void *outputs[] = {y};
      if (sized_resize(handle, sizes) != CPEMBED_OK) return 3;
      if (sized_run(handle, inputs, outputs, NULL) != CPEMBED_OK) return 4;
      for (int64_t k = 0; k < count; k++)
        if (y[k] != 2 * k) return 5;
      free(x), free(y);
    }
  int64_t beyond[] = {1, 13};
  if (sized_resize(handle, beyond) != CPEMBED_SIZE_OUT_OF_RANGE) return 6;
  sized_close(handle);
  printf("done\n");
  return 0;
}
"""


def built(folder: Path, runs: int, *options: str) -> Path:
    """The driver's executable."""
    write_library(sums("sums", *options), folder, options=("-O1", "-g", *options))
    (folder / "driver.c").write_text(DRIVER)
    flags = ["-O1", "-g", "-Wall", f"-DRUNS={runs}", *options, "-pthread", "-Wl,-rpath,$ORIGIN"]
    command = [*compiler(), "driver.c", "-o", "driver", *flags, "-L.", "-lsums"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "driver"


def test_memory_of_just_the_sizes_is_enough(tmp_path: Path) -> None:
    flags = sanitizer(tmp_path, "address,undefined"), "-Wl,-z,undefs"
    write_library(sized(), tmp_path, options=("-O1", "-g", *flags))
    (tmp_path / "driver.c").write_text(SIZED_DRIVER)
    command = [*compiler(), "driver.c", "-o", "driver", "-g", *flags, "-Wl,-rpath,$ORIGIN", "-L."]
    subprocess.run([*command, "-lsized"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "driver"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def sanitizer(tmp_path: Path, checker: str) -> str:
    """The compiler's option, where it works."""
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    flag = f"-fsanitize={checker}"
    command = [*compiler(), flag, str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"the C compiler has no {flag}")
    if subprocess.run([tmp_path / "probe"], capture_output=True, check=False).returncode:
        pytest.skip(f"{flag} does not run here")
    return flag


@pytest.mark.parametrize("checker", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path: Path, checker: str) -> None:
    driver = built(tmp_path, 300, sanitizer(tmp_path, checker), "-Wl,-z,undefs")
    done = subprocess.run([driver], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_valgrind_finds_nothing(tmp_path: Path) -> None:
    """Neither a wrong access nor a byte that is never freed."""
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    driver = built(tmp_path, 20)
    command = ["valgrind", "-q", "--error-exitcode=1", "--leak-check=full", str(driver)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
