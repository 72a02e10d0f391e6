"""Kernels of a folder, loaded and launched by the CUDA driver alone.

    from load import Kernels
    kernels = Kernels()                        # this folder's, on the first device
    result = kernels.run({"I": image, "W": weights})    # tensors of torch on that device

``Kernels`` takes the machine code that the device can execute: that of its own architecture, else
that of an earlier one of the same major version, else what the driver compiles of PTX, else what
nvcc compiles here. Operands are named as in the workload. Their device, element type, shape and
alignment are checked; whatever the driver refuses is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

FORMAT = 3

# Numbers of cuda.h.
_MAX_DYNAMIC_SHARED = 8
_NON_PORTABLE_CLUSTER = 14
_CLUSTER_DIMENSION = 4
_MAJOR, _MINOR, _CLOCK_KHZ, _SHARED_OPTIN = 75, 76, 13, 97
_MULTIPROCESSORS, _L2_BYTES = 16, 38

_STATIC_SHARED = 48 * 1024
"""Bytes of dynamic shared memory up to which a kernel needs no permission."""

_MAP_TYPES = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "int32": 3,
    "float16": 6, "float32": 7, "bfloat16": 9,
}  # fmt: skip
"""``CUtensorMapDataType`` by element type."""


class CudaError(Exception):
    """An error in one line: a call that the driver refused, or an operand that does not fit."""


class Driver:
    """Functions of libcuda, each of which is checked.

    Raises :class:`CudaError` if there is no driver.
    """

    def __init__(self, library: Any = None) -> None:
        if library is None:
            try:
                library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise CudaError(f"this machine has no CUDA driver: {error}") from error
        self.library = library
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raises :class:`CudaError` unless it returns 0."""
        try:
            function = getattr(self.library, name)
        except AttributeError as error:
            raise CudaError(f"the driver is too old: it has no {name}") from error
        status = function(*arguments)
        if status:
            raise CudaError(f"{name}: {self._message(status)} ({status})")

    def _message(self, status: int) -> str:
        text = ctypes.c_char_p()
        with contextlib.suppress(AttributeError):
            self.library.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"unknown error").decode(errors="replace")

    def number(self, name: str, *arguments: Any) -> int:
        """Return the integer that a function writes to its first argument."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def version(self) -> str:
        """Return the version of CUDA that the driver supports."""
        number = self.number("cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"


class Device:
    """A GPU, whose primary context, which torch uses too, becomes the current one.

    Raises :class:`CudaError` if there is no such device.
    """

    def __init__(self, driver: Driver, number: int = 0) -> None:
        self.driver, self.index = driver, number
        count = driver.number("cuDeviceGetCount")
        if not 0 <= number < count:
            raise CudaError(f"there is no device {number}: the driver has {count}")
        self.handle = driver.number("cuDeviceGet", number)
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, len(name), self.handle)
        self.name = name.value.decode(errors="replace")
        self._context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.handle)
        self.make_current()
        self.capability = self.attribute(_MAJOR), self.attribute(_MINOR)
        self.shared_bytes = self.attribute(_SHARED_OPTIN)
        self.multiprocessors = self.attribute(_MULTIPROCESSORS)
        self.l2_bytes = self.attribute(_L2_BYTES)
        self.clock_mhz = self.attribute(_CLOCK_KHZ) / 1000

    def make_current(self) -> None:
        """Make the device's context the current one of this thread."""
        self.driver.call("cuCtxSetCurrent", self._context)

    def attribute(self, attribute: int) -> int:
        """Return an attribute by its number in ``cuda.h``."""
        return self.driver.number("cuDeviceGetAttribute", attribute, self.handle)

    def allocate(self, size: int) -> int:
        """Return the address of ``size`` bytes of device memory."""
        # A number that does not fit would be cut off.
        if not 0 <= size < 1 << 63:
            raise CudaError(f"no device has {size} bytes of memory")
        address = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, size)))
        return address.value

    def free(self, address: int) -> None:
        """Release device memory."""
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to device memory."""
        size = ctypes.c_size_t(len(data))
        self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, size)

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of device memory."""
        data = ctypes.create_string_buffer(size)
        self.driver.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def fill(self, address: int, size: int, byte: int) -> None:
        """Write one byte all over some device memory."""
        arguments = ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size)
        self.driver.call("cuMemsetD8_v2", *arguments)

    def synchronize(self) -> None:
        """Wait for the device; errors of kernels that ran before are raised here."""
        self.driver.call("cuCtxSynchronize")


