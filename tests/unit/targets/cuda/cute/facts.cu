// Facts of CuTe's own definitions, evaluated on the host, as JSON.
#include <cstdio>
#include <random>
#include <cute/tensor.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cutlass/version.h>
#include <cutlass/conv/convnd_problem_shape.hpp>
#include <cutlass/conv/collective/detail.hpp>
using namespace cute;

static std::FILE *out;
template <class... Args> void emit(const char *format, Args... args) { std::fprintf(out, format, args...); }
static bool first_entry;
static void open_list(const char *name) { emit(" \"%s\": [", name), first_entry = true; }
static void next_entry() { emit(first_entry ? "\n" : ",\n"), first_entry = false; }
static void close_list(const char *end = "],") { emit("\n %s\n", end); }

// Linear column-major positions of (thread, value) in a matrix of `rows` rows.
template <class L> void positions(const char *name, L layout, int rows) {
  next_entry();
  emit("  {\"name\": \"%s\", \"threads\": %d, \"values\": %d, \"rows\": %d, \"positions\": [", name,
              int(size<0>(layout)), int(size<1>(layout)), rows);
  for (int t = 0; t < int(size<0>(layout)); t++)
    for (int v = 0; v < int(size<1>(layout)); v++) emit(t || v ? ",%d" : "%d", int(layout(t, v)));
  emit("]}");
}
template <class Op> void mma(const char *name) {
  using T = MMA_Traits<Op>;
  constexpr int m = get<0>(typename T::Shape_MNK{}), n = get<1>(typename T::Shape_MNK{});
  char text[80];
  std::snprintf(text, 80, "%s.a", name), positions(text, typename T::ALayout{}, m);
  std::snprintf(text, 80, "%s.b", name), positions(text, typename T::BLayout{}, n);
  std::snprintf(text, 80, "%s.c", name), positions(text, typename T::CLayout{}, m);
}
// Bit (source lane * 128 + bit of its row) that each 16 bits of a lane receive.
template <class Op> void ldsm(const char *name) {
  using T = Copy_Traits<Op>;
  auto dst = typename T::DstLayout{};
  auto src = typename T::SrcLayout{};
  int values = int(size<1>(dst)) / 16;
  next_entry();
  emit("  {\"name\": \"%s\", \"values\": %d, \"positions\": [", name, values);
  for (int t = 0; t < 32; t++)
    for (int v = 0; v < values; v++) {
      int bit = int(dst(t, v * 16)), lane = -1, within = -1;
      for (int s = 31; s >= 0; s--)
        for (int b = 0; b < int(size<1>(src)); b += 16)
          if (int(src(s, b)) == bit) lane = s, within = b / 16;
      emit("%s[%d,%d]", t || v ? "," : "", lane, within);
    }
  emit("]}");
}
static std::mt19937 rng(1);
template <SM90::GMMA::Major M, class T, class Atom, class R, class D>
void image(int span, R rows, D depth) {
  auto shape = make_shape(rows, depth);
  auto layout = [&] {
    if constexpr (M == SM90::GMMA::Major::K) return tile_to_shape(Atom{}, shape);
    else return tile_to_shape(Atom{}, shape, Step<_2, _1>{});
  }();
  auto plain = as_position_independent_swizzle_layout(layout);
  next_entry();
  emit("  {\"major\": \"%s\", \"bits\": %d, \"span\": %d, \"rows\": %d, \"depth\": %d,\n   \"offsets\": [",
              M == SM90::GMMA::Major::K ? "k" : "mn", int(sizeof_bits<T>::value), span, int(rows), int(depth));
  for (int n = 0; n < 40; n++) {
    int r = rng() % int(rows), d = rng() % int(depth);
    emit("%s[%d,%d,%d]", n ? "," : "", r, d, int(plain(r, d)) * int(sizeof(T)));
  }
  emit("],\n   \"matrices\": [");
  constexpr int K = 32 / int(sizeof(T));
  // A first factor has 64 rows, a second one up to 256 columns.
  constexpr int MN = M == SM90::GMMA::Major::MN || R::value < 64 ? R::value : 64;
  T *base = reinterpret_cast<T *>(uintptr_t(1) << 20);
  auto tensor = make_tensor(make_smem_ptr(base), layout);
  for (int i = 0; i < int(rows) / MN; i++)
    for (int j = 0; j < int(depth) / K; j++) {
      auto tile = local_tile(tensor, Shape<Int<MN>, Int<K>>{}, make_coord(i, j));
      auto desc = SM90::GMMA::make_gmma_desc<M>(tile);
      long at = reinterpret_cast<uintptr_t>(raw_pointer_cast(tile.data())) - (uintptr_t(1) << 20);
      emit("%s[%d,%d,%ld,%u,%u,%u,%u]", i || j ? "," : "", i * MN, j * K, at,
                  unsigned(desc.bitfield.leading_byte_offset_), unsigned(desc.bitfield.stride_byte_offset_),
                  unsigned(desc.bitfield.base_offset_), unsigned(desc.bitfield.layout_type_));
    }
  emit("]}");
}
template <int S> void corners(int count) {
  using namespace cutlass::conv;
  using P = ConvProblemShape<Operator::kFprop, S>;
  for (int n = 0; n < count;) {
    typename P::TensorExtent act{}, flt{};
    typename P::SpatialExtent low{}, high{}, stride{}, dilation{};
    act[0] = 2 + rng() % 2, act[S + 1] = 16, flt[0] = 16, flt[S + 1] = 16;
    bool fits = true;
    for (int i = 0; i < S; i++) {
      act[i + 1] = 4 + rng() % 12, flt[i + 1] = 1 + rng() % 5;
      stride[i] = 1 + rng() % 3, dilation[i] = 1 + rng() % 3;
      low[i] = high[i] = rng() % 4;
      // Two outputs or more: a walk through one is none.
      fits = fits && act[i + 1] + 2 * low[i] >= (flt[i + 1] - 1) * dilation[i] + 1 + stride[i];
    }
    if (!fits) continue;
    n++;
    P shape(Mode::kCrossCorrelation, act, flt, low, high, stride, dilation, 1);
    auto lower = collective::detail::compute_lower_corner_whd(shape);
    auto upper = collective::detail::compute_upper_corner_whd(shape);
    auto list = [](const char *name, auto const &values, int from, int number, const char *end) {
      emit("\"%s\": [", name);
      for (int i = 0; i < number; i++) emit(i ? ",%d" : "%d", int(values[from + i]));
      emit("]%s", end);
    };
    next_entry();
    emit("  {\"n\": %d, ", int(act[0]));
    list("size", act, 1, S, ", "), list("filter", flt, 1, S, ", "), list("pad", low, 0, S, ", ");
    list("stride", stride, 0, S, ", "), list("dilation", dilation, 0, S, ", ");
    list("output", shape.shape_C, 1, S, ", ");
    list("lower_whd", lower, 0, S, ", "), list("upper_whd", upper, 0, S, "}");
  }
}
using SM90::GMMA::Major;
template <class T, int Span> struct KAtom;
template <class T> struct KAtom<T, 32> { using type = SM90::GMMA::Layout_K_SW32_Atom<T>; };
template <class T> struct KAtom<T, 64> { using type = SM90::GMMA::Layout_K_SW64_Atom<T>; };
template <class T> struct KAtom<T, 128> { using type = SM90::GMMA::Layout_K_SW128_Atom<T>; };
template <int Span> struct MAtom;
template <> struct MAtom<32> { using type = SM90::GMMA::Layout_MN_SW32_Atom<half_t>; };
template <> struct MAtom<64> { using type = SM90::GMMA::Layout_MN_SW64_Atom<half_t>; };
template <> struct MAtom<128> { using type = SM90::GMMA::Layout_MN_SW128_Atom<half_t>; };
template <class T, int Span, int... R> void kmajor() {
  (image<Major::K, T, typename KAtom<T, Span>::type>(Span, Int<R>{}, Int<Span / int(sizeof(T))>{}), ...);
}
template <int Span, int R, int... D> void mnmajor() {
  (image<Major::MN, half_t, typename MAtom<Span>::type>(Span, Int<R>{}, Int<D>{}), ...);
}
int main(int, char **words) {
  // CuTe prints to the standard output that there is no shared memory here: descriptors begin at 0.
  out = std::fopen(words[1], "w");
  if (!out) return 1;
  emit("{\n \"cutlass\": \"%d.%d.%d\",\n", CUTLASS_MAJOR, CUTLASS_MINOR, CUTLASS_PATCH);
  open_list("fragments");
  mma<SM80_16x8x16_F32F16F16F32_TN>("mma_m16n8k16_f32_f16_f16");
  mma<SM80_16x8x16_F16F16F16F16_TN>("mma_m16n8k16_f16_f16_f16");
  mma<SM80_16x8x16_F32BF16BF16F32_TN>("mma_m16n8k16_f32_bf16_bf16");
  mma<SM80_16x8x32_S32S8S8S32_TN>("mma_m16n8k32_s32_s8_s8");
  mma<SM80_16x8x32_S32U8S8S32_TN>("mma_m16n8k32_s32_u8_s8");
  mma<SM89_16x8x32_F32E4M3E4M3F32_TN>("mma_m16n8k32_f32_e4m3_e4m3");
  mma<SM89_16x8x32_F16E5M2E4M3F16_TN>("mma_m16n8k32_f16_e5m2_e4m3");
  mma<SM120_16x8x32_TN<float_e4m3_t, float_e5m2_t, float>>("mma_m16n8k32_f32_e4m3_e5m2");
  close_list();
  open_list("warp_group_fragments");
  using Rs16 = MMA_Traits<SM90::GMMA::MMA_64x8x16_F32F16F16_RS<Major::K, Major::K>>;
  using Rs8 = MMA_Traits<SM90::GMMA::MMA_64x8x32_S32S8S8_RS_TN>;
  using Rs8f = MMA_Traits<SM90::GMMA::MMA_64x16x32_F32E4M3E4M3_RS_TN<>>;
  using Rs24 = MMA_Traits<SM90::GMMA::MMA_64x32x16_F16F16F16_RS<Major::K, Major::K>>;
  positions("m64k16.a", Rs16::ALayout{}, 64);
  positions("m64k32.a", Rs8::ALayout{}, 64);
  positions("m64k32.a", Rs8f::ALayout{}, 64);
  positions("m64n8.c", Rs16::CLayout{}, 64);
  positions("m64n8.c", Rs8::CLayout{}, 64);
  positions("m64n16.c", Rs8f::CLayout{}, 64);
  positions("m64n32.c", Rs24::CLayout{}, 64);
  close_list();
  open_list("ldmatrix");
  ldsm<SM75_U32x1_LDSM_N>("x1"), ldsm<SM75_U32x2_LDSM_N>("x2"), ldsm<SM75_U32x4_LDSM_N>("x4");
  ldsm<SM75_U16x2_LDSM_T>("x1.trans"), ldsm<SM75_U16x4_LDSM_T>("x2.trans"), ldsm<SM75_U16x8_LDSM_T>("x4.trans");
  close_list();
  open_list("images");
  kmajor<half_t, 128, 8, 64, 192>(), kmajor<half_t, 64, 8, 64, 128>(), kmajor<half_t, 32, 16, 64, 256>();
  kmajor<int8_t, 128, 24, 128>(), kmajor<int8_t, 64, 40, 64>(), kmajor<float_e4m3_t, 32, 8, 128>();
  mnmajor<128, 64, 16, 32, 64>(), mnmajor<128, 256, 32, 64>(), mnmajor<64, 32, 16, 64>(), mnmajor<32, 16, 16, 32>();
  close_list();
  open_list("im2col");
  corners<1>(16), corners<2>(24);
  close_list("]");
  emit("}\n");
  return std::fclose(out);
}
