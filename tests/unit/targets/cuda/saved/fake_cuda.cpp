// A CUDA driver and runtime without a GPU, of which FAKE_CUDA says how they behave:
//   none: no device; memory: allocations fail; refuse: launches fail; idle: launches do nothing;
//   run: launches are executed by the library FAKE_CUDA_PROGRAM, an emulated CUDA text, or by that
//   of the image in the list FAKE_CUDA_PROGRAMS, whose lines are "image library".
// With FAKE_CUDA_THREADS_US a thread takes as many microseconds more, with FAKE_CUDA_CRASH a launch of
// as many threads a block ends the process, and with FAKE_CUDA_HANG it never ends.
#include "launch.h"  // ExecutorBuffer and ExecutorLaunch, as the executor has them.
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <string>
#include <vector>
#include <unistd.h>

#define API extern "C" __attribute__((visibility("default")))

static std::string mode() { return getenv("FAKE_CUDA") ? getenv("FAKE_CUDA") : "none"; }
static int last_error = 0;
static std::map<unsigned char*, size_t> allocations;
struct Function {
  std::string name, library;
};
static std::vector<Function*> functions;
static std::vector<std::string*> modules;
static std::map<const void*, std::string> host_functions;
static int number_from(const char* variable, int other) {
  return getenv(variable) ? atoi(getenv(variable)) : other;
}
static int capability() { return number_from("FAKE_CUDA_CAPABILITY", 80); }

static int allocate(void** address, size_t size) {
  if (mode() == "memory") return 2;
  size_t rounded = (size + 255) / 256 * 256;
  *address = aligned_alloc(256, rounded);
  if (getenv("FAKE_CUDA_UNALIGNED")) *address = (char*)*address + 8;
  allocations[(unsigned char*)*address] = size;
  return 0;
}

static const unsigned ONE[3] = {1, 1, 1};
static double launched_threads = 0;

static int execute(const std::string& name, const std::string& path, const unsigned* grid,
                   const unsigned* block, const unsigned* cluster, unsigned shared,
                   void** arguments) {
  launched_threads += double(grid[0]) * grid[1] * grid[2] * block[0] * block[1] * block[2];
  if (int(block[0]) == number_from("FAKE_CUDA_CRASH", 0)) abort();
  if (int(block[0]) == number_from("FAKE_CUDA_HANG", 0)) pause();
  if (mode() == "refuse") return 1;
  if (mode() == "idle") return 0;
  if (getenv("FAKE_CUDA_FAULT") && name == getenv("FAKE_CUDA_FAULT")) return 700;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 999;
  }
  std::vector<ExecutorBuffer> buffers;
  for (auto& [base, size] : allocations) {
    ExecutorBuffer buffer = {};
    buffer.base = base, buffer.bytes = size;
    buffers.push_back(buffer);
  }
  ExecutorLaunch launch = {};
  launch.invoke = (void (*)(void**))dlsym(library, ("executor_invoke_" + name).c_str());
  launch.arguments = arguments;
  launch.buffers = buffers.data();
  launch.buffer_count = int(buffers.size());
  for (int axis = 0; axis < 3; axis++) {
    launch.grid[axis] = grid[axis], launch.block[axis] = block[axis];
    launch.cluster[axis] = cluster[axis];
  }
  launch.shared_bytes = shared;
  launch.computes = true;
  auto run = (const char* (*)(const ExecutorLaunch*))dlsym(library, "executor_run");
  if (!launch.invoke || !run) return 500;
  if (const char* fault = run(&launch)) {
    fprintf(stderr, "fault: %s\n", fault);
    return 700;
  }
  return 0;
}

static const char* message(int status) {
  switch (status) {
    case 0: return "no error";
    case 1: return "invalid argument";
    case 2: return "out of memory";
    case 200: return "device kernel image is invalid";
    case 100: return "no CUDA-capable device is detected";
    case 700: return "an illegal memory access was encountered";
    default: return "unknown error";
  }
}
static int attribute(int number) {
  switch (number) {
    case 75: return capability() / 10;
    case 76: return capability() % 10;
    case 13: return 1410000;
    case 16: return 108;
    case 38: return number_from("FAKE_CUDA_L2", 1 << 16);
    case 97: return number_from("FAKE_CUDA_SHARED", 166912);
    default: return 0;
  }
}