def capability_of(architecture: str) -> tuple[int, int]:
    """Return the compute capability of an architecture's name.

    >>> capability_of("sm_90a"), capability_of("compute_120")
    ((9, 0), (12, 0))
    """
    digits = re.sub(r"\D", "", architecture)
    return int(digits[:-1]), int(digits[-1])


def select_image(
    images: Sequence[Mapping[str, str]], capability: tuple[int, int]
) -> Mapping[str, str] | None:
    """Return the image that a device executes best; None if it executes none of them.

    Machine code runs on its own architecture and on later ones of the same major version, PTX on
    all later ones; what ends in ``a`` or ``f`` runs nowhere else.

    >>> images = [{"architecture": "sm_80"}, {"architecture": "sm_86"}, {"architecture": "sm_90a"},
    ...           {"architecture": "compute_80"}]
    >>> [select_image(images, each)["architecture"] for each in ((8, 9), (9, 0), (10, 0))]
    ['sm_86', 'sm_90a', 'compute_80']
    >>> select_image(images, (7, 5)) is None
    True
    """

    def rank(image: Mapping[str, str]) -> tuple[int, tuple[int, int], bool] | None:
        architecture = image["architecture"]
        least, special = capability_of(architecture), not architecture[-1].isdigit()
        if special and least != capability:
            return None
        if architecture.startswith("sm_"):
            same_major = least[0] == capability[0] and least <= capability
            return (1, least, special) if same_major else None
        return (0, least, special) if least <= capability else None

    ranked = [(rank(image), number) for number, image in enumerate(images)]
    best = max(((key, number) for key, number in ranked if key is not None), default=None)
    return None if best is None else images[best[1]]


@dataclass(frozen=True)
class Buffer:
    """An array in device memory: its size, and what addresses are multiples of."""

    name: str
    role: str
    elements: int
    itemsize: int
    alignment: int

    def __post_init__(self) -> None:
        sizes: tuple[Any, ...] = (self.elements, self.itemsize, self.alignment)
        for number in sizes:
            if not isinstance(number, int) or number < 1:
                raise CudaError(f"the manifest is damaged: {number!r} is no size of {self.name}")

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


