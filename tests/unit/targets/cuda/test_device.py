"""Every device function compiles for each architecture, to the instruction that it is there for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cpembed.errors import InvariantError
from cpembed.targets.cuda import device
from cpembed.targets.cuda.instructions import INSTRUCTIONS, SHORT, TensorCoreInstruction
from tests.unit.targets.cuda.machine_code import opcodes

ARCHITECTURES = (
    *("sm_80", "sm_120"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("sm_89", "sm_90")),
)

Compiled = tuple[str, Path, str]
"""An architecture, the cubin, and what ptxas reports."""

BY_PRODUCT = {i.mma_function: i for i in INSTRUCTIONS}


def available(architecture: str) -> tuple[str, ...]:
    """The functions whose instructions a GPU of the architecture has."""
    least = {name: i.architecture for name, i in BY_PRODUCT.items()}
    number = int(architecture.removeprefix("sm_"))
    return tuple(name for name in device.names() if least.get(name, 80) <= number)


def kernel(name: str) -> str:
    """A kernel that calls one function on arrays of registers, shared and global memory, each lane
    with addresses of its own."""
    if name.startswith("cpembed_cp_async_commit") or "_wait_" in name:
        body = f"{name}();"
    elif "_cp_async_" in name:
        body = f"{name}(shared + t * 16, in + t * 16, in[4096 + t] & 1);"
    elif "shared_load" in name:
        body = f"{name}(r, shared + t * 16);" + keep("r", 4)
    elif "shared_store" in name:
        body = fill("r", 4) + f"{name}(shared + t * 16, r);"
    elif "wmma_load" in name:
        body = f"unsigned f[8] = {{}}; {name}(f, shared, 16);" + keep("f", 8)
    elif "wmma_store" in name:
        body = fill("r", 8) + f"{name}(shared, r, 32);"
    elif name.startswith("cpembed_load"):
        body = f"{name}(r, in + t * 16, in[4096 + t] & 1);" + keep("r", 4)
    elif name.startswith("cpembed_store"):
        body = fill("r", 4) + f"{name}(out + t * 16, r, in[4096 + t] & 1);"
    elif name == "cpembed_reserve":
        body = f"{name}(shared);"
    elif name in ("cpembed_opaque", "cpembed_exp2"):
        body = fill("r", 4) + f"{name}(r);" + keep("r", 4)
    elif name == "cpembed_pack_bfloat16":
        first, second = (f"reinterpret_cast<const float*>(in)[t + {n}]" for n in (0, 32))
        body = f"{name}(r, {first}, {second});" + keep("r", 1)
    elif "ldmatrix" in name:
        body = f"{name}(r, shared + t * 16);" + keep("r", 4)
    else:
        body = fill("a", 8) + fill("b", 8) + fill("r", 8) + f"{name}(r, a, b);" + keep("r", 8)
    return f"""
