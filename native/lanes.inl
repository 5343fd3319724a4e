// What one instruction set does in the loops over records. Included once for each, with
// CLOISTER_ISA, a namespace; CLOISTER_NAME; CLOISTER_LANES, the int32 in a vector; and
// CLOISTER_REGISTERS, its vectors.
//
// Written in the vector extensions of GCC and Clang; only what optimisers miss is an intrinsic.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if CLOISTER_LANES > 4
#include <immintrin.h>
#endif

#include "kernel.h"

namespace cloister::CLOISTER_ISA {
namespace {

constexpr int W = CLOISTER_LANES;
constexpr int PANEL = 2 * W;  // records that are scored side by side, in two vectors
constexpr int MOST = CLOISTER_REGISTERS >= 32 ? 8 : 6;  // centres whose sums fit the registers
constexpr int AHEAD = 1024;     // numbers between what is computed and what is fetched from memory
constexpr int MOST_AHEAD = 64;  // columns, beyond which a panel is longer than that

// Vectors ----------------------------------------------------------------------------------------

using Float = float __attribute__((vector_size(4 * W)));
using Int = int32_t __attribute__((vector_size(4 * W)));

constexpr int H = W / 2;  // float64 in a vector

using Double = double __attribute__((vector_size(8 * H)));
using Long = int64_t __attribute__((vector_size(8 * H)));
using HalfFloat = float __attribute__((vector_size(4 * H)));
using HalfInt = int32_t __attribute__((vector_size(4 * H)));

// Some numbers of a row; sums may wrap.
template <int Width>
struct Part {
  typedef uint32_t Vector __attribute__((vector_size(4 * Width)));  // GCC ignores it in `using`
};

template <class Vector>
inline Vector load(const void* from) {
  Vector lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
template <class Vector>
inline void store(void* to, Vector lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

#if CLOISTER_LANES == 16
inline Int least(Int a, Int b) { return (Int)_mm512_min_epi32((__m512i)a, (__m512i)b); }
inline Int largest(Int a, Int b) { return (Int)_mm512_max_epi32((__m512i)a, (__m512i)b); }
#elif CLOISTER_LANES == 8
inline Int least(Int a, Int b) { return (Int)_mm256_min_epi32((__m256i)a, (__m256i)b); }
inline Int largest(Int a, Int b) { return (Int)_mm256_max_epi32((__m256i)a, (__m256i)b); }
#elif defined(__SSE2__)
// SSE2 has no minimum of integers; the bits of floats that are not negative order alike.
inline Int least(Int a, Int b) { return (Int)((Float)a < (Float)b ? (Float)a : (Float)b); }
inline Int largest(Int a, Int b) { return (Int)((Float)a > (Float)b ? (Float)a : (Float)b); }
#else
inline Int least(Int a, Int b) { return a < b ? a : b; }
inline Int largest(Int a, Int b) { return a > b ? a : b; }
#endif

// Returns `value` with the bits of `mask` taken from `label`.
inline Int with_label(Float value, int32_t mask, int32_t label) {
#if CLOISTER_LANES == 16
  const __m512i masks = _mm512_set1_epi32(mask), labels = _mm512_set1_epi32(label);
  return (Int)_mm512_ternarylogic_epi32((__m512i)value, masks, labels, 0xBA);
#else
  return ((Int)value & ~mask) | label;
#endif
}

inline bool any(Int lanes) {
  int32_t found = 0;
  for (int w = 0; w < W; w++) found |= lanes[w];
  return found != 0;
}

// The same shuffle of each four lanes of two vectors; lanes of the second count from 4 on.
template <int A, int B, int C, int D, std::size_t... I>
inline Int pick(Int a, Int b, std::index_sequence<I...>) {
  constexpr int from[4] = {A, B, C, D};
  return __builtin_shufflevector(a, b, (int(I) / 4 * 4 + from[I % 4] % 4 + from[I % 4] / 4 * W)...);
}
template <int A, int B, int C, int D>
inline Int pick(Int a, Int b) {
  return pick<A, B, C, D>(a, b, std::make_index_sequence<W>());
}

// Transposes each four lanes of four vectors.
inline void transpose(Int (&v)[4]) {
  const Int low01 = pick<0, 4, 1, 5>(v[0], v[1]), low23 = pick<0, 4, 1, 5>(v[2], v[3]);
  const Int high01 = pick<2, 6, 3, 7>(v[0], v[1]), high23 = pick<2, 6, 3, 7>(v[2], v[3]);
  v[0] = pick<0, 1, 4, 5>(low01, low23), v[1] = pick<2, 3, 6, 7>(low01, low23);
  v[2] = pick<0, 1, 4, 5>(high01, high23), v[3] = pick<2, 3, 6, 7>(high01, high23);
}

// Every second lane of a, then of b, from lane First on.
template <int First, std::size_t... I>
inline Int every_second(Int a, Int b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (2 * int(I) + First)...);
}

// Four numbers of each of W / 4 rows that are `step` apart.
inline Int fours(const int32_t* rows, int64_t step) {
#if CLOISTER_LANES == 16
  const auto row = [=](int r) { return load<__m128i>(rows + r * step); };
  __m512i four = _mm512_broadcast_i32x4(row(0));
  four = _mm512_mask_broadcast_i32x4(four, 0x00f0, row(1));
  four = _mm512_mask_broadcast_i32x4(four, 0x0f00, row(2));
  return (Int)_mm512_mask_broadcast_i32x4(four, 0xf000, row(3));
#elif CLOISTER_LANES == 8
  const __m256i first = _mm256_castsi128_si256(load<__m128i>(rows));
  return (Int)_mm256_inserti128_si256(first, load<__m128i>(rows + step), 1);
#else
  return load<Int>(rows);
#endif
}

// Labels -----------------------------------------------------------------------------------------

inline void put(float* columns, int i, Int lanes) {
  store(columns + i * PANEL, __builtin_convertvector(lanes, Float));
}

// Writes W rows as columns of a panel. Rows of two numbers need no transposing.
template <bool Two>
inline void columns_of(const int32_t* rows, int d, float* columns) {
  if constexpr (Two) {
    constexpr auto lanes = std::make_index_sequence<W>();
    const Int a = load<Int>(rows), b = load<Int>(rows + W);
    put(columns, 0, every_second<0>(a, b, lanes));
    put(columns, 1, every_second<1>(a, b, lanes));
    return;
  }
  for (int i = 0; i < d; i += 4) {  // four columns, or with what is behind the rows
    Int v[4];
    for (int r = 0; r < 4; r++) v[r] = fours(rows + int64_t(r) * d + i, 4 * int64_t(d));
    transpose(v);
    for (int c = 0; c < 4 && i + c < d; c++) put(columns, i + c, v[c]);
  }
}

// Scores `Block` centres for a panel and keeps the least two scores of each record.
template <int Block>
inline void score(const float* columns, int d, const float* weights, int first, int32_t mask,
                  Int (&least_yet)[2], Int (&second)[2]) {
  Float sums[Block][2];
  for (int j = 0; j < Block; j++)
    sums[j][0] = sums[j][1] = weights[j] - Float{};  // to add zero takes an operation, for -0
  for (int i = 0; i < d; i++) {
    weights += Block;
    const Float a = load<Float>(columns + i * PANEL), b = load<Float>(columns + i * PANEL + W);
#pragma GCC unroll 8
    for (int j = 0; j < Block; j++) {
      sums[j][0] += weights[j] * a;
      sums[j][1] += weights[j] * b;
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < Block; j++)
    for (int half = 0; half < 2; half++) {
      const Int found = with_label(sums[j][half], mask, first + j);
      second[half] = least(second[half], largest(least_yet[half], found));
      least_yet[half] = least(least_yet[half], found);
    }
}

template <int Block, bool Two>
bool label_tile(const Scoring& s, const int32_t* rows, int count, float* columns, int32_t* labels,
                int32_t* doubtful) {
  const int d = Two ? 2 : s.d;
  Int doubts = {};
  for (int t = 0; t < count; t += PANEL, columns += d * PANEL, rows += PANEL * int64_t(d)) {
    if (d <= MOST_AHEAD)
      for (int z = 0; z < PANEL * d; z += 16) __builtin_prefetch(rows + z + AHEAD);
    columns_of<Two>(rows, d, columns);
    columns_of<Two>(rows + W * int64_t(d), d, columns + W);
    Int least_yet[2], second[2];
    least_yet[0] = least_yet[1] = second[0] = second[1] = Int{} + 0x7f7fffff;
    const float* weights = s.weights;
    for (int j = 0; j < s.blocks * Block; j += Block, weights += Block * (d + 1))
      score<Block>(columns, d, weights, j, s.label_bits, least_yet, second);
    Float beyond[2] = {};
    if (s.bounded)
      for (int i = 0; i < d; i++)
        for (int half = 0; half < 2; half++) {
          const Float x = load<Float>(columns + i * PANEL + half * W);
          beyond[half] += x * x;
        }
    for (int half = 0; half < 2; half++) {
      Int label = least_yet[half] & s.label_bits;
      const Float best = (Float)(least_yet[half] & ~s.label_bits);
      const Float other = (Float)(second[half] & ~s.label_bits);
      Int doubt = other - best <= s.margin + other * s.hidden;
      if (s.bounded) {
        const Float by = beyond[half] + (s.relative ? 2.0f : 0.0f) * best - s.limit;
        label = by > 0.0f ? Int{} + s.k : label;
        doubt |= (by <= s.limit_margin) & (by >= -s.limit_margin);
      }
      store(labels + t + half * W, label);
      store(doubtful + t + half * W, doubt);
      doubts |= doubt;
    }
  }
  return any(doubts);
}

// Labels with the templates for as many centres as are scored at a time.
template <int Block>
bool label(const Scoring& s, const int32_t* rows, int count, float* columns, int32_t* labels,
           int32_t* doubtful) {
  if constexpr (Block > 1)
    if (s.block < Block) return label<Block - 1>(s, rows, count, columns, labels, doubtful);
  return s.d == 2 ? label_tile<Block, true>(s, rows, count, columns, labels, doubtful)
                  : label_tile<Block, false>(s, rows, count, columns, labels, doubtful);
}

int resolve(const Scoring& s, const int32_t* row, double* scores) {
  for (int j = 0; j < s.k; j++) scores[j] = s.norms[j];
  double norm = 0;
  for (int i = 0; i < s.d; i++) {
    const double x = row[i];
    const double* centres = s.centres + int64_t(i) * s.k;
    norm += x * x;
    for (int j = 0; j < s.k; j++) scores[j] -= 2 * x * centres[j];
  }
  int nearest = 0;
  for (int j = 1; j < s.k; j++)
    if (scores[j] < scores[nearest]) nearest = j;
  const double squared = s.relative ? norm + scores[nearest] : norm;
  return s.bounded && int64_t(squared) > s.radius_squared ? s.k : nearest;
}

// Sums -------------------------------------------------------------------------------------------

// Adds rows of Parts vectors of Width numbers, or as many as a row of sums has. What a vector reads
// behind its row lands in padding. Rows go to four copies of the sums in turn, where there are
// four: a label may come many times on end, and a sum has to wait for the one before it.
template <int Width, int Parts>
void add_rows(const Rows& out, const int32_t* rows, const int32_t* labels, int count) {
  using Row = typename Part<Width>::Vector;
  const int d = out.d, stride = out.stride, size = Parts ? Parts * Width : stride;
  const int64_t next = out.replicas == 4 ? int64_t(out.labels) * stride : 0;
  uint32_t *const sums = out.sums, *const counts = out.counts;
  const auto add_row = [=](const int32_t* row, int32_t label, int replica) {
    uint32_t* sum = sums + replica * next + int64_t(label) * stride;
    for (int i = 0; i < size; i += Width) store(sum + i, load<Row>(sum + i) + load<Row>(row + i));
    counts[replica * out.labels + label]++;
  };
  int t = 0;
  for (; t + 4 <= count; t += 4, rows += 4 * int64_t(d))
    for (int q = 0; q < 4; q++) add_row(rows + q * int64_t(d), labels[t + q], q);
  for (; t < count; t++, rows += d) add_row(rows, labels[t], 0);
}

void add(const Rows& out, const int32_t* rows, const int32_t* labels, int count) {
  if (out.stride == 4) return add_rows<4, 1>(out, rows, labels, count);
  if (out.stride == 8) return add_rows<8, 1>(out, rows, labels, count);
  return add_rows<W, 0>(out, rows, labels, count);
}

#if CLOISTER_LANES == 16
template <int D>
void add_lanes(int k, const float* columns, const int32_t* labels, int count, int32_t* sums) {
  const __m512i one = _mm512_set1_epi32(1);
  for (int j = 0; j < k; j++, sums += (D + 1) * W) {
    __m512i lanes[D + 1];
    for (int i = 0; i <= D; i++) lanes[i] = load<__m512i>(sums + i * W);
    for (int t = 0; t < count; t += W) {
      const float* column = columns + t / PANEL * PANEL * D + t % PANEL;
      const auto here = _mm512_cmpeq_epi32_mask(load<__m512i>(labels + t), _mm512_set1_epi32(j));
      for (int i = 0; i < D; i++) {
        const __m512i whole = _mm512_cvtps_epi32(load<__m512>(column + i * PANEL));
        lanes[i] = _mm512_mask_add_epi32(lanes[i], here, lanes[i], whole);
      }
      lanes[D] = _mm512_mask_add_epi32(lanes[D], here, lanes[D], one);
    }
    for (int i = 0; i <= D; i++) store(sums + i * W, lanes[i]);
  }
}

void add_columns(int d, int k, const float* columns, const int32_t* labels, int count,
                 int32_t* sums) {
  if (d == 1) return add_lanes<1>(k, columns, labels, count, sums);
  if (d == 2) return add_lanes<2>(k, columns, labels, count, sums);
  if (d == 3) return add_lanes<3>(k, columns, labels, count, sums);
  return add_lanes<4>(k, columns, labels, count, sums);
}
#else
constexpr auto add_columns = nullptr;  // it takes masks
#endif

// Clipped differences ----------------------------------------------------------------------------

#if CLOISTER_LANES == 16
inline Double at(const double* table, const int32_t* places) {
  return (Double)_mm512_i32gather_pd(load<__m256i>(places), table, 8);
}
inline Double fused(Double a, Double b, Double c) { return (Double)_mm512_fmadd_pd(a, b, c); }
inline Double wide(HalfFloat x) { return (Double)_mm512_cvtps_pd((__m256)x); }
inline Double wide(HalfInt x) { return (Double)_mm512_cvtepi32_pd((__m256i)x); }
#else
#if CLOISTER_LANES == 8
inline Double fused(Double a, Double b, Double c) { return (Double)_mm256_fmadd_pd(a, b, c); }
#endif
template <class Vector>
inline Double wide(Vector x) {
  return __builtin_convertvector(x, Double);  // of which GCC makes halves where they are longer
}
inline Double at(const double* table, const int32_t* places) {
#if CLOISTER_LANES == 8
  return (Double)_mm256_i32gather_pd(table, load<__m128i>(places), 8);
#else
  Double found;
  for (int h = 0; h < H; h++) found[h] = table[places[h]];
  return found;
#endif
}
#endif

inline Double roots(Double of) {
  double found[H];
  for (int h = 0; h < H; h++) found[h] = __builtin_sqrt(of[h]);
  return load<Double>(found);
}

// Returns a / b, rounded as a division is, from 1 / b: docs/proofs/kernel.md, section 6.
inline Double quotient(Double a, Double b, Double inverse) {
#if CLOISTER_LANES == 4
  return a / b;
#else
  Double found = a * inverse;
  for (int twice = 0; twice < 2; twice++)
    found = fused(fused(-found, b, a), inverse, found);
  return found;
#endif
}

template <std::size_t... I>
inline Int joined(HalfInt a, HalfInt b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, int(I)...);
}

// In float64 and with the roundings of `clip_to_unit`.
void clip(const Clipping& c, const float* columns, const int32_t* labels, int count, double* space,
          int32_t* clipped) {
  constexpr auto lanes = std::make_index_sequence<W>();
  const int d = c.d;
  int32_t* const cut = reinterpret_cast<int32_t*>(space + W * d);  // a vector for each column
  for (int t = 0; t < count; t += W, labels += W, clipped += W * d) {
    const float* column = columns + t / PANEL * PANEL * d + t % PANEL;
    Double squared[2] = {}, length[2], inverse[2], norm[2] = {};
    for (int i = 0; i < d; i++)
      for (int half = 0; half < 2; half++) {
        const Double x = wide(load<HalfFloat>(column + i * PANEL + half * H));
        const Double difference = x - at(c.centres + int64_t(i) * c.k, labels + half * H);
        store(space + i * W + half * H, difference);
        squared[half] += difference * difference;
      }
    for (int half = 0; half < 2; half++) {
      const Double own = roots(squared[half]), radius = at(c.radii, labels + half * H);
      length[half] = own > radius ? own : radius;
      inverse[half] = 1 / length[half];
    }
    for (int i = 0; i < d; i++) {
      HalfInt toward_zero[2];
      for (int half = 0; half < 2; half++) {
        const Double scaled = load<Double>(space + i * W + half * H) * c.unit;
        const Double real = quotient(scaled, length[half], inverse[half]);
        toward_zero[half] = __builtin_convertvector(real, HalfInt);
        const Double whole = wide(toward_zero[half]);
        norm[half] += whole * whole;  // exact: hardly more than unit^2
      }
      store(cut + i * W, joined(toward_zero[0], toward_zero[1], lanes));
    }
    const Double most = Double{} + c.unit * c.unit;
    const Int kept = joined(__builtin_convertvector(norm[0] <= most, HalfInt),
                            __builtin_convertvector(norm[1] <= most, HalfInt), lanes);
    for (int i = (d - 1) / 4 * 4; i >= 0; i -= 4) {  // what is behind a row is written again
      Int v[4];
      for (int r = 0; r < 4; r++) v[r] = load<Int>(cut + (i + r) * W) & kept;
      transpose(v);
      for (int r = 0; r < W; r++)
        std::memcpy(clipped + r * d + i, reinterpret_cast<int32_t*>(v + r % 4) + r / 4 * 4, 16);
    }
  }
}

// Products ---------------------------------------------------------------------------------------

// In float64, which holds all sums exactly until they are emptied.
void add_products(const Products& out, const int32_t* rows, const int32_t* labels, int count) {
  const int d = out.d, stride = out.stride;
  double* const __restrict row = out.row;
  for (int t = 0; t < count; t++, rows += d) {
    for (int at = 0; at < d; at += H) store(row + at, wide(load<HalfInt>(rows + at)));
    double* __restrict sums = out.sums + int64_t(labels[t]) * d * stride;
    for (int i = 0; i < d; i++, sums += stride) {
      const Double own = Double{} + row[i];
      for (int at = i / H * H; at < d; at += H)  // the upper half, from a whole vector on
        store(sums + at, load<Double>(sums + at) + own * load<Double>(row + at));
    }
  }
}

// Two distances ----------------------------------------------------------------------------------

// In float64, where all numbers are whole and no operation rounds.
void others(const Others& o, const float* columns, const int32_t* labels, int count) {
  const int d = o.d, k = o.k;
  for (int t = 0; t < count; t += H) {
    const float* column = columns + t / PANEL * PANEL * d + t % PANEL;
    const Long mine = __builtin_convertvector(load<HalfInt>(labels + t), Long);
    Double own = {}, other = Double{} + INFINITY;
    Long found = mine;
    for (int j = 0; j < k; j++) {
      Double squared = {};
      for (int i = 0; i < d; i++) {
        const Double apart = wide(load<HalfFloat>(column + i * PANEL)) - o.centres[i * k + j];
        squared += apart * apart;
      }
      const Long is_own = mine == j, nearer = ~is_own & (squared < other);
      own = is_own ? squared : own;
      other = nearer ? squared : other;
      found = nearer ? Long{} + j : found;
    }
    store(o.own + t, own), store(o.other + t, other), store(o.labels + t, found);
  }
}

// Cells ------------------------------------------------------------------------------------------

// As cloister/data/encoding.py says it, for cells that nothing is wrong with.
template <class Number>
bool round_each(const Cells& c, const char* found, int count, int32_t* steps) {
  const auto cell = [found](int z) {
    Number number;
    std::memcpy(&number, found + z * sizeof number, sizeof number);
    return double(number);
  };
  const double* const __restrict low = c.low, * const __restrict high = c.high;
  const double* const __restrict centre = c.centre, * const __restrict factor = c.factor;
  const int64_t* const __restrict integer = c.integer, * const __restrict boolean = c.boolean;
  int32_t* const __restrict out = steps;
  const int32_t one = c.one;
  int64_t wrong = 0;
  for (int z = 0; z < count; z++) {
    const double x = cell(z);
    const double above = x > low[z] ? x : low[z];  // a NaN, too, becomes low
    const double value = above < high[z] ? above : high[z];
    wrong |= -int64_t(value != x);
    const int32_t step = int32_t(__builtin_rint((value - centre[z]) * factor[z]));
    const int32_t most = step < one ? step : one;
    out[z] = most > -one ? most : -one;
  }
  for (int z = 0; c.typed && z < count; z++) {
    const double x = cell(z);
    wrong |= integer[z] & -int64_t(__builtin_floor(x) != x);
    wrong |= boolean[z] & -int64_t(x * (x - 1) != 0);
  }
  return wrong == 0;
}

bool round_cells(const Cells& c, const char* found, bool narrow, int count, int32_t* steps) {
  return (narrow ? round_each<float> : round_each<double>)(c, found, count, steps);
}

}  // namespace

extern const Lanes lanes = {CLOISTER_NAME, W,           MOST, label<MOST>, resolve,
                            add,           add_columns, clip, add_products, others, round_cells};

}  // namespace cloister::CLOISTER_ISA
