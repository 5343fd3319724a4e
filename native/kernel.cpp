#include "kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace cloister {
namespace {

constexpr double ROUNDING = 0x1p-24;          // of one float32 operation, relative
constexpr int64_t LARGEST = 1 << 24;          // that every float32 below holds
constexpr int MOST_COLUMNS = 1 << 16;         // for which the bound of many roundings holds
constexpr int MOST_HIDDEN = 12;               // bits of a label; more leave too little of a score
constexpr float NEVER = 3e38f;                // score of what fills up a block
constexpr int TILE = 512, TILE_CELLS = 8192;  // records, numbers: their floats fit the first cache
constexpr int MOST_LANE_SUMS = 6;             // a lane; more take longer than rows do
constexpr int MOST_REPLICATED = 2048;         // sums of which four copies fit the first cache

template <class T>
T* aligned(std::vector<T>& space, size_t size) {
  space.assign(size + 64 / sizeof(T), T{});
  const auto address = reinterpret_cast<uintptr_t>(space.data());
  return reinterpret_cast<T*>((address + 63) / 64 * 64);
}

int up_to(int count, int step) { return (count + step - 1) / step * step; }

// Returns how many bits hold every label below k.
int bits_for(int k) {
  int bits = 0;
  while ((1 << bits) < k) bits++;
  return bits;
}

// Returns how many centres to score at a time, at most `most`, so that few are scored for nothing.
int block_for(int k, int most) {
  int best = std::min(k, most);
  for (int block = best; 2 * block > most; block--)
    if (up_to(k, block) < up_to(k, best)) best = block;
  return best;
}

// Labels the records of a table, tile by tile.
class Labels {
 public:
  Labels(const Lanes& lanes, const Records& records, const Centres& centres)
      : lanes_(lanes), records_(records), panel_(2 * lanes.width), bits_(bits_for(centres.k)) {
    const int d = records.d, k = centres.k;
    tile_ = std::clamp(TILE_CELLS / d / panel_, 1, TILE / panel_) * panel_;
    norms_.assign(k, 0.0);
    transposed_.assign(size_t(d) * k + 1, 0.0);  // one more: the label k may be looked up
    for (int j = 0; j < k; j++)
      for (int i = 0; i < d; i++) {
        const double c = double(centres.values[int64_t(j) * d + i]);
        transposed_[size_t(i) * k + j] = c;
        norms_[j] += c * c;
      }
    scoring_.d = d, scoring_.k = k;
    bound_scores();
    names_.resize(k + 1);
    few_centres_.resize(transposed_.size());
    few_norms_.resize(k);
    weights_.resize(size_t(k + lanes.most) * (d + 1));
    std::vector<int32_t> all(k);
    std::iota(all.begin(), all.end(), 0);
    among(all.data(), k);
    columns_ = aligned(column_space_, size_t(tile_) * d);
    tail_.assign(size_t(tile_) * d + lanes.width, 0);
    labels_.resize(tile_);
    doubtful_.resize(tile_);
    scores_.resize(k);
  }

  // Scores these centres alone, in rising order. The bounds on errors are those of all.
  void among(const int* names, int count) {
    const int d = scoring_.d, k = int(norms_.size()), bits = bits_for(count);
    renamed_ = count < k;
    std::copy(names, names + count, names_.begin());
    names_[count] = k;
    for (int i = 0; i < d && renamed_; i++)
      for (int j = 0; j < count; j++)
        few_centres_[size_t(i) * count + j] = transposed_[size_t(i) * k + names[j]];
    for (int j = 0; j < count; j++) few_norms_[j] = norms_[names[j]];
    scoring_.k = count;
    scoring_.centres = (renamed_ ? few_centres_ : transposed_).data();
    scoring_.norms = few_norms_.data();
    scoring_.block = block_for(count, lanes_.most);
    scoring_.blocks = up_to(count, scoring_.block) / scoring_.block;
    scoring_.label_bits = (1 << bits) - 1;
    scoring_.hidden = float(std::ldexp(1.02, bits - 23));
    const int block = scoring_.block;
    for (int j = 0; j < scoring_.blocks * block; j++) {
      float* weights = weights_.data() + size_t(j / block) * block * (d + 1) + j % block;
      *weights = j < count ? float(few_norms_[j] / 2 + shift_) : NEVER;
      for (int i = 0; i < d; i++)
        weights[size_t(i + 1) * block] =
            j < count ? float(-transposed_[size_t(i) * k + names[j]]) : 0.0f;
    }
    scoring_.weights = weights_.data();
  }