extern "C" __global__ void k_{name}(const unsigned char* in, unsigned char* out) {{
  extern __shared__ __align__(128) unsigned char shared[];
  const int t = threadIdx.x;
  __align__(16) unsigned r[8] = {{}};
  __align__(16) unsigned a[8] = {{}};
  __align__(16) unsigned b[8] = {{}};
  for (int i = 0; i < 64; ++i) shared[t * 64 + i] = in[t * 64 + i];
  __syncthreads();
  {body}
  __syncthreads();
  for (int i = 0; i < 64; ++i) out[8192 + t * 64 + i] = shared[t * 64 + i] ^ (a[0] + b[0]);
}}
"""


def fill(array: str, count: int) -> str:
    """Without addresses of the array, so that the compiler may keep it in registers."""
    words = f"reinterpret_cast<const unsigned*>(in)[{ord(array)} + t * {count} + %d]"
    return "".join(f"{array}[{i}] = {words % i};" for i in range(count))


def keep(array: str, count: int) -> str:
    words = f"reinterpret_cast<unsigned*>(out)[t * {count} + %d]"
    return "".join(f"{words % i} = {array}[{i}];" for i in range(count))


def source(architecture: str) -> str:
    names = available(architecture)
    return "".join(device.function(name) for name in names) + "".join(map(kernel, names))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, str]:
    """The architecture, the cubin, and what ptxas reports."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    folder = tmp_path_factory.mktemp(request.param)
    text = folder / "device.cu"
    text.write_text(source(request.param))
    cubin = folder / "device.cubin"
    options = ["-cubin", f"-arch={request.param}", "-Xptxas", "-v", "-o", str(cubin), str(text)]
    done = subprocess.run(["nvcc", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return request.param, cubin, done.stderr


def test_an_unknown_function_is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantError, match="no device function is called cpembed_nothing"):
        device.function("cpembed_nothing")


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_a_product_names_its_registers_in_the_order_of_ptx(
    instruction: TensorCoreInstruction,
) -> None:
    """Results, first factor, second factor, and what is added to: the results themselves."""
    text = device.function(instruction.mma_function)
    operands = "".join(re.findall(r"\((\w)\)\[\d+\]", text))
    first, second, sums = instruction.registers
    assert operands == "c" * sums + "a" * first + "b" * second
    numbers = [int(number) for number in re.findall(r"%(\d+)", text)]
    assert numbers == [*range(sums + first + second), *range(sums)]


@pytest.mark.parametrize("name", device.names())
def test_compilers_may_not_move_accesses_of_memory(name: str) -> None:
    """Emulation does not see what a compiler could do without these words."""
    for statement in re.findall(r"asm[^;]*\(.*\);", device.function(name)):
        ptx = re.findall(r'"([^"]*)"', statement)[0]
        # A function of registers alone may move.
        is_pure = ptx.startswith(("ex2.", "cvt."))
        assert is_pure or statement.startswith("asm volatile("), statement
        # Addresses are in brackets; commits and waits order the copies.
        if "[" in ptx or ptx.startswith("cp.async"):
            assert statement.endswith('"memory");'), statement


def test_all_functions_compile_without_local_memory(compiled: Compiled) -> None:
    architecture, _, report = compiled
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    assert len(frames) == len(available(architecture))
    assert set(frames) == {("0", "0")}


def functions(cubin: Path) -> dict[str, list[str]]:
    """Opcodes by function: the kernel that calls one is named after it."""
    return {name.removeprefix("k_"): found for name, found in opcodes(cubin).items()}


def expected(name: str, architecture: str) -> tuple[str, int | None]:
    """The opcode that a function is there for, and how often it occurs; None: at least once."""
    if name in BY_PRODUCT:
        return product(BY_PRODUCT[name], architecture)
    if "_commit" in name:
        return "LDGDEPBAR", 1
    if "_wait_" in name:
        return "DEPBAR.LE", None
    if name in ("cpembed_opaque", "cpembed_reserve"):
        # They do nothing that ptxas keeps.
        return "EXIT", None
    if name == "cpembed_pack_bfloat16":
        return "F2FP.BF16", 1
    if name == "cpembed_exp2":
        return "MUFU.EX2", 1
    if "cp_async_" in name:
        return "LDGSTS.E", 1
    if "ldmatrix" in name:
        form = "MT88" if "trans" in name else "M88"
        return f"LDSM.16.{form}", 1
    size = name.rsplit("_", 1)[1]
    width = {"16": ".128", "8": ".64", "4": "", "2": ".U16", "1": ".U8"}[size]
    if "shared" in name:
        return ("LDS" if "load" in name else "STS") + width, None
    return ("LDG.E" if "load" in name else "STG.E") + width, None


def product(instruction: TensorCoreInstruction, architecture: str) -> tuple[str, int]:
    """A WMMA is two instructions of 16x8x16, of bytes as well, whatever its shape."""
    if instruction.a.startswith("float8_"):
        # What a GPU without the instruction makes of it: conversions to float16, and two products.
        if architecture == "sm_90":
            return f"HMMA.16816.{SHORT[instruction.c].upper()}", 2
        types = [SHORT[dtype].upper() for dtype in (instruction.c, instruction.a, instruction.b)]
        return ".".join(["QMMA.16832", *types]), 1
    types = {
        "float16": "HMMA.16816.F32" if instruction.c == "float32" else "HMMA.16816.F16",
        "bfloat16": "HMMA.16816.F32.BF16",
        "int8": f"IMMA.168{instruction.k}.S8",
        "uint8": f"IMMA.168{instruction.k}.U8",
    }
    return types[instruction.a], 1 if instruction.kind == "mma" else 2


FRAGMENTS = tuple(name for name in device.names() if "wmma_load" in name or "wmma_store" in name)


def test_functions_are_the_instructions_that_they_name(compiled: Compiled) -> None:
    found = functions(compiled[1])
    for name in available(compiled[0]):
        if name in FRAGMENTS:
            continue
        opcode, count = expected(name, compiled[0])
        occurring = [o for o in found[name] if o == opcode or o.startswith(f"{opcode}.")]
        assert occurring, (name, opcode, sorted(set(found[name])))
        assert count in (None, len(occurring)), (name, occurring)


def test_matrices_of_8_rows_are_loaded_as_many_as_there_are(
    compiled: Compiled,
) -> None:
    """A row of a matrix has 16 bytes, so the factors of WMMA need no more alignment than that."""
    found = functions(compiled[1])

    def loaded(name: str) -> int:
        return sum(int(o[-1]) if o[-2] == "." else 1 for o in found[name] if o.startswith("LDSM"))

    for count in (1, 2, 4):
        assert loaded(f"cpembed_ldmatrix_x{count}") == count
        assert loaded(f"cpembed_ldmatrix_x{count}_trans") == count
    for name in FRAGMENTS:
        if "wmma_load" in name:
            operand, (m, n, k), dtype = parts(name)
            rows, size = (m if operand == "a" else n), (2 if dtype.endswith("16") else 1)
            assert loaded(name) == rows // 8 * (k * size // 16), name


def parts(name: str) -> tuple[str, tuple[int, int, int], str]:
    match = re.fullmatch(r"cpembed_wmma_load_([ab])_m(\d+)n(\d+)k(\d+)_(\w+)", name)
    assert match is not None
    operand, m, n, k, dtype = match.groups()
    return operand, (int(m), int(n), int(k)), dtype


def test_stores_of_sums_store_every_register(compiled: Compiled) -> None:
    found = functions(compiled[1])
    words = {"STS": 1, "STS.64": 2}  # The kernel around it fills the memory 16 bytes at a time.
    for instruction in INSTRUCTIONS:
        if instruction.kind == "wmma":
            name = instruction.store_function
            stored = sum(words.get(opcode, 0) for opcode in found[name])
            assert stored == instruction.registers[2], name