class Kernels:
    """The kernels of a folder on a device.

    Raises :class:`CudaError` if the device cannot execute them, with the reason.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        device: int | Device = 0,
        driver: Driver | None = None,
    ) -> None:
        self.folder = Path(__file__).resolve().parent if folder is None else Path(folder)
        self.manifest = read_manifest(self.folder)
        if not isinstance(device, Device):
            device = Device(driver or Driver(), device)
        self.device, self.driver = device, device.driver
        fields = ("name", "role", "elements", "itemsize", "alignment")
        buffers = [Buffer(*(b[field] for field in fields)) for b in self.manifest["buffers"]]
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self._require_device()
        self.image = self._image()
        self._module = ctypes.c_void_p()
        self._load()
        self._functions = [self._function(kernel) for kernel in self.manifest["kernels"]]
        self._workspace: dict[str, int] = {}

    def _require_device(self) -> None:
        for kernel in self.manifest["kernels"]:
            required = kernel["dynamic_shared_bytes"]
            if required > self.device.shared_bytes:
                raise CudaError(
                    f"{kernel['name']} needs {required} bytes of shared memory a block, "
                    f"{self.device.name} has {self.device.shared_bytes}: build the kernel for this "
                    "machine (--machine)"
                )

    def _image(self) -> Mapping[str, str]:
        """Return the document of the image for the device; nvcc makes one if there is none."""
        images, (major, minor) = self.manifest["images"], self.device.capability
        image = select_image(images, (major, minor))
        if image is not None:
            return image
        text, name = self.folder / self.manifest["source"], self.manifest["name"]
        compiler, architecture = shutil.which("nvcc"), f"sm_{major}{minor}"
        special = self.manifest["architectures"][0]
        if not special[-1].isdigit():
            # A text for one architecture only.
            if capability_of(special) != (major, minor):
                raise CudaError(
                    f"{name} is for {special} alone, and {self.device.name} is of {architecture}"
                )
            architecture = special
        names = ", ".join(image["architecture"] for image in images) or "nothing compiled"
        problem = f"{self.folder} has {names}, and {self.device.name} is of {architecture}"
        if compiler is None:
            raise CudaError(f"{problem}: put nvcc on the path, which compiles {text.name} for it")
        image = {"architecture": architecture, "file": f"{name}.{architecture}.cubin"}
        options = ["-cubin", f"-arch={architecture}", "-std=c++17", "-O3"]
        command = [compiler, *options, "-o", str(self.folder / image["file"]), str(text)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            lines = [line for line in process.stderr.splitlines() if "error" in line]
            raise CudaError(f"{problem}; nvcc rejects the text: {(lines or ['no message'])[0]}")
        return image

    def _load(self) -> None:
        data = (self.folder / self.image["file"]).read_bytes()
        # The driver reads PTX up to its first zero.
        module = ctypes.byref(self._module)
        try:
            self.driver.call("cuModuleLoadData", module, data + b"\0")
        except CudaError as error:
            raise CudaError(f"{self.image['file']} is not loaded: {error}") from error

    def _function(self, kernel: Mapping[str, Any]) -> ctypes.c_void_p:
        function, name = ctypes.c_void_p(), kernel["name"].encode()
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), self._module, name)
        if kernel["dynamic_shared_bytes"] > _STATIC_SHARED:
            shared = kernel["dynamic_shared_bytes"]
            self.driver.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        x, y, z = kernel["cluster"]
        # Clusters of more blocks than every device has to support.
        if x * y * z > 8:
            self.driver.call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
        return function

    def unload(self) -> None:
        """Release the machine code and the memory that kernels pass to each other."""
        for address in self._workspace.values():
            self.device.free(address)
        self._workspace.clear()
        self.driver.call("cuModuleUnload", self._module)

    @property
    def prepares(self) -> list[str]:
        """Names of the kernels that pack weights, which run once before all calls."""
        return [kernel["name"] for kernel in self.manifest["kernels"] if kernel["prepares"]]

    @property
    def computes(self) -> list[str]:
        """Names of the kernels of a call, whose weights are packed."""
        return [kernel["name"] for kernel in self.manifest["kernels"] if not kernel["prepares"]]

    def attributes(self) -> list[dict[str, Any]]:
        """Return registers of a thread and bytes of local memory of each kernel."""
        values: list[dict[str, Any]] = []
        for function, kernel in zip(self._functions, self.manifest["kernels"], strict=True):
            # CU_FUNC_ATTRIBUTE_NUM_REGS and CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
            registers, local = (
                self.driver.number("cuFuncGetAttribute", attribute, function)
                for attribute in (4, 3)
            )
            values.append({"name": kernel["name"], "registers": registers, "local_bytes": local})
        return values

    def launch(
        self, addresses: Mapping[str, int], names: Sequence[str] | None = None, stream: int = 0
    ) -> None:
        """Launch kernels in their order.

        Parameters
        ----------
        addresses : mapping of str to int
            Device addresses of all buffers that the kernels take, by name.
        names : sequence of str, optional
            Names of the kernels; by default all.
        stream : int
            Handle of the stream.

        Raises
        ------
        CudaError
            If an address is missing or not aligned, or the driver refuses a launch.
        """
        for function, kernel in zip(self._functions, self.manifest["kernels"], strict=True):
            if names is None or kernel["name"] in names:
                values = [self._argument(kernel, each, addresses) for each in kernel["parameters"]]
                launch(self.driver, function, kernel, values, stream)

    def _argument(
        self,
        kernel: Mapping[str, Any],
        parameter: Mapping[str, Any],
        addresses: Mapping[str, int],
    ) -> Any:
        buffer = self.buffers[parameter["buffer"]]
        if buffer.name not in addresses:
            raise CudaError(f"{kernel['name']} has no address of {buffer.name}")
        address = addresses[buffer.name]
        if address == 0 or address % buffer.alignment:
            raise CudaError(
                f"{kernel['name']}: {buffer.name} at {address:#x} is no multiple of "
                f"{buffer.alignment} bytes"
            )
        if parameter["kind"] == "tensor_map":
            return tensor_map(self.driver, parameter["map"], address)
        return ctypes.c_void_p(address)

    def run(
        self,
        operands: Mapping[str, Any],
        out: Any = None,
        *,
        prepared: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Compute the workload on tensors of torch, or of another library with their interface.

        Parameters
        ----------
        operands : mapping of str to Any
            Operands by the names of the workload, on the device; bias and scale are ``@bias`` and
            ``@scale``.
        out : Any, optional
            Tensor of the result, or a sequence of those of all results; by default new ones of
            torch.
        prepared : bool
            True to use the weights that the last call packed.
        stream : int, optional
            Handle of the stream; by default torch's current one, or the default stream.

        Returns
        -------
        Any
            The result; of kernels with several results a tuple.
        """
        self.device.make_current()
        addresses = dict(self._scratch())
        for buffer in self.manifest["buffers"]:
            if buffer["role"] == "input":
                if buffer["tensor"] not in operands:
                    raise CudaError(f"operand {buffer['tensor']} is missing")
                tensor = operands[buffer["tensor"]]
                addresses[buffer["name"]] = self._address(tensor, buffer)
        unknown = set(operands) - set(self.manifest["operands"])
        if unknown:
            raise CudaError(f"there is no operand {', '.join(sorted(unknown))}")
        results = [b for b in self.manifest["buffers"] if b["role"] == "output"]
        results.sort(key=lambda buffer: self.manifest["results"].index(buffer["tensor"]))
        tensors: Sequence[Any] = [out]
        if out is None:
            tensors = [self._empty(result) for result in results]
        elif isinstance(out, list | tuple):
            tensors = cast("Sequence[Any]", out)
        if len(tensors) != len(results):
            raise CudaError(f"there are {len(results)} results, and memory of {len(tensors)}")
        for tensor, result in zip(tensors, results, strict=True):
            addresses[result["name"]] = self._address(tensor, result)
        if stream is None:
            stream = _torch_stream(tensors[0])
        self.launch(addresses, self.computes if prepared else None, stream)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _scratch(self) -> Mapping[str, int]:
        """Return the addresses of memory that kernels pass to each other, allocated once."""
        for buffer in self.buffers.values():
            if buffer.role == "workspace" and buffer.name not in self._workspace:
                self._workspace[buffer.name] = self.device.allocate(buffer.bytes)
        return self._workspace

    def _address(self, tensor: Any, buffer: Mapping[str, Any]) -> int:
        """Return a tensor's address; raises :class:`CudaError` if it does not fit the buffer."""
        label, dtype = buffer["tensor"], str(getattr(tensor, "dtype", "unknown")).split(".")[-1]
        interface: Mapping[str, Any] | None = None
        if not hasattr(tensor, "data_ptr"):
            interface = getattr(tensor, "__cuda_array_interface__", None)
        elif not tensor.is_cuda:
            raise CudaError(
                f"{label} is on {tensor.device}, not on the GPU {self.device.index}: move it there"
            )
        elif tensor.device.index != self.device.index:
            raise CudaError(f"{label} is on {tensor.device}, the kernels on {self.device.index}")
        if interface is None and not hasattr(tensor, "data_ptr"):
            raise CudaError(f"{label} is no tensor on a GPU: {type(tensor).__name__}")
        if dtype != buffer["dtype"]:
            raise CudaError(f"{label} is of {dtype}, not of {buffer['dtype']}")
        shape = list(tensor.shape)
        if shape != buffer["shape"]:
            raise CudaError(f"{label} has the shape {shape}, not {buffer['shape']}")
        if interface is not None:
            if interface.get("strides") is not None:
                raise CudaError(f"{label} is not contiguous: copy it first")
            return interface["data"][0]
        if not tensor.is_contiguous():
            raise CudaError(f"{label} is not contiguous: pass {label}.contiguous()")
        return tensor.data_ptr()

    def _empty(self, buffer: Mapping[str, Any]) -> Any:
        # It is loaded where an operand is a tensor of it.
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise CudaError("without torch the result needs memory: pass out")
        dtype = getattr(torch, buffer["dtype"])
        return torch.empty(buffer["shape"], dtype=dtype, device=f"cuda:{self.device.index}")