// ---------------------------------------------------------------------------------- the driver
API int cuInit(unsigned) { return mode() == "none" ? 100 : 0; }
API int cuDriverGetVersion(int* value) { return *value = 13000, 0; }
API int cuDeviceGetCount(int* count) { return *count = mode() == "none" ? 0 : 1, 0; }
API int cuDeviceGet(int* device, int) { return *device = 0, 0; }
API int cuDeviceGetName(char* name, int size, int) { return snprintf(name, size, "fake GPU"), 0; }
API int cuDeviceGetAttribute(int* value, int number, int) { return *value = attribute(number), 0; }
API int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &last_error, 0; }
API int cuCtxSetCurrent(void*) { return 0; }
API int cuCtxSynchronize() { return 0; }
API int cuMemAlloc_v2(unsigned long long* address, size_t size) {
  return allocate((void**)address, size);
}
API int cuMemFree_v2(unsigned long long address) {
  return allocations.erase((unsigned char*)address), 0;
}
API int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t size) {
  return memcpy((void*)to, from, size), 0;
}
API int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t size) {
  return memcpy(to, (void*)from, size), 0;
}
API int cuMemcpyDtoDAsync_v2(unsigned long long, unsigned long long, size_t, void*) { return 0; }
API int cuMemsetD8_v2(unsigned long long to, unsigned char byte, size_t size) {
  return memset((void*)to, byte, size), 0;
}
static std::string program() {
  return getenv("FAKE_CUDA_PROGRAM") ? getenv("FAKE_CUDA_PROGRAM") : "";
}
static std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
API int cuModuleLoadData(void** module, const void* data) {
  // An ELF file, or the text of PTX.
  if (memcmp(data, "\177ELF", 4) && memcmp(data, "//", 2)) return 200;
  std::string library = program();
  if (const char* list = getenv("FAKE_CUDA_PROGRAMS")) {
    library = "";
    std::ifstream lines(list);
    for (std::string image, path; lines >> image >> path;) {
      std::string bytes = contents(image);
      if (!memcmp(bytes.data(), data, bytes.size())) library = path;
    }
    if (library.empty()) return 200;
  }
  modules.push_back(new std::string(library));
  return *module = modules.back(), 0;
}
API int cuModuleUnload(void*) { return 0; }
API int cuModuleGetFunction(void** function, void* module, const char* name) {
  functions.push_back(new Function{name, *(std::string*)module});
  return *function = functions.back(), 0;
}
API int cuFuncSetAttribute(void*, int, int) { return 0; }
API int cuFuncGetAttribute(int* value, int number, void*) { return *value = number == 4 ? 96 : 0, 0; }
API int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, void*, void** arguments, void**) {
  unsigned grid[] = {x, y, z}, block[] = {bx, by, bz};
  auto* called = (Function*)function;
  return execute(called->name, called->library, grid, block, ONE, shared, arguments);
}
// CUlaunchConfig: an attribute is a number in eight bytes, and its value in 64.
struct Attribute {
  unsigned id, padding, value[16];
};
struct Request {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned attribute_count;
};
API int cuLaunchKernelEx(const Request* request, void* function, void** arguments, void**) {
  const unsigned* cluster = ONE;
  for (unsigned n = 0; n < request->attribute_count; n++)
    if (request->attributes[n].id == 4) cluster = request->attributes[n].value;
  auto* called = (Function*)function;
  return execute(called->name, called->library, request->grid, request->block, cluster,
                 request->shared, arguments);
}
// As the executor encodes maps: hopper/tensor_maps.py says how.
struct Map {
  uint64_t address, strides[4];
  uint32_t dims[5];
  uint16_t box[5];
  uint8_t element_strides[5], mode, dtype, rank, swizzle, element_bytes;
  int16_t lower[3], upper[3];
  uint16_t channels, pixels;
  uint8_t fill, reserved[23];
  char mark[8];
};
static_assert(sizeof(Map) == 128, "a tensor map has 128 bytes");
static Map* map_of(void* memory, int dtype, unsigned rank, void* address, const uint64_t* dims,
                   const uint64_t* strides, const uint32_t* steps, int swizzle) {
  static const uint8_t sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  if ((uintptr_t)memory % 64) return nullptr;
  Map* map = new (memory) Map{};
  map->address = (uint64_t)address;
  for (unsigned n = 0; n < 5; n++) {
    map->dims[n] = n < rank ? uint32_t(dims[n]) : 1, map->box[n] = 1;
    map->element_strides[n] = n < rank ? uint8_t(steps[n]) : 1;
    if (n + 1 < rank) map->strides[n] = strides[n];
  }
  map->dtype = uint8_t(dtype), map->rank = uint8_t(rank), map->swizzle = uint8_t(swizzle);
  map->element_bytes = sizes[dtype];
  memcpy(map->mark, "CUTENMAP", 8);
  return map;
}
API int cuTensorMapEncodeTiled(void* memory, int dtype, unsigned rank, void* address,
                               const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                               const uint32_t* steps, int, int swizzle, int, int) {
  Map* map = map_of(memory, dtype, rank, address, dims, strides, steps, swizzle);
  if (!map) return 1;
  for (unsigned n = 0; n < rank; n++) map->box[n] = uint16_t(box[n]);
  return 0;
}
API int cuTensorMapEncodeIm2col(void* memory, int dtype, unsigned rank, void* address,
                                const uint64_t* dims, const uint64_t* strides, const int* lower,
                                const int* upper, unsigned channels, unsigned pixels,
                                const uint32_t* steps, int, int swizzle, int, int) {
  Map* map = map_of(memory, dtype, rank, address, dims, strides, steps, swizzle);
  if (!map) return 1;
  map->mode = 1, map->channels = uint16_t(channels), map->pixels = uint16_t(pixels);
  for (unsigned n = 0; n + 2 < rank; n++)
    map->lower[n] = int16_t(lower[n]), map->upper[n] = int16_t(upper[n]);
  return 0;
}
API int cuEventCreate(void** event, unsigned) { return *event = &last_error, 0; }
static double recorded[2] = {};
API int cuEventRecord(void*, void*) {
  return recorded[0] = recorded[1], recorded[1] = launched_threads, 0;
}
API int cuEventSynchronize(void*) { return 0; }
// 0.01 ms without a launch too: a program that trusts events alone prints a time.
API int cuEventElapsedTime(float* ms, void*, void*) {
  *ms = 0.01f;
  if (const char* us = getenv("FAKE_CUDA_THREADS_US"))
    *ms += float(atof(us) * (recorded[1] - recorded[0]) / 1e3);
  return 0;
}
API int cuGetErrorString(int status, const char** text) { return *text = message(status), 0; }