  // Gives records beyond a radius the label k.
  void bound(int64_t radius_squared, bool relative) {
    const double d = scoring_.d, one = double(records_.one), squared = double(radius_squared);
    const double longest = *std::max_element(norms_.begin(), norms_.end());
    const double reach = std::sqrt(d) * one + (relative ? std::sqrt(longest) : 0.0);
    scoring_.bounded = reach * reach * 1.0001 > squared;  // or nothing can be outside
    scoring_.relative = relative;
    scoring_.radius_squared = radius_squared;
    scoring_.limit = float((relative ? 2 * shift_ : 0.0) + squared);
    const double hidden = std::ldexp(1.01 * (largest_ + shift_), bits_ - 23);
    const double of_norm = roundings() * d * one * one;
    const double of_sums = 6 * ROUNDING * (reach * reach + 2 * shift_ + squared);
    scoring_.limit_margin = float(1.01 * (2 * error_ + 2 * hidden + of_norm + of_sums));
  }

  // Calls `use(rows, labels, columns, count)` for each tile. Behind its last row there is room for
  // a vector, and labels and columns are filled up to a whole panel, with the label k.
  template <class Use>
  void each_tile(Use use) {
    const int d = scoring_.d;
    for (int64_t start = 0; start < records_.n; start += tile_) {
      const int count = int(std::min<int64_t>(tile_, records_.n - start));
      const int whole = up_to(count, panel_);
      const int32_t* rows = records_.rows + start * d;
      if ((start + whole) * d + lanes_.width > records_.n * d) {  // near the end of the table
        std::fill(tail_.begin(), tail_.end(), 0);
        std::memcpy(tail_.data(), rows, sizeof(int32_t) * count * d);
        rows = tail_.data();
      }
      label(rows, count, use);
    }
  }

  // Does the same for the rows of one tile, behind which there is room for a panel and a vector.
  template <class Use>
  void label(const int32_t* rows, int count, Use use) {
    const int whole = up_to(count, panel_);
    if (lanes_.label(scoring_, rows, whole, columns_, labels_.data(), doubtful_.data()))
      for (int t = 0; t < count; t++)
        if (doubtful_[t])
          labels_[t] = lanes_.resolve(scoring_, rows + int64_t(t) * scoring_.d, scores_.data());
    if (renamed_)
      for (int t = 0; t < count; t++) labels_[t] = names_[labels_[t]];
    std::fill(labels_.begin() + count, labels_.begin() + whole, int(norms_.size()));
    use(rows, labels_.data(), columns_, count);
  }

  const double* centres() const { return transposed_.data(); }
  int tile() const { return tile_; }

 private:
  double roundings() const { return (2.0 * scoring_.d + 3) * ROUNDING; }

  // Bounds what a score may be off: docs/proofs/kernel.md, section 2.
  void bound_scores() {
    const int d = scoring_.d, k = scoring_.k;
    const double one = double(records_.one), half_norm = d * one * one / 2;
    largest_ = 0;
    for (int j = 0; j < k; j++) {
      double sum = 0;
      for (int i = 0; i < d; i++) sum += std::abs(transposed_[size_t(i) * k + j]);
      const double products = one * std::min(sum, std::sqrt(norms_[j] * d));
      largest_ = std::max(largest_, norms_[j] / 2 + products);
    }
    shift_ = half_norm + 1 + 2.02 * roundings() * (largest_ + half_norm + 1);
    error_ = 1.01 * roundings() * (largest_ + shift_);
    scoring_.margin = bits_ > MOST_HIDDEN ? INFINITY : float(2.02 * error_);
  }

  const Lanes& lanes_;
  const Records records_;
  const int panel_, bits_;
  int tile_;
  bool renamed_;  // whether labels are of few centres
  Scoring scoring_{};
  double largest_, shift_, error_;
  std::vector<double> transposed_, norms_, few_centres_, few_norms_, scores_;
  std::vector<float> weights_, column_space_;
  std::vector<int32_t> names_, tail_, labels_, doubtful_;
  float* columns_;
};

// Sums of rows by label: in int32 while they are small, then in int64. The last column counts.
class Sums {
 public:
  // No number of a row is larger than `most`.
  Sums(const Lanes& lanes, int d, int k, int64_t most, int64_t* out)
      : lanes_(lanes), d_(d), k_(k), room_(INT32_MAX / most), left_(room_), out_(out) {
    rows_.d = d;
    rows_.labels = k + 1;  // the last one is of records that are left out
    rows_.stride = d <= 4 ? 4 : up_to(d, d <= 8 ? 8 : lanes.width);
    const int64_t table = int64_t(rows_.labels) * rows_.stride;
    rows_.replicas = table <= MOST_REPLICATED ? 4 : 1;
    rows_.sums = aligned(row_space_, size_t(rows_.replicas) * table);
    counts_.assign(size_t(4) * rows_.labels, 0);
    rows_.counts = counts_.data();
  }