def _torch_stream(tensor: Any) -> int:
    """Return the handle of torch's current stream on a tensor's device; 0 for other libraries."""
    if not hasattr(tensor, "data_ptr"):
        return 0
    torch: Any = sys.modules["torch"]
    return torch.cuda.current_stream(tensor.device).cuda_stream


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder of kernels.

    Raises :class:`CudaError` if there is none, or one of another format.
    """
    manifests: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            document: Any = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise CudaError(f"{path}: {error}") from error
        # Results may lie beside the manifest.
        if isinstance(document, dict) and "kernels" in document:
            manifests.append(cast("dict[str, Any]", document))
    if len(manifests) != 1:
        raise CudaError(f"{folder} has {len(manifests)} manifests of kernels, not one")
    (manifest,) = manifests
    if manifest.get("format") != FORMAT:
        raise CudaError(f"{folder}: a manifest of format {manifest.get('format')}, not {FORMAT}")
    return manifest


def launch(
    driver: Driver,
    function: ctypes.c_void_p,
    kernel: Mapping[str, Any],
    values: Sequence[Any],
    stream: int,
) -> None:
    """Launch one kernel.

    Parameters
    ----------
    driver : Driver
    function : ctypes.c_void_p
    kernel : mapping
        Its grid, block, cluster and shared memory.
    values : sequence
        Its arguments as C values, in order.
    stream : int
        Handle of the stream.
    """
    arguments = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
    # Numbers of C: a text would be passed as its address, and a fourth size move the arguments.
    grid, block = (_UINT * 3)(*kernel["grid"]), (_UINT * 3)(*kernel["block"])
    shared, handle = _UINT(kernel["dynamic_shared_bytes"]), ctypes.c_void_p(stream)
    try:
        if kernel["cluster"] == [1, 1, 1]:
            sizes = (*grid, *block, shared)
            driver.call("cuLaunchKernel", function, *sizes, handle, arguments, None)
            return
        attribute = _Attribute(id=_CLUSTER_DIMENSION)
        attribute.value[:3] = kernel["cluster"]
        attributes = ctypes.pointer(attribute)
        request = _Request(grid, block, shared, handle, attributes, 1)
        driver.call("cuLaunchKernelEx", ctypes.byref(request), function, arguments, None)
    except CudaError as error:
        raise CudaError(f"{kernel['name']} is not launched: {error}") from error


_UINT = ctypes.c_uint


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: a value of 64 bytes behind a number in eight."""

    _fields_ = (("id", _UINT), ("padding", _UINT), ("value", _UINT * 16))


