/* How a launch calls a kernel: by an array of pointers to its arguments, whose kinds and sizes are
   said by a text such as "p8i4f4": pointer, tensor map (t), signed or unsigned integer (i, u), floating point. */
#pragma once

/* A tensor map, which a kernel only passes on: its bytes are this package's (tensor_map.h). */
struct __attribute__((aligned(64))) CUtensorMap {
  unsigned long long opaque[16];
};

template <class T>
constexpr char __cpembed_kind() {
  if (std::is_same_v<T, CUtensorMap>) return 't';
  if (std::is_pointer_v<T>) return 'p';
  if (std::is_floating_point_v<T>) return 'f';
  if (std::is_integral_v<T>) return std::is_signed_v<T> ? 'i' : 'u';
  return '?';
}

template <class... T>
struct __cpembed_signature {
  static constexpr char text[] = {
      'k', __cpembed_kind<T>()..., 0};
  static constexpr int sizes[] = {int(sizeof(T))..., 0};

  template <size_t... i>
  __attribute__((no_sanitize("thread"))) static void call(void (*kernel)(T...), void **arguments, std::index_sequence<i...>) {
    kernel(*static_cast<std::remove_const_t<T> *>(arguments[i])...);
  }
};

template <class... T>
__attribute__((no_sanitize("thread"))) void __cpembed_invoke(void (*kernel)(T...), void **arguments) {
  __cpembed_signature<T...>::call(kernel, arguments, std::index_sequence_for<T...>{});
}
template <class... T>
const char *__cpembed_kinds(void (*)(T...)) {
  return __cpembed_signature<T...>::text;
}
template <class... T>
const int *__cpembed_sizes(void (*)(T...)) {
  return __cpembed_signature<T...>::sizes;
}

#define EXECUTOR_KERNEL(name) \
  extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void executor_invoke_##name( \
      void **arguments) { \
    __cpembed_invoke(name, arguments); \
  } \
  extern "C" __attribute__((visibility("default"))) const char *executor_kinds_##name() { \
    return __cpembed_kinds(name); \
  } \
  extern "C" __attribute__((visibility("default"))) const int *executor_sizes_##name() { \
    return __cpembed_sizes(name); \
  }