  void add(const int32_t* rows, const int32_t* labels, int count) {
    while (count > 0) {
      if (left_ == 0) flush();
      const int now = int(std::min<int64_t>(count, left_));
      lanes_.add(rows_, rows, labels, now);
      rows += int64_t(now) * d_, labels += now, count -= now, left_ -= now;
    }
  }

  void flush() {
    for (int64_t j = 0; j < k_; j++) {
      int64_t* sums = out_ + j * (d_ + 1);
      for (int r = 0; r < rows_.replicas; r++)
        for (int i = 0; i < d_; i++)
          sums[i] += int32_t(rows_.sums[(r * int64_t(rows_.labels) + j) * rows_.stride + i]);
      for (int r = 0; r < 4; r++) sums[d_] += rows_.counts[r * rows_.labels + j];
    }
    std::fill(row_space_.begin(), row_space_.end(), 0);
    std::fill(counts_.begin(), counts_.end(), 0);
    left_ = room_;
  }

 private:
  const Lanes& lanes_;
  const int d_, k_;
  const int64_t room_;
  int64_t left_;
  int64_t* out_;
  Rows rows_;
  std::vector<uint32_t> row_space_, counts_;
};

// The same of columns, for few sums: a vector of partial sums for each.
class LaneSums {
 public:
  static bool suits(const Lanes& lanes, int d, int k) {
    return lanes.add_columns && d <= 4 && k * (d + 2) <= MOST_LANE_SUMS * lanes.width;
  }

  // A lane gets at most TILE / width numbers of a tile, none larger than `most`.
  LaneSums(const Lanes& lanes, int d, int k, int64_t most, int64_t* out)
      : lanes_(lanes),
        d_(d),
        k_(k),
        room_(INT32_MAX / most / (TILE / lanes.width)),
        left_(room_),
        out_(out) {
    sums_ = aligned(space_, size_t(k) * (d + 1) * lanes.width);
  }

  void add(const float* columns, const int32_t* labels, int count) {
    if (left_-- == 0) flush();
    lanes_.add_columns(d_, k_, columns, labels, up_to(count, 2 * lanes_.width), sums_);
  }

  void flush() {
    for (int z = 0; z < k_ * (d_ + 1); z++)
      for (int lane = 0; lane < lanes_.width; lane++) out_[z] += sums_[z * lanes_.width + lane];
    std::fill(space_.begin(), space_.end(), 0);
    left_ = room_ - 1;
  }

 private:
  const Lanes& lanes_;
  const int d_, k_;
  const int64_t room_;  // tiles
  int64_t left_;
  int64_t* out_;
  std::vector<int32_t> space_;
  int32_t* sums_;
};

// Sums of products of rows by label: in float64 while they are exact, then in int64.
class ProductSums {
 public:
  // No number of a row is larger than `most`.
  ProductSums(const Lanes& lanes, int d, int k, int64_t most, int64_t* out)
      : lanes_(lanes), k_(k), room_((int64_t(1) << 53) / (most * most)), left_(room_), out_(out) {
    products_.d = d;
    products_.stride = up_to(d, lanes.width / 2);
    products_.sums = aligned(space_, size_t(k) * d * products_.stride);
    products_.row = aligned(row_, products_.stride);
  }

  void add(const int32_t* rows, const int32_t* labels, int count) {
    while (count > 0) {
      if (left_ == 0) flush();
      const int now = int(std::min<int64_t>(count, left_));
      lanes_.add_products(products_, rows, labels, now);
      rows += int64_t(now) * products_.d, labels += now, count -= now, left_ -= now;
    }
  }

  void flush() {
    const double* sums = products_.sums;
    int64_t* out = out_;
    for (int64_t row = 0; row < int64_t(k_) * products_.d; row++, sums += products_.stride)
      for (int i = int(row % products_.d); i < products_.d; i++) *out++ += int64_t(sums[i]);
    std::fill(space_.begin(), space_.end(), 0.0);
    left_ = room_;
  }