// --------------------------------------------------------------------------------- the runtime
struct Size {
  unsigned x, y, z;
};
static int kept(int status) {
  if (status) last_error = status;
  return status;
}
API int cudaGetLastError() {
  int status = last_error;
  return last_error = 0, status;
}
API const char* cudaGetErrorString(int status) { return message(status); }
API int cudaGetDeviceCount(int* count) {
  return *count = mode() != "none", kept(mode() == "none" ? 100 : 0);
}
API int cudaSetDevice(int) { return 0; }
API int cudaDeviceGetAttribute(int* value, int number, int) { return *value = attribute(number), 0; }
API int cudaGetDeviceProperties(void* properties, int) {
  return snprintf((char*)properties, 256, "fake GPU"), 0;
}
API int cudaMalloc(void** address, size_t size) { return kept(allocate(address, size)); }
API int cudaFree(void* address) { return allocations.erase((unsigned char*)address), 0; }
API int cudaMemset(void* to, int byte, size_t size) { return memset(to, byte, size), 0; }
API int cudaMemsetAsync(void* to, int byte, size_t size, void*) { return memset(to, byte, size), 0; }
API int cudaMemcpy(void* to, const void* from, size_t size, int) { return memcpy(to, from, size), 0; }
API int cudaDeviceSynchronize() { return 0; }
API int cudaEventCreate(void** event) { return *event = &last_error, 0; }
API int cudaEventRecord(void*, void*) { return 0; }
API int cudaEventSynchronize(void*) { return 0; }
API int cudaEventElapsedTime(float* ms, void*, void*) { return *ms = 0.01f, 0; }
API int cudaFuncSetAttribute(const void*, int, int) { return 0; }
API int cudaLaunchKernel(const void* function, Size grid, Size block, void** arguments, size_t shared,
                         void*) {
  return kept(execute(host_functions[function], program(), &grid.x, &block.x, ONE, unsigned(shared),
                      arguments));
}
API int cudaLaunchKernelExC(const void*, const void*, void**) { return kept(1); }
API void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                                void*, void*, int*) {
  host_functions[host] = name;
}
// Stubs of kernels call these, and nothing calls the stubs.
API int __cudaGetKernel(void** kernel, const void* host) { return *kernel = (void*)host, 0; }
API int __cudaLaunchKernel(const void*, Size, Size, void**, size_t, void*) { return kept(1); }
API int __cudaPushCallConfiguration(Size, Size, size_t, void*) { return 0; }
API int __cudaPopCallConfiguration(void*, void*, size_t*, void*) { return 0; }