class _Request(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", _UINT * 3),
        ("block", _UINT * 3),
        ("shared_bytes", _UINT),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", _UINT),
    )


class _TensorMap(ctypes.Structure):
    """``CUtensorMap``; ``ctypes`` aligns to 8 bytes, so it begins within a larger memory."""

    _fields_ = (("memory", ctypes.c_uint64 * 24),)


def tensor_map(driver: Driver, document: Mapping[str, Any], address: int) -> Any:
    """Return an encoded tensor map, at a multiple of 64 bytes.

    Parameters
    ----------
    driver : Driver
    document : mapping
        Fields of ``cuTensorMapEncodeTiled`` or ``cuTensorMapEncodeIm2col``.
    address : int
        Device address of the array.
    """
    memory = _TensorMap()
    skipped = -ctypes.addressof(memory) % 64
    encoded = (ctypes.c_uint64 * 16).from_buffer(memory, skipped)
    rank, swizzle = document["rank"], {0: 0, 32: 1, 64: 2, 128: 3}[document["swizzle"]]
    if rank not in range(1, 6):
        raise CudaError(f"the manifest is damaged: a tensor map of {rank!r} dimensions")
    u64, u32, i32 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int

    def array(kind: Any, numbers: Sequence[int]) -> Any:
        # The driver reads as many numbers as there are dimensions.
        return (kind * rank)(*numbers)

    dims = array(u64, document["global_dims"]), array(u64, document["global_strides_bytes"])
    begin = ctypes.byref(encoded), _MAP_TYPES[document["dtype"]], rank, ctypes.c_void_p(address)
    # No interleaving; L2 promotion to 128 bytes; zeros out of bounds.
    end = array(u32, document["element_strides"]), 0, swizzle, 2, 0
    box = document.get("im2col")
    if box is None:
        extents = array(u32, document["box"])
        driver.call("cuTensorMapEncodeTiled", *begin, *dims, extents, *end)
    else:
        corners = array(i32, box["lower"]), array(i32, box["upper"])
        numbers = u32(box["channels"]), u32(box["pixels"])
        driver.call("cuTensorMapEncodeIm2col", *begin, *dims, *corners, *numbers, *end)
    # Drivers up to CUDA 13.1 mark maps of small arrays wrongly, so that copies may fault: the bit
    # that CUTLASS clears (cute/atom/copy_traits_sm90_tma.hpp).
    if document["small"] and driver.number("cuDriverGetVersion") <= 13010:
        encoded[1] &= ~(1 << 21)
    return encoded