 private:
  const Lanes& lanes_;
  const int k_;
  const int64_t room_;
  int64_t left_;
  int64_t* out_;
  Products products_;
  std::vector<double> space_, row_;
};

// Clipped differences to the nearest centres.
class Clipped {
 public:
  Clipped(const Lanes& lanes, const Labels& labels, int k, int d, const int64_t* radii,
          int64_t unit)
      : lanes_(lanes),
        radii_(radii, radii + k),
        space_(size_t(2 * lanes.width) * (d + 2)),
        rows_(size_t(labels.tile()) * d + lanes.width) {
    radii_.push_back(1.0);  // the label k may be looked up
    clipping_ = {d, k, labels.centres(), radii_.data(), double(unit)};
  }

  // Returns rows, behind which there is room for a vector; the next call overwrites them.
  const int32_t* of(const float* columns, const int32_t* labels, int count) {
    lanes_.clip(clipping_, columns, labels, count, space_.data(), rows_.data());
    return rows_.data();
  }

 private:
  const Lanes& lanes_;
  Clipping clipping_;
  std::vector<double> radii_, space_;
  std::vector<int32_t> rows_;
};

// Sums what `each_tile` gives to a function, near centres.
template <class Tiles>
void near_sums(const Lanes& lanes, const Records& records, const Centres& centres, int64_t* sums,
               Tiles each_tile) {
  if (LaneSums::suits(lanes, records.d, centres.k)) {
    LaneSums out(lanes, records.d, centres.k, records.one, sums);
    each_tile([&](const int32_t*, const int32_t* of, const float* columns, int count) {
      out.add(columns, of, count);
    });
    return out.flush();
  }
  Sums out(lanes, records.d, centres.k, records.one, sums);
  each_tile([&](const int32_t* rows, const int32_t* of, const float*, int count) {
    out.add(rows, of, count);
  });
  out.flush();
}

#include "ordered.inl"

// Cells ------------------------------------------------------------------------------------------

template <class Number>
double read(const char* from) {
  Number found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

// Reads some cells of a column, to every `apart`-th place.
template <class Number, class Wanted>
void spread(const Column& column, int64_t start, int count, char* place, int apart) {
  const char* from = column.first + start * column.step;
  auto* to = reinterpret_cast<Wanted*>(place);
  for (; count > 0; count--, from += column.step, to += apart) *to = Wanted(read<Number>(from));
}

// Whether columns are those of a table that lies row by row, which is read as one column.
bool row_by_row(const Column* columns, int d) {
  const int64_t size = columns[0].narrow ? sizeof(float) : sizeof(double);
  for (int i = 0; i < d; i++) {
    const Column& c = columns[i];
    const bool beside = c.first == columns[0].first + i * size && c.step == d * size;
    if (!beside || c.narrow != columns[0].narrow) return false;
  }
  return true;
}

// Judges one cell by the rules of its column.
int32_t judge(const Cells& rules, int column, double x, uint8_t* flag) {
  constexpr uint8_t MISSING = 1, WRONG = 2, OUTSIDE = 4;
  const double within = std::min(std::max(x, rules.low[column]), rules.high[column]);
  const bool of_type = (!rules.integer[column] || std::floor(x) == x) &&
                       (!rules.boolean[column] || x == 0 || x == 1);
  *flag = !std::isfinite(x) ? MISSING : !of_type ? WRONG : within != x ? OUTSIDE : 0;
  const double value = *flag & (MISSING | WRONG) ? rules.known[column] : within;
  const double step = std::nearbyint((value - rules.centre[column]) * rules.factor[column]);
  return int32_t(std::clamp(step, -double(rules.one), double(rules.one)));
}

}  // namespace

bool exact(const Records& records, const Centres& centres) {
  int64_t largest = 0;
  for (int64_t i = 0; i < int64_t(centres.k) * records.d; i++) {
    if (centres.values[i] > LARGEST || centres.values[i] < -LARGEST) return false;
    largest = std::max(largest, std::abs(centres.values[i]));
  }
  if (records.one < 1 || records.one > LARGEST || records.d > MOST_COLUMNS) return false;
  const double reach = double(records.one + largest);
  return reach * reach * records.d < 0x1p53;
}

void sum_near(const Lanes& lanes, const Records& records, const Centres& centres,
              int64_t radius_squared, bool relative, int64_t* sums) {
  Labels labels(lanes, records, centres);
  labels.bound(radius_squared, relative);
  near_sums(lanes, records, centres, sums, [&](auto add) { labels.each_tile(add); });
}

void sum_near(const Lanes& lanes, const Ordered& ordered, const Centres& centres,
              int64_t radius_squared, bool relative, int64_t* sums) {
  Labels labels(lanes, ordered.records(), centres);
  labels.bound(radius_squared, relative);
  Leaves leaves(ordered, centres, labels, {radius_squared, relative, sums});
  near_sums(lanes, ordered.records(), centres, sums, [&](auto add) { leaves.each_tile(add); });
}

void sum_clipped(const Lanes& lanes, const Records& records, const Centres& centres,
                 const int64_t* radii, int64_t unit, int64_t* sums) {
  Labels labels(lanes, records, centres);
  Sums out(lanes, records.d, centres.k, unit, sums);
  Clipped rows(lanes, labels, centres.k, records.d, radii, unit);
  labels.each_tile([&](const int32_t*, const int32_t* of, const float* columns, int count) {
    out.add(rows.of(columns, of, count), of, count);
  });
  out.flush();
}

void sum_moments(const Lanes& lanes, const Records& records, const Centres& centres,
                 const int64_t* radii, int64_t unit, const int64_t* reach, int64_t fine,
                 int64_t* sums, int64_t* moments) {
  const int d = records.d, k = centres.k;
  Labels labels(lanes, records, centres);
  Sums out(lanes, d, k, unit, sums);
  ProductSums products(lanes, d, k, fine, moments);
  Clipped rows(lanes, labels, k, d, radii, unit), near(lanes, labels, k, d, reach, fine);
  labels.each_tile([&](const int32_t*, const int32_t* of, const float* columns, int count) {
    out.add(rows.of(columns, of, count), of, count);
    products.add(near.of(columns, of, count), of, count);
  });
  out.flush();
  products.flush();
}

Ordered ordered(const std::vector<Records>& parts) { return Order(parts).made(); }

void nearest(const Lanes& lanes, const Records& records, const Centres& centres, int64_t* found) {
  Labels labels(lanes, records, centres);
  labels.each_tile([&](const int32_t*, const int32_t* of, const float*, int count) {
    found = std::copy(of, of + count, found);
  });
}

void two_nearest(const Lanes& lanes, const Records& records, const Centres& centres,
                 int64_t* found) {
  const int64_t n = records.n;
  Labels labels(lanes, records, centres);
  std::vector<double> own(labels.tile()), other(labels.tile());
  std::vector<int64_t> second(labels.tile());
  const Others others{records.d,  centres.k,    labels.centres(),
                      own.data(), other.data(), second.data()};
  const bool single = centres.k == 1;
  labels.each_tile([&](const int32_t*, const int32_t* of, const float* columns, int count) {
    lanes.others(others, columns, of, count);
    std::copy(of, of + count, found);
    std::copy(second.data(), second.data() + count, found + n);
    std::copy(own.data(), own.data() + count, found + 2 * n);
    std::copy_n((single ? own : other).data(), count, found + 3 * n);
    found += count;
  });
}

void encode(const Lanes& lanes, const Column* columns, int64_t n, const Cells& rules,
            int32_t* steps, uint8_t* flags) {
  const int d = rules.d;
  const bool as_one = row_by_row(columns, d);
  const bool narrow = std::all_of(columns, columns + d, [](const Column& c) { return c.narrow; });
  const size_t size = narrow ? sizeof(float) : sizeof(double);
  std::vector<char> together(as_one ? 0 : rules.rows * d * size);  // cells of a block, by rows
  for (int64_t start = 0; start < n; start += rules.rows) {
    const int rows = int(std::min<int64_t>(rules.rows, n - start)), cells = rows * d;
    for (int i = 0; i < d && !as_one; i++)
      (narrow              ? spread<float, float>
       : columns[i].narrow ? spread<float, double>
                           : spread<double, double>)(columns[i], start, rows,
                                                     together.data() + i * size, d);
    const char* found = as_one ? columns[0].first + start * columns[0].step : together.data();
    const auto cell = narrow ? read<float> : read<double>;
    if (!lanes.round_cells(rules, found, narrow, cells, steps))
      for (int z = 0; z < cells; z++) {  // the others are rounded already
        const double x = cell(found + z * size);
        if (rules.typed || !(x >= rules.low[z] && x <= rules.high[z]))
          steps[z] = judge(rules, z % d, x, flags + z);
      }
    steps += cells, flags += cells;
  }
}

const Lanes* const* available() {
  static const Lanes* const* const best_first = [] {
    static const Lanes* found[4] = {};
    const Lanes** next = found;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      *next++ = &avx512::lanes;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) *next++ = &avx2::lanes;
#endif
    *next = &base::lanes;
    return found;
  }();
  return best_first;
}

}  // namespace cloister
